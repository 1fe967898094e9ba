//! The state machine of a training run: leases, contributions and versions of fragments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::{PathId, Topology};

use crate::fragment_id::fragment_ids_of;
use crate::holders::Holders;
use crate::ready::Ready;
use crate::sampling::Sampling;
use crate::scheme::dynamic_steps;
use crate::{
    Contribution, Fence, FragmentId, Grace, Lease, LeaseClaim, LeaseError, LeaseLimits, LeaseRequest,
    LeaseSecret, LeaseTask, PathProgress, ProcessId, ProgressError, Quorum, Reason, Schedule, Scheme,
    TrainingProgress,
};

mod contributions;
mod current_leases;
mod hand_over;
mod outer_steps;
mod tasks;

use outer_steps::Gathering;

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

/// The answer to a worker that asks for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A lease.
    Lease(Box<Lease>),
    /// No path can be trained now.
    Wait(Reason),
    /// The run is complete.
    Finished,
}

/// The answer to a finished lease or to an outer gradient. `T` describes the accepted contributions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit<T> {
    /// It counts from now on.
    Accepted(T),
    /// It was accepted before: a retry after a lost answer, or a repetition of a lost lease's result.
    Duplicate,
    /// It does not count.
    Refused(LeaseError),
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
    /// Current leases by path: at most one per path.
    leases: BTreeMap<PathId, Lease>,
    /// Granted leases that follow a current lease on the same path.
    following: BTreeMap<PathId, Lease>,
    /// For each path, the lease that its current lease has followed.
    followed: BTreeMap<PathId, LeaseClaim>,
    /// Each path's last completed lease. It tells a retry from the worker of a lost lease.
    committed: BTreeMap<PathId, LeaseClaim>,
    next_fence: u64,
    /// Times at which the quorum of a fragment's next outer step began to gather and was complete.
    gathering: BTreeMap<FragmentId, Gathering>,
    /// Time at which each fragment's last outer step was due.
    stepped_at: BTreeMap<FragmentId, Duration>,
    grace: Grace,
    /// Inner steps per second, by worker.
    speeds: BTreeMap<ProcessId, f64>,
    /// Number of forgotten workers when `speeds` was looked through last.
    forgotten: u64,
    /// Fragments whose outer step was reported as due and is not recorded yet.
    stepping: BTreeSet<FragmentId>,
    holders: Holders,
    /// The last worker that [`RunState::hand_over`](Self) compared with a lease; the next comparison starts after it.
    compared: ProcessId,
    /// The possible task of each path.
    ready: Ready,
    /// Draws the next path in proportion to the untrained part of its shard. Without it, the path that is furthest
    /// behind is next.
    sampling: Option<Sampling>,
}

/// Speed up to which a worker counts as the fastest, as a multiple of the median speed.
const FASTEST: f64 = 16.0;

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
            forgotten: 0,
            stepping: BTreeSet::new(),
            holders: Holders::default(),
            compared: ProcessId::local(""),
            ready: Ready::default(),
            sampling: None,
        };
        rounds.look_at_all();
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
        self.leases.values()
    }

    /// The current lease of a path.
    #[must_use]
    pub fn lease(&self, path: PathId) -> Option<&Lease> {
        self.leases.get(&path)
    }

    fn path(&self, path: PathId) -> &PathProgress {
        &self.progress.paths[path.index()]
    }

    /// The fragments of a path, in the order of its counters.
    fn fragment_ids_of(&self, path: PathId) -> Vec<FragmentId> {
        fragment_ids_of(&self.topology, self.plan.schedule.fragments(), path)
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

    /// Fencing numbers of all granted leases: current leases and leases that follow them.
    pub fn fences(&self) -> impl Iterator<Item = Fence> {
        self.leases.values().chain(self.following.values()).map(|lease| lease.fence)
    }

    /// Fencing number of the next lease. Later leases have higher numbers.
    #[must_use]
    pub fn next_fence(&self) -> Fence {
        Fence(self.next_fence)
    }

    /// True if every path has taken its last step and measured its final weights.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.progress.paths.iter().all(|path| path.measured)
    }

    /// True at the end of a phase that is not the last: every path has taken the last step of the phase, and all
    /// contributions are merged.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let end = self.end();
        end < self.plan.schedule.total()
            && self.progress.paths.iter().all(|path| path.steps == end)
            && self.progress.pending.is_empty()
    }

    /// Begins `phase`: paths may train to its end.
    pub fn go_on(&mut self, phase: usize) {
        self.plan.phase = self.plan.phase.max(phase);
        self.look_at_all();
    }

    /// Binds a path to the workers that hold its newest state, or frees it. While such a worker is alive, no other
    /// worker gets a bound path.
    pub fn bind(&mut self, path: PathId, bound: bool) {
        self.holders.bind(path, bound);
        self.look_at(path);
    }

    /// Draws the next path from now on in proportion to the untrained part of its shard (arXiv:2401.09135, equation
    /// 2). `shards` holds the number of tokens of each path's shard.
    pub fn sample_shards(&mut self, seed: u64, shards: Vec<u64>) {
        self.sampling = Some(Sampling { seed, shards });
    }

    /// Grants a lease to a worker: on the path that is furthest behind among the paths that can run. Among equals a
    /// path of `held` (paths whose state the worker holds) goes before the lowest number. With shard sampling, on the
    /// drawn path.
    pub fn grant(&mut self, now: Duration, request: &LeaseRequest<'_>) -> Grant {
        let worker = request.worker;
        if self.finished() {
            return Grant::Finished;
        }
        self.forget(now);
        let exist = |path: &PathId| self.progress.paths.get(path.index()).is_some();
        let held: Vec<_> = request.held.iter().copied().filter(exist).collect();
        for path in self.holders.asks(now, worker, &held) {
            self.look_at(path);
        }
        debug_assert!(self.topology.path_ids().all(|path| self.task(path) == self.ready.task(path)));
        debug_assert!(self.topology.path_ids().all(|path| self.ready.is_open(path)
            == (self.ready.place(path).is_some() && !self.holders.are_waited_for(path))));
        if let Some(reason) = self.has_enough(worker) {
            return Grant::Wait(reason);
        }
        let Some((path, task)) = self.next_for(worker) else {
            return Grant::Wait(self.reason(worker));
        };
        let lease = self.draw_up(now, path, self.path(path).steps, task, request);
        self.followed.remove(&path);
        self.leases.insert(path, lease.clone());
        self.look_at(path);
        Grant::Lease(Box::new(lease))
    }

    /// The reason not to grant a worker a further lease; `None` if it may have one.
    fn has_enough(&self, worker: &ProcessId) -> Option<Reason> {
        let all = self.leases.values().chain(self.following.values());
        let leases = all.filter(|lease| lease.worker == *worker).count();
        (leases >= self.plan.limits.per_worker).then_some(Reason::Enough { leases })
    }

    /// A new lease on a path from inner step `from`.
    fn draw_up(
        &mut self,
        now: Duration,
        path: PathId,
        from: u64,
        task: LeaseTask,
        request: &LeaseRequest<'_>,
    ) -> Lease {
        let worker = request.worker;
        let to = match task {
            LeaseTask::Train => self.stop(from, worker),
            LeaseTask::Measure => from,
        };
        let fence = Fence(self.next_fence);
        self.next_fence += 1;
        let receives = self.receives(path, from, task).into_iter().map(|(receive, _)| receive).collect();
        let sends = if task == LeaseTask::Train { self.sends(path, from, to) } else { Vec::new() };
        let hands_over = (to > from && to < self.end()).then(|| self.hand_over(path, from, worker)).flatten();
        let LeaseLimits { silence, standstill, .. } = self.plan.limits;
        Lease {
            path,
            from,
            to,
            fence,
            task,
            receives,
            sends,
            secret: request.secret,
            worker: worker.clone(),
            hands_over,
            deadline: now.saturating_add(silence),
            taken: 0,
            stands_still: now.saturating_add(standstill),
        }
    }

    /// Grants the lease that follows a current lease on the same path, as soon as its inputs exist. The worker
    /// prefetches the inputs during training and continues without a pause. The following lease becomes current when
    /// the current lease completes, and is lost with it. Only then can a further lease follow. Returns
    /// [`Grant::Finished`] if no lease can follow before the current lease completes, or if the worker could continue
    /// with a path that is further behind.
    ///
    /// # Errors
    /// When the lease is no longer valid.
    pub fn follow(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        secret: LeaseSecret,
    ) -> Result<Grant, LeaseError> {
        let path = claim.key.path;
        if let Some(current) = self.leases.get(&path)
            && self.followed.get(&path).is_some_and(|followed| claim.matches(followed))
        {
            // The worker lost the answer, and its lease has completed since then.
            return Ok(Grant::Lease(Box::new(current.clone())));
        }
        if self.following.get(&path).is_some_and(|following| following.admits(claim)) {
            // The worker already trains this lease while it uploads the results of the lease before it.
            return Ok(Grant::Wait(Reason::Follows { path }));
        }
        let lease = self.check(claim)?.clone();
        if let Some(following) = self.following.get(&path) {
            return Ok(Grant::Lease(Box::new(following.clone())));
        }
        let goes_on = lease.task == LeaseTask::Train && lease.hands_over.is_none() && lease.to < self.end();
        if !goes_on || self.plan.schedule.overlap() == 0 {
            return Ok(Grant::Finished);
        }
        self.forget(now);
        if self.first_for(&lease.worker).is_some_and(|(steps, _)| steps < lease.to) {
            return Ok(Grant::Finished);
        }
        if let Some(reason) = self.has_enough(&lease.worker) {
            return Ok(Grant::Wait(reason));
        }
        let receives = self.receives(path, lease.to, LeaseTask::Train);
        if let Some((receive, _)) = receives.iter().find(|(receive, needed)| receive.version < *needed) {
            return Ok(Grant::Wait(self.reason_of(receive.fragment)));
        }
        let request = LeaseRequest { worker: &lease.worker, held: &[], secret };
        let next = self.draw_up(now, path, lease.to, LeaseTask::Train, &request);
        self.following.insert(path, next.clone());
        Ok(Grant::Lease(Box::new(next)))
    }

    /// The next path for a worker, and its task.
    fn next_for(&self, worker: &ProcessId) -> Option<(PathId, LeaseTask)> {
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

    /// The path that is furthest behind among the paths open to a worker, with its number of inner steps.
    fn first_for(&self, worker: &ProcessId) -> Option<(u64, PathId)> {
        let own = self.holders.of(worker).filter_map(|path| Some((self.ready.place(path)?, path)));
        own.chain(self.ready.first_open()).min()
    }

    /// True if a path is open to a worker whose held paths are known.
    #[must_use]
    pub fn has_work(&self, worker: &ProcessId) -> bool {
        self.first_for(worker).is_some()
    }

    /// Frees the paths of workers that were silent for the duration of a lease.
    fn forget(&mut self, now: Duration) {
        for path in self.holders.forget(now, self.plan.limits.silence) {
            self.look_at(path);
        }
        // Every process has a name of its own, so the speeds of processes that are gone would add up. Each grant comes
        // here, so the speeds of all workers are looked at only after somebody has left.
        let holders = &self.holders;
        if self.forgotten != holders.forgotten() {
            self.forgotten = holders.forgotten();
            self.speeds.retain(|worker, _| holders.knows(worker));
        }
    }

    /// Last inner step of a lease that starts after `from` inner steps.
    fn stop(&self, from: u64, worker: &ProcessId) -> u64 {
        if !self.plan.scheme.dynamic_steps() {
            return self.plan.schedule.next_stop(from);
        }
        let fastest = self.fastest();
        let steps = dynamic_steps(self.plan.schedule.inner_steps(), self.speed(worker, fastest), fastest);
        (from + steps).min(self.end())
    }

    /// Inner steps per second of the fastest worker, and at most [`FASTEST`] times the median. Workers state their
    /// seconds themselves: an impossible speed must not shorten the leases of all others to one step.
    fn fastest(&self) -> f64 {
        let mut speeds: Vec<f64> = self.speeds.values().copied().collect();
        speeds.sort_by(f64::total_cmp);
        let median = speeds.get(speeds.len().saturating_sub(1) / 2).copied();
        speeds.last().map_or(1.0, |&fastest| median.map_or(fastest, |median| fastest.min(FASTEST * median)))
    }

    /// Inner steps per second of a worker; an unmeasured worker counts as fast as the fastest.
    fn speed(&self, worker: &ProcessId, fastest: f64) -> f64 {
        self.speeds.get(worker).copied().unwrap_or(fastest)
    }
}

#[cfg(test)]
mod tests;
