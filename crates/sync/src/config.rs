//! Section `[sync]`: the scheme of synchronisation as configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Drops, Pattern, Quorum, Schedule, ScheduleError, Scheme};

/// Times and rules of synchronisation. The defaults are those of DiLoCo and DiPaCo: whole modules, and every path
/// waits for all others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncConfig {
    /// F: number of fragments of each module, each synchronised at its own inner steps.
    pub fragments: u32,
    /// Assignment of a module's tensors to fragments.
    pub pattern: Pattern,
    /// τ: inner steps of a path between the send of a fragment and its receive.
    pub overlap_steps: u64,
    /// α: share of a path's own weights at a receive, 0 to 1.
    pub blend: f32,
    /// K: number of learners for which an outer step waits; 0 means all, and then paths wait for outer steps too.
    pub quorum: u32,
    /// Longest time in seconds that an outer step waits for further learners after its quorum.
    pub grace_seconds: f64,
    /// γ: share of the measured slack to spend on waiting for further learners.
    pub grace_share: f64,
    /// Shortest time between two outer steps, as a share of the time of H inner steps on the fastest path.
    pub throttle: f64,
    /// True if slower workers take fewer inner steps between two contributions.
    pub dynamic_steps: bool,
    /// True if the next path is drawn in proportion to the untrained part of its shard.
    pub shard_sampling: bool,
    /// True if a path adds its own newer outer gradient to the delayed weights that it receives (eager updates).
    pub eager: bool,
    /// Share of outer gradients that are never sent, for experiments; at least 0, below 1.
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
    /// The schedule of a run with this seed and H = `inner_steps`. Its phases end after the rounds `ends`; the last
    /// end is the end of the run.
    ///
    /// # Errors
    /// When the settings do not make a schedule.
    pub fn schedule(
        &self,
        seed: u64,
        inner_steps: u64,
        ends: impl IntoIterator<Item = u32>,
    ) -> Result<Schedule, ScheduleError> {
        let ends = ends.into_iter().map(|round| u64::from(round).saturating_mul(inner_steps)).collect();
        let schedule = Schedule::new(inner_steps, self.fragments, self.overlap_steps, ends)?;
        let drops = Drops::new(seed, self.drop_rate);
        if drops.any() && self.overlap_steps == inner_steps {
            // `Schedule::keeps_own` looks at the send whose version comes, which is a round older than the send of that step.
            return Err(ScheduleError::Drops { overlap: self.overlap_steps });
        }
        Ok(schedule.eager(self.eager).without(drops))
    }

    /// Fewest inner steps of a training lease in a run of H = `inner_steps`. Phases end with rounds, so each stop of the
    /// [`Schedule`] is one of the steps `(f + 1) H / F + k H`.
    #[must_use]
    pub fn shortest_lease(&self, inner_steps: u64) -> u64 {
        if self.dynamic_steps {
            return 1;
        }
        inner_steps.checked_div(self.fragments.into()).unwrap_or(1).max(1)
    }

    /// Rule for the contributions for which an outer step waits.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        if self.quorum == 0 {
            return Scheme::Synchronous;
        }
        // A value that is too large for a duration becomes the longest duration.
        let grace = Duration::try_from_secs_f64(self.grace_seconds).unwrap_or(Duration::MAX);
        Scheme::Quorum(Quorum {
            learners: self.quorum,
            grace,
            grace_share: self.grace_share,
            throttle: self.throttle,
            dynamic_steps: self.dynamic_steps,
        })
    }

    /// Lists invalid values with their keys.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_outer_gradient_is_dropped_where_the_steps_in_it_would_be_lost() {
        let schedule = |overlap_steps, drop_rate| {
            SyncConfig { fragments: 2, overlap_steps, drop_rate, ..SyncConfig::default() }.schedule(1, 6, [3])
        };
        assert_eq!(schedule(6, 0.3), Err(ScheduleError::Drops { overlap: 6 }));
        for (overlap_steps, drop_rate) in [(6, 0.0), (5, 0.3), (0, 0.3)] {
            assert!(schedule(overlap_steps, drop_rate).is_ok(), "{overlap_steps} {drop_rate}");
        }
    }
}
