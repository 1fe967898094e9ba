//! Section `[sync]`: the scheme of synchronisation as configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Drops, Pattern, Quorum, Schedule, ScheduleError, Scheme};

/// When and for whom paths synchronise their modules. The defaults are DiLoCo's, and DiPaCo's: whole modules, and
/// everyone waits for everyone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncConfig {
    /// F: parts that each module is cut into, each synchronised at inner steps of its own.
    pub fragments: u32,
    /// Which tensors of a module make a fragment.
    pub pattern: Pattern,
    /// τ: inner steps that a path trains on between sending a fragment and taking over what became of it.
    pub overlap_steps: u64,
    /// α: the share of its own weights that a path keeps when it takes over the global ones, 0 to 1.
    pub blend: f32,
    /// K: the learners that an outer step waits for; 0 for all of them, and paths then wait for outer steps too.
    pub quorum: u32,
    /// The longest time, in seconds, that an outer step with its quorum waits for further learners.
    pub grace_seconds: f64,
    /// γ: the share of the measured slack that is spent on waiting for further learners.
    pub grace_share: f64,
    /// The time between two outer steps, at least, as a share of what the fastest path takes for H inner steps.
    pub throttle: f64,
    /// Whether slower workers take fewer inner steps between two contributions.
    pub dynamic_steps: bool,
    /// Whether the path that is trained next is drawn by how much less of its shard has been trained on than of all.
    pub shard_sampling: bool,
    /// Whether a path that takes over delayed weights adds what the outer optimizer makes of its own newer part.
    pub eager: bool,
    /// The share of outer gradients that are never sent, to see what a run makes of losing them; at least 0, below 1.
    pub drop_rate: f64,
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self {
            fragments: 1,
            pattern: Pattern::default(),
            overlap_steps: 0,
            blend: 0.0,
            quorum: 0,
            grace_seconds: 0.0,
            grace_share: 0.5,
            throttle: 0.0,
            dynamic_steps: false,
            shard_sampling: false,
            eager: false,
            drop_rate: 0.0,
        }
    }
}

impl SyncConfig {
    /// The schedule of a run of this seed with H = `inner_steps` whose phases end after these rounds, the last one with the
    /// run.
    ///
    /// # Errors
    /// When there is no such schedule.
    pub fn schedule(
        &self,
        seed: u64,
        inner_steps: u64,
        ends: impl IntoIterator<Item = u32>,
    ) -> Result<Schedule, ScheduleError> {
        let ends = ends.into_iter().map(|round| u64::from(round).saturating_mul(inner_steps)).collect();
        let schedule = Schedule::new(inner_steps, self.fragments, self.overlap_steps, ends)?;
        Ok(schedule.eager(self.eager).without(Drops::new(seed, self.drop_rate)))
    }

    /// Whom outer steps wait for.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        if self.quorum == 0 {
            return Scheme::Synchronous;
        }
        // What is too long for a duration is as long as there is.
        let grace = Duration::try_from_secs_f64(self.grace_seconds).unwrap_or(Duration::MAX);
        Scheme::Quorum(Quorum {
            learners: self.quorum,
            grace,
            grace_share: self.grace_share,
            throttle: self.throttle,
            dynamic_steps: self.dynamic_steps,
        })
    }

    /// Says what is wrong, each with its key.
    #[must_use]
    pub fn check(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if !(0.0..=1.0).contains(&self.blend) {
            problems.push(("blend", format!("is {}: use 0 to 1", self.blend)));
        }
        if !(0.0..=1.0).contains(&self.grace_share) {
            problems.push(("grace_share", format!("is {}: use 0 to 1", self.grace_share)));
        }
        if !(0.0..=1.0).contains(&self.throttle) {
            problems.push(("throttle", format!("is {}: use 0 to 1", self.throttle)));
        }
        if !(0.0..=86_400.0).contains(&self.grace_seconds) {
            problems.push(("grace_seconds", format!("is {}: use 0 to 86400", self.grace_seconds)));
        }
        if self.dynamic_steps && (self.quorum == 0 || self.fragments != 1 || self.overlap_steps != 0) {
            problems.push((
                "dynamic_steps",
                "needs sync.quorum of at least 1, one fragment and no overlap: otherwise paths wait for each other, or \
                 send at fixed steps"
                    .to_owned(),
            ));
        }
        if self.shard_sampling && self.quorum == 0 {
            problems.push((
                "shard_sampling",
                "needs sync.quorum of at least 1: otherwise all paths go on at one pace".to_owned(),
            ));
        }
        if !(0.0..1.0).contains(&self.drop_rate) {
            problems.push(("drop_rate", format!("is {}: use at least 0 and below 1", self.drop_rate)));
        }
        if self.drop_rate > 0.0 && self.dynamic_steps {
            problems.push(("drop_rate", "can't be combined with sync.dynamic_steps".to_owned()));
        }
        if self.eager
            && (self.quorum > 0 || self.overlap_steps == 0 || self.blend > 0.0 || self.drop_rate > 0.0)
        {
            problems.push((
                "eager",
                "needs sync.overlap_steps of train.inner_steps, and no sync.quorum, sync.blend and sync.drop_rate: it is \
                 what a path does while an outer step is a round late"
                    .to_owned(),
            ));
        }
        problems
    }
}
