//! The state machine of a training run: leases, contributions and versions of fragments.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::{PathId, Topology};

use crate::fragment_id::fragment_ids_of;
use crate::holders::Holders;
use crate::lease_table::LeaseTable;
use crate::places::Places;
use crate::quorums::Quorums;
use crate::ready::Ready;
use crate::sampling::Sampling;
use crate::sent_counts::SentCounts;
use crate::speeds::Speeds;
use crate::troubles::Troubles;
use crate::{
    Contribution, Fence, FragmentId, Grace, Lease, LeaseClaim, LeaseLimits, NeededVersions, PathProgress,
    ProcessId, ProgressError, Quorum, Schedule, ScheduledSend, Scheme, TrainingProgress,
};

mod answers;
mod contributions;
mod crowding;
mod current_leases;
mod grants;
mod hand_over;
mod outer_steps;
mod quarantine;
mod tasks;
mod token_limits;

pub use answers::{Commit, Grant};
pub use quarantine::FailedTraining;

/// Settings of a run that the core needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPlan {
    /// Sends and receives of a path, and ends of the phases of routing.
    pub schedule: Schedule,
    /// Rule for the contributions for which an outer step waits.
    pub scheme: Scheme,
    /// Current phase of routing; [`RunState::go_on`] advances it.
    pub phase: usize,
    /// Limits of leases.
    pub limits: LeaseLimits,
}

/// An outer gradient that a lease sends, as [`RunState::expects`] found. Only that function makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpectedSend {
    /// The path of the lease.
    pub path: PathId,
    /// Fencing number of the lease. No two leases have the same.
    pub fence: Fence,
    /// The send to which the outer gradient belongs.
    pub send: ScheduledSend,
    /// Inner steps in the outer gradient.
    pub steps: u64,
    /// Tokens in the outer gradient.
    pub tokens: u64,
}

/// An outer gradient that counts before the end of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyContribution {
    /// The contribution.
    pub contribution: Contribution,
    /// Number of inner steps of the path at the end of the lease.
    pub to: u64,
}

/// An outer step that can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterStep {
    /// The fragment.
    pub fragment: FragmentId,
    /// Version of the fragment after the step.
    pub version: u32,
    /// Contributions to merge, by path and sequence number.
    pub contributions: Vec<Contribution>,
}

/// The worker's account of a finished lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseOutcome {
    /// Tokens in the outer gradients that the lease sends at its end; 0 for an absent fragment.
    pub tokens: BTreeMap<FragmentId, u64>,
    /// Seconds of the inner steps; 0 if not measured.
    pub seconds: f64,
}

/// Current leases, accepted contributions, and fragments whose outer step is due.
#[derive(Debug)]
pub struct RunState {
    topology: Topology,
    plan: RunPlan,
    progress: TrainingProgress,
    /// The granted leases.
    leases: LeaseTable,
    /// For each path, the lease that its current lease has followed.
    followed: BTreeMap<PathId, LeaseClaim>,
    /// Each path's last completed lease. It tells a retry from the worker of a lost lease.
    committed: BTreeMap<PathId, LeaseClaim>,
    next_fence: u64,
    /// The quorums of the fragments' next outer steps.
    quorums: Quorums,
    /// Time at which each fragment's last outer step was due.
    stepped_at: BTreeMap<FragmentId, Duration>,
    grace: Grace,
    speeds: Speeds,
    /// Fragments whose outer step was reported as due and is not recorded yet.
    stepping: BTreeSet<FragmentId>,
    /// Those of them since whose report the coordinator did not run for some time.
    interrupted: BTreeSet<FragmentId>,
    holders: Holders,
    /// The last worker that [`RunState::hand_over`](Self) compared with a lease; the next comparison starts after it.
    compared: ProcessId,
    /// The possible task of each path.
    ready: Ready,
    /// Where the paths stand.
    places: Places,
    /// Versions that the paths train from or take over next.
    needed: NeededVersions,
    /// Draws the next path in proportion to the untrained part of its shard. Without it, the path that is furthest
    /// behind is next.
    sampling: Option<Sampling>,
    /// How often the paths of each fragment have sent it.
    sent: SentCounts,
    /// Paths that could go on, and do not train: [`RunState::pass_over_idle`] moves them on.
    idle: BTreeSet<PathId>,
    /// Workers of which a path has had enough.
    troubles: Troubles,
    /// The latest time of a request for a lease, a heartbeat, or a look for leases that have ended.
    now: Duration,
    /// Number of looks: the cost of requests.
    looks: Cell<u64>,
}

impl RunState {
    /// Continues from `progress`; `incarnation` must be larger than that of every coordinator before.
    ///
    /// # Errors
    /// When the progress belongs to another topology or contradicts itself.
    pub fn new(
        topology: Topology,
        plan: RunPlan,
        progress: TrainingProgress,
        incarnation: u32,
    ) -> Result<Self, ProgressError> {
        progress.check(&topology, &plan)?;
        let (longest, share) = match plan.scheme {
            Scheme::Synchronous => (Duration::ZERO, 0.0),
            Scheme::Quorum(Quorum { grace, grace_share, .. }) => (grace, grace_share),
        };
        let schedule = &plan.schedule;
        let places = Places::new(&topology, &progress.paths, schedule.total(), schedule.end(plan.phase));
        let sent = SentCounts::new(&topology, schedule.fragments(), &progress.paths, &progress.versions);
        let grace = Grace::new(longest, share, plan.schedule.overlap());
        let mut rounds = Self {
            topology,
            plan,
            progress,
            leases: LeaseTable::default(),
            followed: BTreeMap::new(),
            committed: BTreeMap::new(),
            next_fence: u64::from(incarnation) << 32,
            quorums: Quorums::default(),
            stepped_at: BTreeMap::new(),
            grace,
            speeds: Speeds::default(),
            stepping: BTreeSet::new(),
            interrupted: BTreeSet::new(),
            holders: Holders::default(),
            compared: ProcessId::local(""),
            ready: Ready::default(),
            places,
            needed: NeededVersions::default(),
            sampling: None,
            sent,
            idle: BTreeSet::new(),
            troubles: Troubles::default(),
            now: Duration::ZERO,
            looks: Cell::default(),
        };
        rounds.look_at_all();
        rounds.look_at_quorums();
        Ok(rounds)
    }

    /// The progress that the manifest records.
    #[must_use]
    pub fn progress(&self) -> &TrainingProgress {
        &self.progress
    }

    /// The topology of the run.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Schedule of sends and receives.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.plan.schedule
    }

    /// All current leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.current()
    }

    /// The current leases of the processes with a token, and with a name if one is given.
    pub fn leases_of(&self, token: &str, name: Option<&str>) -> impl Iterator<Item = &Lease> {
        self.leases.of_kin(token, name)
    }

    /// The current lease of a path.
    #[must_use]
    pub fn lease(&self, path: PathId) -> Option<&Lease> {
        self.leases.get(path)
    }

    /// Number of paths, fragments and contributions that all calls together have looked at. Tests bound it: a request holds
    /// the coordinator's lock as long as it looks.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// Adds to the number of looks.
    pub fn note_looks(&self, looks: u64) {
        self.looks.set(self.looks.get().saturating_add(looks));
    }

    fn path(&self, path: PathId) -> &PathProgress {
        self.note_looks(1);
        &self.progress.paths[&path]
    }

    /// Moves a path on to `to` inner steps, and notes its final measurement. Its counters of sends and versions have been
    /// updated.
    fn move_on(&mut self, path: PathId, to: u64, measured: bool) {
        let progress = &mut self.progress.paths[&path];
        let from = std::mem::replace(&mut progress.steps, to);
        self.places.moves(from, to);
        if measured && !std::mem::replace(&mut progress.measured, true) {
            self.places.measured();
        }
        let end = self.end();
        if from < end && to >= end {
            self.places.ends_phase(self.topology.modules_of(path));
            // No quorum waits for the path any more.
            for fragment in self.fragment_ids_of(path) {
                self.quorums.changes(fragment);
            }
        }
        let total = self.plan.schedule.total();
        let finished = if from < total && to == total {
            self.places.arrives(self.topology.modules_of(path))
        } else {
            Vec::new()
        };
        self.look_at(path);
        if !self.plan.scheme.waits() {
            // Other paths can measure their final weights once every path is at the end.
            for module in finished {
                self.look_at_learners(module);
            }
        }
    }

    /// Sets how often a path has sent a fragment.
    fn set_sent(&mut self, path: PathId, fragment: FragmentId, number: u32) {
        let slot = self.slot(fragment);
        let before = std::mem::replace(&mut self.progress.paths[&path].sent[slot], number);
        self.sent.sends(fragment, before, number, self.progress.versions[&fragment]);
    }

    /// Raises how often a path has sent its fragments to these numbers, in the order of its counters.
    fn raise_sent(&mut self, path: PathId, scheduled: Vec<u32>) {
        let fragments = self.fragment_ids_of(path).into_iter();
        for ((slot, fragment), scheduled) in fragments.enumerate().zip(scheduled) {
            let number = scheduled.max(self.progress.paths[&path].sent[slot]);
            self.set_sent(path, fragment, number);
        }
    }

    /// The fragments of a path, in the order of its counters.
    fn fragment_ids_of(&self, path: PathId) -> Vec<FragmentId> {
        fragment_ids_of(&self.topology, self.plan.schedule.fragments(), path)
    }

    /// The fragments of a path to which it contributes: those of the modules that train.
    fn trained_fragments_of(&self, path: PathId) -> impl Iterator<Item = FragmentId> {
        self.fragment_ids_of(path).into_iter().filter(|fragment| self.trains(*fragment))
    }

    /// True if a fragment takes outer steps. A fragment of a frozen level or of a kept path keeps version 0, the weights at
    /// the start of the run.
    fn trains(&self, fragment: FragmentId) -> bool {
        self.topology.module_trains(fragment.module)
    }

    /// Number of sends of a fragment by each path through it up to `step`.
    fn sent_through(&self, fragment: FragmentId, step: u64) -> u32 {
        if !self.trains(fragment) {
            return 0;
        }
        u32::try_from(self.plan.schedule.sent_through(fragment.index, step)).unwrap_or(u32::MAX)
    }

    /// Index of a fragment among the counters of its paths.
    fn slot(&self, fragment: FragmentId) -> usize {
        fragment.slot(self.plan.schedule.fragments())
    }

    /// Current phase of routing, from 0.
    #[must_use]
    pub fn phase(&self) -> usize {
        self.plan.phase
    }

    /// Last inner step of the current phase.
    fn end(&self) -> u64 {
        self.plan.schedule.end(self.plan.phase)
    }

    /// True if paths wait for each other.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.plan.scheme.waits()
    }

    /// True if a lease of a path with this fencing number is granted: a current lease, or one that follows it.
    #[must_use]
    pub fn is_granted(&self, path: PathId, fence: Fence) -> bool {
        let of_path = [self.leases.get(path), self.leases.following(path)];
        of_path.into_iter().flatten().any(|lease| lease.fence == fence)
    }

    /// True if every path has taken its last step and measured its final weights.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.places.all_measured()
    }

    /// The fewest inner steps that a path has taken.
    #[must_use]
    pub fn least_steps(&self) -> u64 {
        self.places.least()
    }

    /// True at the end of a phase that is not the last: every path has taken the last step of the phase, and all
    /// contributions are merged.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let end = self.end();
        end < self.plan.schedule.total() && self.places.all_at(end) && self.progress.pending.is_empty()
    }

    /// Begins `phase`: paths may train to its end.
    pub fn go_on(&mut self, phase: usize) {
        self.plan.phase = self.plan.phase.max(phase);
        let end = self.end();
        self.places.begin_phase(&self.topology, &self.progress.paths, end);
        self.look_at_all();
        self.look_at_quorums();
    }

    /// Binds a path to the workers that hold its newest state, or frees it. While such a worker is alive, no other
    /// worker gets a bound path.
    pub fn bind(&mut self, path: PathId, bound: bool) {
        self.holders.bind(path, bound);
        self.look_at(path);
    }

    /// Notes that a worker with this token trained a path last, under an earlier coordinator. A bound path waits only for workers
    /// that may hold its newest state.
    pub fn note_last_token(&mut self, path: PathId, token: &str) {
        self.holders.note_left_by(path, token);
    }

    /// Notes that workers with a token have contributed to the run, also under an earlier coordinator.
    pub fn note_contributor(&mut self, token: &str) {
        self.troubles.contributes(token);
    }

    /// Draws the next path from now on in proportion to the untrained part of its shard (arXiv:2401.09135, equation
    /// 2). `shards` holds the number of tokens of each path's shard.
    pub fn sample_shards(&mut self, seed: u64, mut shards: Vec<u64>) {
        let kept = self.topology.path_ids().filter(|&path| !self.topology.path_trains(path));
        // Nobody trains on the text of a kept path.
        kept.for_each(|path| shards[path.index()] = 0);
        let mut sampling = Sampling::new(seed, shards);
        self.ready.open().for_each(|(steps, path)| sampling.set_open(path, Some(steps)));
        self.sampling = Some(sampling);
    }
}

#[cfg(test)]
mod tests;
