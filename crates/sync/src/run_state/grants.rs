//! Grants of leases: the path that a worker trains next, and the length of its lease.

use std::time::Duration;

use dipaco_topology::PathId;

use super::{Grant, RunState};
use crate::sampling::{DrawNumber, Sampling};
use crate::scheme::dynamic_steps;
use crate::{
    Fence, Lease, LeaseClaim, LeaseError, LeaseLimits, LeaseRequest, LeaseSecret, LeaseTask, ProcessId,
    Reason,
};

/// Number of draws among all open paths for a worker that leaves the drawn paths to others.
const MOST_DRAWS: u64 = 8;

impl RunState {
    /// Grants a lease to a worker: on the path that is furthest behind among the paths that can run. Among equals a
    /// path of `held` (paths whose state the worker holds) goes before the lowest number. With shard sampling, on the
    /// drawn path. Workers that were silent for the duration of a lease are forgotten first: whoever did not listen meanwhile
    /// calls [`RunState::postpone`] before.
    pub fn grant(&mut self, now: Duration, request: &LeaseRequest<'_>) -> Grant {
        let worker = request.worker;
        self.now = self.now.max(now);
        if self.finished() {
            return Grant::Finished;
        }
        self.forget(now);
        let exist = |path: &PathId| self.progress.paths.get(path).is_some();
        let held: Vec<_> = request.held.iter().copied().filter(exist).collect();
        for path in self.holders.asks(now, worker, &held) {
            self.look_at(path);
        }
        debug_assert!(self.index_agrees());
        if let Some(reason) = self.has_enough(worker) {
            return Grant::Wait(reason);
        }
        let Some((path, task)) = self.next_for(worker) else {
            return Grant::Wait(self.reason(worker));
        };
        let lease = self.draw_up(now, path, self.path(path).steps, task, request);
        self.followed.remove(&path);
        self.leases.insert(lease.clone());
        self.look_at(path);
        Grant::Lease(Box::new(lease))
    }

    /// The reason not to grant a process a further lease; `None` if it may have one.
    fn has_enough(&self, worker: &ProcessId) -> Option<Reason> {
        self.process_has_enough(worker).or_else(|| self.token_has_enough(&worker.token))
    }

    /// The reason not to grant a process a further lease, whatever its token has; `None` if it may have one.
    fn process_has_enough(&self, worker: &ProcessId) -> Option<Reason> {
        let leases = self.leases.of_process(worker);
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
        let crowded = to > from && self.is_crowded(path, worker);
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
            numerics: request.numerics.to_owned(),
            hands_over,
            crowded,
            granted: now,
            since: now,
            postponed: Duration::ZERO,
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
        if let Some(current) = self.leases.get(path)
            && self.followed.get(&path).is_some_and(|followed| claim.matches(followed))
        {
            // The worker lost the answer, and its lease has completed since then.
            return Ok(Grant::Lease(Box::new(current.clone())));
        }
        if self.leases.following(path).is_some_and(|following| following.admits(claim)) {
            // The worker already trains this lease while it uploads the results of the lease before it.
            return Ok(Grant::Wait(Reason::Follows { path }));
        }
        let lease = self.check(claim)?.clone();
        if let Some(following) = self.leases.following(path) {
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
        if let Some(reason) = self.process_has_enough(&lease.worker) {
            return Ok(Grant::Wait(reason));
        }
        if self.token_has_too_many(&lease.worker.token) {
            // The path then becomes free for a worker of another token.
            return Ok(Grant::Finished);
        }
        let receives = self.receives(path, lease.to, LeaseTask::Train);
        if let Some((receive, _)) = receives.iter().find(|(receive, needed)| receive.version < *needed) {
            return Ok(Grant::Wait(self.reason_of(receive.fragment)));
        }
        let request = LeaseRequest { worker: &lease.worker, held: &[], secret, numerics: &lease.numerics };
        let next = self.draw_up(now, path, lease.to, LeaseTask::Train, &request);
        self.leases.follow(next.clone());
        self.look_at(path);
        Ok(Grant::Lease(Box::new(next)))
    }

    /// The next path for a worker, and its task.
    fn next_for(&self, worker: &ProcessId) -> Option<(PathId, LeaseTask)> {
        let best = match &self.sampling {
            None => self.first_for(worker).map(|(steps, first)| {
                let mut held = self.holders.of(worker).filter(|&path| {
                    self.ready.place(path) == Some(steps) && !self.leaves_to_others(path, worker)
                });
                held.next().unwrap_or(first)
            }),
            Some(sampling) => self.drawn_for(worker, sampling),
        };
        let best = best.or_else(|| self.left_over_for(worker));
        best.and_then(|path| Some((path, self.ready.task(path).ok()?)))
    }

    /// A path drawn among those open to a worker. Looks at all open paths only for a worker that leaves several of them to
    /// others.
    fn drawn_for(&self, worker: &ProcessId, sampling: &Sampling) -> Option<PathId> {
        let reserved: Vec<_> = self.own(worker).filter(|&(_, path)| !self.ready.is_open(path)).collect();
        // Kept paths have taken no steps in this run.
        let (lease, taken) = (self.next_fence, self.places.taken());
        for repetition in 0..MOST_DRAWS {
            let path = sampling.draw(&reserved, taken, DrawNumber { lease, repetition })?;
            if !self.leaves_to_others(path, worker) {
                return Some(path);
            }
        }
        let mut candidates = reserved;
        candidates.extend(self.ready.open());
        candidates.retain(|&(_, path)| !self.leaves_to_others(path, worker));
        sampling.draw_among(&candidates, taken, DrawNumber { lease, repetition: MOST_DRAWS })
    }

    /// The free paths that a worker holds, with their numbers of inner steps.
    fn own<'a>(&'a self, worker: &'a ProcessId) -> impl Iterator<Item = (u64, PathId)> + 'a {
        self.holders.of(worker).filter_map(|path| Some((self.ready.place(path)?, path)))
    }

    /// The path that is furthest behind among the paths open to a worker, with its number of inner steps.
    fn first_for(&self, worker: &ProcessId) -> Option<(u64, PathId)> {
        let own = self.own(worker).filter(|&(_, path)| !self.leaves_to_others(path, worker));
        // Few paths fail, so the first open path is mostly the answer.
        own.chain(self.ready.open().find(|&(_, path)| !self.leaves_to_others(path, worker))).min()
    }

    /// True if a path is free, for whichever worker. Nobody gets a lease otherwise.
    #[must_use]
    pub fn has_free_path(&self) -> bool {
        self.ready.free().next().is_some()
    }

    /// True if a path is open to a worker whose held paths are known.
    #[must_use]
    pub fn has_work(&self, worker: &ProcessId) -> bool {
        self.first_for(worker).is_some() || self.left_over_for(worker).is_some()
    }

    /// Frees the paths of workers that were silent for the duration of a lease.
    fn forget(&mut self, now: Duration) {
        for path in self.holders.forget(now, self.plan.limits.silence) {
            self.look_at(path);
        }
        // Every process has a name of its own, so the speeds of processes that are gone would add up.
        for worker in self.holders.take_forgotten() {
            self.speeds.forget(&worker);
        }
    }

    /// True if the indexes say what a look at every path says.
    fn index_agrees(&self) -> bool {
        let looks = self.looks.get();
        let agrees = self.topology.path_ids().all(|path| {
            let open = self.ready.place(path).is_some() && !self.holders.are_waited_for(path);
            self.task(path) == self.ready.task(path)
                && self.ready.is_open(path) == open
                && self.needed.is(path, &self.needs(path))
        });
        let paths = &self.progress.paths;
        let finished = paths.values().all(|path| path.measured) == self.finished();
        let least = paths.values().map(|path| path.steps).min().unwrap_or(0) == self.least_steps();
        let trained = self.topology.trained_paths();
        let taken = trained.map(|path| paths[&path].steps).sum::<u64>() == self.places.taken();
        let end = self.end();
        let of_modules = self.topology.module_ids().all(|module| {
            let learners = self.topology.paths_through(module);
            learners.filter(|path| paths[path].steps < end).count() == self.places.in_phase(module)
        });
        let sent = self.progress.versions.iter().all(|(&fragment, &version)| {
            let mut learners = self.topology.paths_through(fragment.module);
            let slot = self.slot(fragment);
            let complete = learners.all(|path| paths[&path].sent[slot] > version);
            complete == self.sent.complete().contains(&fragment)
        });
        let mut open: Vec<_> = self.ready.open().map(|(_, path)| path).collect();
        open.sort_unstable();
        let drawn = self.sampling.as_ref().is_none_or(|sampling| sampling.open().eq(open.iter().copied()));
        self.looks.set(looks);
        agrees && drawn && finished && least && taken && of_modules && sent
    }

    /// Last inner step of a lease that starts after `from` inner steps.
    fn stop(&self, from: u64, worker: &ProcessId) -> u64 {
        if !self.plan.scheme.dynamic_steps() {
            return self.plan.schedule.next_stop(from);
        }
        let fastest = self.speeds.fastest();
        let steps = dynamic_steps(self.plan.schedule.inner_steps(), self.speed(worker, fastest), fastest);
        (from + steps).min(self.end())
    }

    /// Inner steps per second of a worker; an unmeasured worker counts as fast as the fastest.
    pub(super) fn speed(&self, worker: &ProcessId, fastest: f64) -> f64 {
        self.speeds.of(worker).unwrap_or(fastest)
    }
}
