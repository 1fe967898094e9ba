//! The state machine of a training run: leases, contributions and the versions of units.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::{PathId, Topology};

use crate::fragment_id::fragment_ids_of;
use crate::holders::Holders;
use crate::ready::Ready;
use crate::sampling::Sampling;
use crate::scheme::dynamic_steps;
use crate::{
    Contribution, Fence, FragmentId, Grace, Lease, LeaseError, LeaseTask, PathProgress, ProgressError,
    Quorum, Reason, Schedule, Scheme, TrainingProgress,
};

mod contributions;
mod hand_over;
mod outer_steps;
mod tasks;

use outer_steps::Gathering;

/// What a run is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPlan {
    /// When paths send and receive, and where the phases of routing end.
    pub schedule: Schedule,
    /// Whom outer steps wait for.
    pub scheme: Scheme,
    /// The phase that the run is in; [`RunState::go_on`] moves it.
    pub phase: usize,
    /// How long a lease lasts without a heartbeat.
    pub lease: Duration,
}

/// The answer to a worker that asks for work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Work on this.
    Lease(Lease),
    /// Nothing can run now.
    Wait(Reason),
    /// The run is complete.
    Finished,
}

/// The answer to a finished lease or to an outer gradient. `T` describes the accepted contributions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit<T> {
    /// It counts from now on.
    Accepted(T),
    /// It was accepted before: a retry whose first answer was lost, or a repetition of a lost lease.
    Duplicate,
    /// It does not count.
    Refused(LeaseError),
}

/// An outer step that can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterStep {
    /// The unit.
    pub fragment: FragmentId,
    /// The version that it will have.
    pub version: u32,
    /// What is merged, by path and number.
    pub contributions: Vec<Contribution>,
}

/// What has been done in a lease, as its holder says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseOutcome {
    /// Tokens in the outer gradients that are sent at the end of the lease; 0 for a unit that is not named.
    pub tokens: BTreeMap<FragmentId, u64>,
    /// Seconds of the inner steps; 0 when nothing was measured.
    pub seconds: f64,
}

/// Who may train what, what has been contributed, and which unit may step.
#[derive(Debug)]
pub struct RunState {
    topology: Topology,
    plan: RunPlan,
    progress: TrainingProgress,
    /// The leases that are out, by path: at most one per path.
    leases: BTreeMap<PathId, Lease>,
    /// The leases that come after those that are out, whose holders know them already.
    following: BTreeMap<PathId, Lease>,
    /// The lease that each path's current one has followed.
    followed: BTreeMap<PathId, Fence>,
    /// The fence of each path's last accepted commit, to tell a retry from a zombie.
    committed: BTreeMap<PathId, Fence>,
    next_fence: u64,
    /// When the quorum of a unit's next outer step began to gather, and when it was there.
    gathering: BTreeMap<FragmentId, Gathering>,
    /// When each unit's last outer step was due.
    stepped_at: BTreeMap<FragmentId, Duration>,
    grace: Grace,
    /// Inner steps per second, by worker.
    speeds: BTreeMap<String, f64>,
    /// Units whose outer step has been said to be due and is not written down yet.
    stepping: BTreeSet<FragmentId>,
    holders: Holders,
    /// The worker that the last lease was compared with at last, when it was asked whether its path changes hands.
    compared: String,
    /// What each path can do now.
    ready: Ready,
    /// Draws the next path by what its shard lacks; otherwise the one that is furthest behind is next.
    sampling: Option<Sampling>,
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
        let grace = Grace::new(longest, share, plan.schedule.overlap());
        let mut rounds = Self {
            topology,
            plan,
            progress,
            leases: BTreeMap::new(),
            following: BTreeMap::new(),
            followed: BTreeMap::new(),
            committed: BTreeMap::new(),
            next_fence: u64::from(incarnation) << 32,
            gathering: BTreeMap::new(),
            stepped_at: BTreeMap::new(),
            grace,
            speeds: BTreeMap::new(),
            stepping: BTreeSet::new(),
            holders: Holders::default(),
            compared: String::new(),
            ready: Ready::default(),
            sampling: None,
        };
        rounds.look_at_all();
        Ok(rounds)
    }

    /// What the manifest keeps.
    #[must_use]
    pub fn progress(&self) -> &TrainingProgress {
        &self.progress
    }

    /// The topology of the run.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// When paths send and receive.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.plan.schedule
    }

    /// The leases that are out.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// The lease on a path that is out.
    #[must_use]
    pub fn lease(&self, path: PathId) -> Option<&Lease> {
        self.leases.get(&path)
    }

    fn path(&self, path: PathId) -> &PathProgress {
        &self.progress.paths[path.index()]
    }

    /// The units of a path, in the order of its counters.
    fn fragment_ids_of(&self, path: PathId) -> Vec<FragmentId> {
        fragment_ids_of(&self.topology, self.plan.schedule.fragments(), path)
    }

    /// The place of a unit among the counters of its paths.
    fn slot(&self, fragment: FragmentId) -> usize {
        fragment.slot(self.plan.schedule.fragments())
    }

    /// The step at which the current phase ends.
    fn end(&self) -> u64 {
        self.plan.schedule.end(self.plan.phase)
    }

    /// Whether paths wait for each other.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.plan.scheme.waits()
    }

    /// The fencing numbers of all leases that are out, those that follow one that is trained included.
    pub fn fences(&self) -> impl Iterator<Item = Fence> {
        self.leases.values().chain(self.following.values()).map(|lease| lease.fence)
    }

    /// The fencing number of the next lease; those after it have higher ones.
    #[must_use]
    pub fn next_fence(&self) -> Fence {
        Fence(self.next_fence)
    }

    /// Whether every path has finished its last step and its final weights are measured.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.progress.paths.iter().all(|path| path.measured)
    }

    /// Whether every path has done the last step of a phase that is not the run's last, and everything has been merged.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let end = self.end();
        end < self.plan.schedule.total()
            && self.progress.paths.iter().all(|path| path.steps == end)
            && self.progress.pending.is_empty()
    }

    /// Lets the paths train to the end of `phase`: it has begun.
    pub fn go_on(&mut self, phase: usize) {
        self.plan.phase = self.plan.phase.max(phase);
        self.look_at_all();
    }

    /// Says whether a path goes on at once only with a worker that holds what it was trained to. While such a worker is
    /// around, no other is given the path.
    pub fn bind(&mut self, path: PathId, bound: bool) {
        self.holders.bind(path, bound);
        self.look_at(path);
    }

    /// From now on paths that can go on are drawn by how much less of their shards has been trained on than of all
    /// (arXiv:2401.09135, equation 2). `shards` are the tokens of each path's shard.
    pub fn sample_shards(&mut self, seed: u64, shards: Vec<u64>) {
        self.sampling = Some(Sampling { seed, shards });
    }

    /// Gives a worker a path to work on: of those that can run the one that is furthest behind, and among equals one
    /// of `held` (paths whose state the worker still has) before the lowest number; or the one that shard sampling draws.
    pub fn grant(&mut self, now: Duration, worker: &str, held: &[PathId]) -> Grant {
        if self.finished() {
            return Grant::Finished;
        }
        self.forget(now);
        for path in self.holders.asks(now, worker, held) {
            self.look_at(path);
        }
        debug_assert!(self.topology.path_ids().all(|path| self.task(path) == self.ready.task(path)));
        debug_assert!(self.topology.path_ids().all(|path| self.ready.is_open(path)
            == (self.ready.place(path).is_some() && !self.holders.are_waited_for(path))));
        let Some((path, task)) = self.next_for(worker) else {
            return Grant::Wait(self.reason(worker));
        };
        let lease = self.draw_up(path, self.path(path).steps, task, worker, now + self.plan.lease);
        self.followed.remove(&path);
        self.leases.insert(path, lease.clone());
        self.look_at(path);
        Grant::Lease(lease)
    }

    /// A new lease on a path from `from` on.
    fn draw_up(
        &mut self,
        path: PathId,
        from: u64,
        task: LeaseTask,
        worker: &str,
        deadline: Duration,
    ) -> Lease {
        let to = match task {
            LeaseTask::Train => self.stop(from, worker),
            LeaseTask::Measure => from,
        };
        let fence = Fence(self.next_fence);
        self.next_fence += 1;
        let receives = self.receives(path, from, task).into_iter().map(|(receive, _)| receive).collect();
        let sends = if task == LeaseTask::Train { self.sends(path, from, to) } else { Vec::new() };
        let hands_over = (to > from && to < self.end()).then(|| self.hand_over(path, from, worker)).flatten();
        let worker = worker.to_owned();
        Lease { path, from, to, fence, task, receives, sends, worker, hands_over, deadline }
    }

    /// The lease that comes after one that is out, as soon as what it begins with is there: its holder fetches that while
    /// it still trains, and goes on without waiting for anyone. It counts from the moment on at which the one before is
    /// complete, and is lost with it; what comes after it is known from that moment on, too. [`Grant::Finished`] when no lease can follow before the one that is out is complete,
    /// or when paths that the worker could go on with are further behind.
    ///
    /// # Errors
    /// When the lease is no longer valid.
    pub fn follow(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<Grant, LeaseError> {
        if let Some(current) = self.leases.get(&path)
            && self.followed.get(&path) == Some(&fence)
        {
            // The answer was lost, and the lease that was out then is complete.
            return Ok(Grant::Lease(current.clone()));
        }
        if self.following.get(&path).is_some_and(|following| following.fence == fence) {
            // Its holder trains it already, while it brings what the one before ends with.
            return Ok(Grant::Wait(Reason::Follows { path }));
        }
        let lease = self.check(path, fence)?.clone();
        if let Some(following) = self.following.get(&path) {
            return Ok(Grant::Lease(following.clone()));
        }
        let goes_on = lease.task == LeaseTask::Train && lease.hands_over.is_none() && lease.to < self.end();
        if !goes_on || self.plan.schedule.overlap() == 0 {
            return Ok(Grant::Finished);
        }
        self.forget(now);
        if self.first_for(&lease.worker).is_some_and(|(steps, _)| steps < lease.to) {
            return Ok(Grant::Finished);
        }
        let receives = self.receives(path, lease.to, LeaseTask::Train);
        if let Some((receive, _)) = receives.iter().find(|(receive, needed)| receive.version < *needed) {
            return Ok(Grant::Wait(self.reason_of(receive.fragment)));
        }
        let next = self.draw_up(path, lease.to, LeaseTask::Train, &lease.worker, lease.deadline);
        self.following.insert(path, next.clone());
        Ok(Grant::Lease(next))
    }

    /// The path that a worker is to go on with, and with what.
    fn next_for(&self, worker: &str) -> Option<(PathId, LeaseTask)> {
        let best = match &self.sampling {
            None => self.first_for(worker).map(|(steps, first)| {
                let mut held = self.holders.of(worker).filter(|&path| self.ready.place(path) == Some(steps));
                held.next().unwrap_or(first)
            }),
            Some(sampling) => {
                let free = self.ready.free().map(|(_, path)| path);
                let candidates: Vec<PathId> =
                    free.filter(|&path| self.holders.other(path, worker).is_none()).collect();
                let steps: Vec<u64> = self.progress.paths.iter().map(|path| path.steps).collect();
                sampling.draw(&candidates, &steps, self.next_fence)
            }
        };
        best.and_then(|path| Some((path, self.ready.task(path).ok()?)))
    }

    /// Of the paths that a worker can go on with the one that is furthest behind, and the inner steps that it has taken.
    fn first_for(&self, worker: &str) -> Option<(u64, PathId)> {
        let own = self.holders.of(worker).filter_map(|path| Some((self.ready.place(path)?, path)));
        own.chain(self.ready.first_open()).min()
    }

    /// Whether there is something to go on with for a worker that has said what it holds.
    #[must_use]
    pub fn has_work(&self, worker: &str) -> bool {
        self.first_for(worker).is_some()
    }

    /// Frees the paths of those that were not heard of for as long as a lease lasts.
    fn forget(&mut self, now: Duration) {
        for path in self.holders.forget(now, self.plan.lease) {
            self.look_at(path);
        }
    }

    /// Up to where a worker trains a path that has taken `from` steps.
    fn stop(&self, from: u64, worker: &str) -> u64 {
        if !self.plan.scheme.dynamic_steps() {
            return self.plan.schedule.next_stop(from);
        }
        let fastest = self.fastest();
        let steps = dynamic_steps(self.plan.schedule.inner_steps(), self.speed(worker, fastest), fastest);
        (from + steps).min(self.end())
    }

    /// How many inner steps the fastest worker takes in a second.
    fn fastest(&self) -> f64 {
        self.speeds.values().copied().reduce(f64::max).unwrap_or(1.0)
    }

    /// How many inner steps a worker takes in a second; one that has not been measured yet is as fast as the fastest.
    fn speed(&self, worker: &str, fastest: f64) -> f64 {
        self.speeds.get(worker).copied().unwrap_or(fastest)
    }

    /// Renews a lease and returns its new deadline.
    ///
    /// # Errors
    /// When the lease is no longer valid: the holder must drop its work.
    pub fn heartbeat(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<Duration, LeaseError> {
        let deadline = now + self.plan.lease;
        let follows = self.following.get(&path).is_some_and(|following| following.fence == fence);
        match self.leases.get_mut(&path) {
            Some(lease) if lease.fence == fence || follows => {
                lease.deadline = deadline;
                self.holders.heard(now, &lease.worker);
                Ok(deadline)
            }
            _ => Err(self.lost(path, fence)),
        }
    }

    /// Checks that `(path, fence)` is the lease that is out, as before anything of it is stored.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self, path: PathId, fence: Fence) -> Result<&Lease, LeaseError> {
        match self.leases.get(&path) {
            Some(lease) if lease.fence == fence => Ok(lease),
            _ => Err(self.lost(path, fence)),
        }
    }

    fn lost(&self, path: PathId, fence: Fence) -> LeaseError {
        match self.progress.paths.get(path.index()) {
            Some(done) => LeaseError::Lost { path, step: done.steps, fence },
            None => LeaseError::NoSuchPath { path, paths: self.topology.paths() },
        }
    }

    /// Gives a lease back, as when its worker says good-bye or its connection is gone for good; what would follow it is
    /// gone with it.
    pub fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.leases.get(&path).is_some_and(|lease| lease.fence == fence);
        if held {
            self.leases.remove(&path);
            self.following.remove(&path);
            self.look_at(path);
        }
        held
    }

    /// Ends the leases whose deadline has passed and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.leases).into_iter().partition(|(_, lease)| lease.deadline <= now);
        self.leases = kept;
        for &path in gone.keys() {
            self.following.remove(&path);
            self.look_at(path);
        }
        gone.into_values().collect()
    }

    /// When something happens by itself: a lease ends without a heartbeat, or a grace period is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let leases = self.leases.values().map(|lease| lease.deadline);
        leases.chain(self.gathering.values().filter_map(|gathering| gathering.until)).min()
    }
}

#[cfg(test)]
mod tests;
