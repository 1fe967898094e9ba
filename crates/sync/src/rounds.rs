//! The state machine of a training run: leases, contributions and the versions of units.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::{PathId, Topology};

use crate::holders::Holders;
use crate::sampling::Sampling;
use crate::scheme::dynamic_steps;
use crate::unit::units_of;
use crate::{
    Contribution, Fence, Grace, Lease, LeaseError, PathProgress, Progress, ProgressError, Quorum, Reason,
    Receive, Schedule, Scheme, Send, Task, Unit,
};

/// What a run is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// When paths send and receive, and where the phases of routing end.
    pub schedule: Schedule,
    /// Whom outer steps wait for.
    pub scheme: Scheme,
    /// The phase that the run is in; [`Rounds::go_on`] moves it.
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

/// The answer to a finished lease or to an outer gradient of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It counts from now on.
    Accepted,
    /// It had been accepted before: a retry whose first answer was lost, or what a lost lease brought.
    Duplicate,
    /// It does not count.
    Refused(LeaseError),
}

/// An outer step that can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterStep {
    /// The unit.
    pub unit: Unit,
    /// The version that it will have.
    pub version: u32,
    /// What is merged, by path and number.
    pub contributions: Vec<Contribution>,
}

/// What has been done in a lease, as its holder says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// Tokens in the outer gradients that are sent at the end of the lease; 0 for a unit that is not named.
    pub tokens: BTreeMap<Unit, u64>,
    /// Seconds of the inner steps; 0 when nothing was measured.
    pub seconds: f64,
}

/// Who may train what, what has been contributed, and which unit may step.
#[derive(Debug)]
pub struct Rounds {
    topology: Topology,
    plan: Plan,
    progress: Progress,
    /// The leases that are out, by path: at most one per path.
    leases: BTreeMap<PathId, Lease>,
    /// The fence of each path's last accepted commit, to tell a retry from a zombie.
    committed: BTreeMap<PathId, Fence>,
    next_fence: u64,
    /// When the quorum of a unit's next outer step began to gather, and when it was there.
    gathering: BTreeMap<Unit, Gathering>,
    grace: Grace,
    /// Inner steps per second, by worker.
    speeds: BTreeMap<String, f64>,
    /// Units whose outer step has been said to be due and is not written down yet.
    stepping: BTreeSet<Unit>,
    holders: Holders,
    /// Draws the next path by what its shard lacks; otherwise the one that is furthest behind is next.
    sampling: Option<Sampling>,
}

/// How far the quorum of an outer step is.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    since: Duration,
    /// When the step is taken at the latest, once the quorum is there.
    until: Option<Duration>,
}

impl Rounds {
    /// Continues from `progress`; `incarnation` must be larger than that of every coordinator before.
    ///
    /// # Errors
    /// When the progress belongs to another topology or contradicts itself.
    pub fn new(
        topology: Topology,
        plan: Plan,
        progress: Progress,
        incarnation: u32,
    ) -> Result<Self, ProgressError> {
        progress.check(&topology, &plan)?;
        let (longest, share) = match plan.scheme {
            Scheme::Synchronous => (Duration::ZERO, 0.0),
            Scheme::Quorum(Quorum { grace, grace_share, .. }) => (grace, grace_share),
        };
        let grace = Grace::new(longest, share, plan.schedule.overlap());
        Ok(Self {
            topology,
            plan,
            progress,
            leases: BTreeMap::new(),
            committed: BTreeMap::new(),
            next_fence: u64::from(incarnation) << 32,
            gathering: BTreeMap::new(),
            grace,
            speeds: BTreeMap::new(),
            stepping: BTreeSet::new(),
            holders: Holders::default(),
            sampling: None,
        })
    }

    /// What the manifest keeps.
    #[must_use]
    pub fn progress(&self) -> &Progress {
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

    fn path(&self, path: PathId) -> &PathProgress {
        &self.progress.paths[path.index()]
    }

    /// The units of a path, in the order of its counters.
    fn units_of(&self, path: PathId) -> Vec<Unit> {
        units_of(&self.topology, self.plan.schedule.fragments(), path)
    }

    /// The place of a unit among the counters of its paths.
    fn slot(&self, unit: Unit) -> usize {
        unit.slot(self.plan.schedule.fragments())
    }

    /// The step at which the current phase ends.
    fn end(&self) -> u64 {
        self.plan.schedule.end(self.plan.phase)
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
    }

    /// Says whether a path goes on at once only with a worker that holds what it was trained to. While such a worker is
    /// around, no other is given the path.
    pub fn bind(&mut self, path: PathId, bound: bool) {
        self.holders.bind(path, bound);
    }

    /// From now on paths that can go on are drawn by how much less of their shards has been trained on than of all
    /// (arXiv:2401.09135, equation 2). `shards` are the tokens of each path's shard.
    pub fn sample_shards(&mut self, seed: u64, shards: Vec<u64>) {
        self.sampling = Some(Sampling { seed, shards });
    }

    /// Another worker that a path has to wait for.
    fn holder(&self, now: Duration, path: PathId, worker: &str) -> Option<&str> {
        self.holders.other(now, path, worker, self.plan.lease)
    }

    /// Gives a worker a path to work on: of those that can run the one that is furthest behind, and among equals one
    /// of `held` (paths whose state the worker still has) before the lowest number; or the one that shard sampling draws.
    pub fn grant(&mut self, now: Duration, worker: &str, held: &[PathId]) -> Grant {
        if self.finished() {
            return Grant::Finished;
        }
        self.holders.asks(now, worker, held, self.plan.lease);
        let free = self.topology.path_ids().filter(|path| !self.leases.contains_key(path));
        let free = free.filter(|&path| self.holder(now, path, worker).is_none());
        let mut ready = free.filter_map(|path| self.task(path).ok().map(|task| (path, task)));
        let best = match &self.sampling {
            None => ready.min_by_key(|&(path, _)| (self.path(path).steps, !held.contains(&path), path)),
            Some(sampling) => {
                let ready: BTreeMap<PathId, Task> = ready.by_ref().collect();
                let candidates: Vec<PathId> = ready.keys().copied().collect();
                let steps: Vec<u64> = self.progress.paths.iter().map(|path| path.steps).collect();
                let drawn = sampling.draw(&candidates, &steps, self.next_fence);
                drawn.and_then(|path| Some((path, *ready.get(&path)?)))
            }
        };
        let Some((path, task)) = best else {
            return Grant::Wait(self.reason(now, worker));
        };
        let from = self.path(path).steps;
        let to = match task {
            Task::Train => self.stop(from, worker),
            Task::Measure => from,
        };
        let lease = Lease {
            path,
            from,
            to,
            fence: Fence(self.next_fence),
            task,
            receives: self.receives(path, task).into_iter().map(|(receive, _)| receive).collect(),
            sends: if task == Task::Train { self.sends(path, from, to) } else { Vec::new() },
            worker: worker.to_owned(),
            deadline: now + self.plan.lease,
        };
        self.next_fence += 1;
        self.leases.insert(path, lease.clone());
        Grant::Lease(lease)
    }

    /// Up to where a worker trains a path that has taken `from` steps.
    fn stop(&self, from: u64, worker: &str) -> u64 {
        if !self.plan.scheme.dynamic_steps() {
            return self.plan.schedule.next_stop(from);
        }
        let fastest = self.speeds.values().copied().reduce(f64::max).unwrap_or(0.0);
        let speed = self.speeds.get(worker).copied().unwrap_or(fastest);
        let steps = dynamic_steps(self.plan.schedule.inner_steps(), speed, fastest);
        (from + steps).min(self.end())
    }

    /// What a path takes over where it is, each with the version that must be there.
    fn receives(&self, path: PathId, task: Task) -> Vec<(Receive, u32)> {
        let from = self.path(path).steps;
        let schedule = &self.plan.schedule;
        let all = (0..schedule.fragments()).map(|fragment| (fragment, schedule.sent_through(fragment, from)));
        let due: BTreeMap<u32, u64> = if task == Task::Measure || self.plan.scheme.dynamic_steps() {
            all.collect()
        } else {
            schedule.receives(path, from).into_iter().collect()
        };
        let units = self.units_of(path).into_iter();
        units
            .filter_map(|unit| {
                let sent = u32::try_from(*due.get(&unit.fragment)?).unwrap_or(u32::MAX);
                let version = self.progress.versions[&unit];
                // Paths that wait take over exactly what came of what they sent: time has no say in it.
                let (version, needed) =
                    if self.plan.scheme.waits() { (sent.min(version), sent) } else { (version, 0) };
                Some((Receive { unit, version }, needed))
            })
            .collect()
    }

    /// What a path sends on its way from one step to another.
    #[must_use]
    pub fn sends(&self, path: PathId, from: u64, to: u64) -> Vec<Send> {
        let units = self.units_of(path);
        if self.plan.scheme.dynamic_steps() {
            // Nothing is sent before the end of a lease, so what counts is complete.
            let sent = |unit: Unit| self.path(path).sent.get(self.slot(unit)).copied().unwrap_or(0);
            return units.iter().map(|&unit| Send { unit, step: to, number: sent(unit) + 1 }).collect();
        }
        let schedule = &self.plan.schedule;
        let of = |point: crate::Point| {
            let sent = schedule.sent_through(point.fragment, point.step);
            let number = u32::try_from(sent).unwrap_or(u32::MAX);
            let units = units.iter().filter(move |unit| unit.fragment == point.fragment);
            units.map(move |&unit| Send { unit, step: point.step, number }).collect::<Vec<_>>()
        };
        let mut points = schedule.sends(from, to);
        points.retain(|point| {
            !schedule.dropped(path, point.fragment, schedule.sent_through(point.fragment, point.step))
        });
        points.into_iter().flat_map(of).collect()
    }

    /// What a path can do now, or the first unit that it waits for.
    fn task(&self, path: PathId) -> Result<Task, Option<Unit>> {
        let done = self.path(path);
        let total = self.plan.schedule.total();
        let task = if done.steps < self.end() {
            Task::Train
        } else if done.steps == total && !done.measured {
            Task::Measure
        } else {
            return Err(None);
        };
        if task == Task::Measure && !self.plan.scheme.waits() {
            // The final weights are final when all learners are at their end and everything has been merged.
            let open = |unit: &Unit| {
                self.progress.pending.contains_key(unit)
                    || self.topology.paths_through(unit.module).any(|path| self.path(path).steps < total)
            };
            return self.units_of(path).into_iter().find(open).map_or(Ok(task), |unit| Err(Some(unit)));
        }
        if !self.plan.scheme.waits() && self.plan.schedule.overlap() == 0 {
            // The outer step that is being taken is the newest a moment later.
            let stepping = self.units_of(path).into_iter().find(|unit| self.stepping.contains(unit));
            return stepping.map_or(Ok(task), |unit| Err(Some(unit)));
        }
        let receives = self.receives(path, task);
        let missing = receives.iter().find(|(receive, needed)| receive.version < *needed);
        missing.map_or(Ok(task), |(receive, _)| Err(Some(receive.unit)))
    }

    fn reason(&self, now: Duration, worker: &str) -> Reason {
        if self.at_boundary() {
            return Reason::PhaseEnds { steps: self.end() };
        }
        let idle = self.topology.path_ids().filter(|path| !self.leases.contains_key(path));
        let waiting = idle.filter_map(|path| Some((self.path(path).steps, path, self.task(path).err()??)));
        let Some((_, _, unit)) = waiting.min() else {
            let mut idle = self.topology.path_ids().filter(|path| !self.leases.contains_key(path));
            if let Some((path, holder)) =
                idle.find_map(|path| self.holder(now, path, worker).map(|holder| (path, holder)))
            {
                return Reason::Held { path, worker: holder.to_owned() };
            }
            return Reason::AllLeased { leases: self.leases.len() };
        };
        let (slot, cut) = (self.slot(unit), self.plan.schedule.fragments() > 1);
        let version = self.progress.versions[&unit];
        if self.stepping.contains(&unit) {
            return Reason::OuterStep { unit, cut };
        }
        let missing = self.topology.paths_through(unit.module).filter(|&path| {
            let done = self.path(path);
            if self.plan.scheme.waits() {
                done.sent[slot] <= version
            } else {
                done.steps < self.plan.schedule.total()
            }
        });
        let paths: Vec<_> =
            missing.take(4).map(|path| (path, self.leases.get(&path).map(|l| l.worker.clone()))).collect();
        if paths.is_empty() {
            Reason::OuterStep { unit, cut }
        } else {
            Reason::UnitWaits { unit, cut, paths }
        }
    }

    /// Renews a lease and returns its new deadline.
    ///
    /// # Errors
    /// When the lease is no longer valid: the holder must drop its work.
    pub fn heartbeat(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<Duration, LeaseError> {
        let deadline = now + self.plan.lease;
        match self.leases.get_mut(&path) {
            Some(lease) if lease.fence == fence => {
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

    /// Takes an outer gradient that is sent before the end of its lease, so that others need not wait for the rest of
    /// it. The caller has made it durable or does so before it answers. What a lease has contributed counts even when
    /// the lease is lost afterwards: its successor brings the same once more, and is told that it is a duplicate.
    pub fn contribute(&mut self, path: PathId, fence: Fence, unit: Unit, number: u32, tokens: u64) -> Commit {
        let lease = match self.check(path, fence) {
            Ok(lease) => lease,
            Err(error) => return Commit::Refused(error),
        };
        let asked = lease.sends.iter().find(|send| send.unit == unit && send.number == number);
        match asked {
            Some(send) if send.step < lease.to => {
                let lease = lease.clone();
                self.count(&lease, *send, tokens)
            }
            _ => Commit::Refused(LeaseError::NotAsked { path, fence, unit, number }),
        }
    }

    fn count(&mut self, lease: &Lease, send: Send, tokens: u64) -> Commit {
        let Lease { path, from, fence, .. } = *lease;
        let slot = self.slot(send.unit);
        let sent = self.path(path).sent[slot];
        if send.number <= sent {
            return Commit::Duplicate;
        }
        let schedule = &self.plan.schedule;
        // What is dropped is not waited for.
        let dropped = |&number: &u32| schedule.dropped(path, send.unit.fragment, u64::from(number));
        if let Some(number) = (sent + 1..send.number).find(|number| !dropped(number)) {
            return Commit::Refused(LeaseError::Owes { path, fence, unit: send.unit, number });
        }
        let received = lease.receives.iter().find(|receive| receive.unit == send.unit);
        let base = received.map_or(self.path(path).adopted[slot], |receive| receive.version);
        let steps = if self.plan.scheme.dynamic_steps() {
            send.step - from
        } else {
            schedule.steps_in(path, send.unit.fragment, send.step)
        };
        let contribution = Contribution { path, number: send.number, base, steps, tokens };
        self.progress.paths[path.index()].sent[slot] = send.number;
        let pending = self.progress.pending.entry(send.unit).or_default();
        pending.push(contribution);
        pending.sort_unstable();
        Commit::Accepted
    }

    /// Takes a finished lease, with the outer gradients that were sent at its end. The caller has made it durable or
    /// does so before it answers.
    pub fn commit(&mut self, path: PathId, fence: Fence, done: &Done) -> Commit {
        let lease = match self.check(path, fence) {
            Ok(lease) => lease.clone(),
            Err(_) if self.committed.get(&path) == Some(&fence) => return Commit::Duplicate,
            Err(error) => return Commit::Refused(error),
        };
        let early = lease.sends.iter().filter(|send| send.step < lease.to);
        for send in early {
            if self.path(path).sent[self.slot(send.unit)] < send.number {
                let (unit, number) = (send.unit, send.number);
                return Commit::Refused(LeaseError::Owes { path, fence, unit, number });
            }
        }
        for &send in lease.sends.iter().filter(|send| send.step == lease.to) {
            if let refused @ Commit::Refused(_) =
                self.count(&lease, send, done.tokens.get(&send.unit).copied().unwrap_or(0))
            {
                return refused;
            }
        }
        let slots: Vec<_> = lease.receives.iter().map(|r| (self.slot(r.unit), r.version)).collect();
        let scheduled = self.scheduled(&lease);
        let progress = &mut self.progress.paths[path.index()];
        for (sent, scheduled) in progress.sent.iter_mut().zip(scheduled) {
            // Those at the end of what was dropped.
            *sent = scheduled.max(*sent);
        }
        for (slot, version) in slots {
            progress.adopted[slot] = version;
        }
        progress.steps = lease.to;
        progress.measured |= lease.task == Task::Measure;
        if lease.to > lease.from && done.seconds > 0.0 {
            // Numbers of inner steps are far below 2^53.
            #[allow(clippy::cast_precision_loss)]
            let steps = (lease.to - lease.from) as f64;
            self.grace.inner_step(path, done.seconds / steps);
            self.speeds.insert(lease.worker.clone(), steps / done.seconds);
        }
        self.leases.remove(&path);
        self.committed.insert(path, fence);
        self.holders.trained(&lease.worker, path);
        Commit::Accepted
    }

    /// How often each unit of a lease's path has been sent by its end, or dropped.
    fn scheduled(&self, lease: &Lease) -> Vec<u32> {
        if self.plan.scheme.dynamic_steps() || lease.task == Task::Measure {
            return Vec::new();
        }
        let sent = |unit: Unit| self.plan.schedule.sent_through(unit.fragment, lease.to);
        let units = self.units_of(lease.path).into_iter();
        units.map(|unit| u32::try_from(sent(unit)).unwrap_or(u32::MAX)).collect()
    }

    /// Gives a lease back, as when its worker says good-bye or its connection is gone for good.
    pub fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.leases.get(&path).is_some_and(|lease| lease.fence == fence);
        if held {
            self.leases.remove(&path);
        }
        held
    }

    /// Ends the leases whose deadline has passed and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.leases).into_iter().partition(|(_, lease)| lease.deadline <= now);
        self.leases = kept;
        gone.into_values().collect()
    }

    /// When something happens by itself: a lease ends without a heartbeat, or a grace period is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let leases = self.leases.values().map(|lease| lease.deadline);
        leases.chain(self.gathering.values().filter_map(|gathering| gathering.until)).min()
    }

    /// The outer steps that can be taken now, in order.
    pub fn due(&mut self, now: Duration) -> Vec<OuterStep> {
        let pending = self.progress.pending.keys().copied();
        // Where outer gradients are dropped, a step may have none.
        let units: Vec<Unit> = match self.plan.schedule.drops().any() {
            true => self.progress.versions.keys().copied().collect(),
            false => pending.collect(),
        };
        units.into_iter().filter_map(|unit| self.due_step(now, unit)).collect()
    }

    fn due_step(&mut self, now: Duration, unit: Unit) -> Option<OuterStep> {
        let version = self.progress.versions[&unit] + 1;
        let pending = self.progress.pending.get(&unit).map_or(&[][..], Vec::as_slice);
        let learners: Vec<PathId> = self.topology.paths_through(unit.module).collect();
        let contributions = match self.plan.scheme {
            Scheme::Synchronous => {
                let slot = self.slot(unit);
                let of_version = pending.iter().filter(|c| c.number == version).copied();
                let all = learners.iter().all(|&path| self.path(path).sent[slot] >= version);
                all.then(|| of_version.collect())?
            }
            Scheme::Quorum(_) if pending.is_empty() => return None,
            Scheme::Quorum(quorum) => {
                let there: BTreeSet<PathId> = pending.iter().map(|c| c.path).collect();
                // Those at the end of the phase have nothing more to bring.
                let end = self.end();
                let possible =
                    learners.iter().filter(|p| there.contains(p) || self.path(**p).steps < end).count();
                let needed = (quorum.learners as usize).clamp(1, possible.max(1));
                let window = self.grace.window();
                let gathering = self.gathering.entry(unit).or_insert(Gathering { since: now, until: None });
                if there.len() < needed {
                    return None;
                }
                let since = gathering.since;
                let until = *gathering.until.get_or_insert_with(|| {
                    self.grace.quorum(now.saturating_sub(since));
                    now + window
                });
                (there.len() == possible || now >= until).then(|| pending.to_vec())?
            }
        };
        self.stepping.insert(unit);
        Some(OuterStep { unit, version, contributions })
    }

    /// Records that a unit has taken an outer step that was [`due`](Self::due), and how long that took. Returns whether
    /// it counts: not when the unit has another version by now.
    pub fn stepped(&mut self, step: &OuterStep, took: Duration) -> bool {
        let Some(version) = self.progress.versions.get_mut(&step.unit) else { return false };
        let pending = self.progress.pending.get(&step.unit).map_or(&[][..], Vec::as_slice);
        if *version + 1 != step.version || !step.contributions.iter().all(|c| pending.contains(c)) {
            return false;
        }
        let left: Vec<_> = pending.iter().filter(|c| !step.contributions.contains(c)).copied().collect();
        *version = step.version;
        if left.is_empty() {
            self.progress.pending.remove(&step.unit);
        } else {
            self.progress.pending.insert(step.unit, left);
        }
        self.gathering.remove(&step.unit);
        self.stepping.remove(&step.unit);
        self.grace.outer_step(took);
        true
    }

    /// The versions of a unit that a path may still need besides the newest: what it has taken over and trains on, and
    /// what it is to take over next.
    #[must_use]
    pub fn needed_versions(&self, unit: Unit) -> BTreeSet<u32> {
        let slot = self.slot(unit);
        let newest = self.progress.versions.get(&unit).copied().unwrap_or(0);
        let mut needed = BTreeSet::new();
        for path in self.topology.paths_through(unit.module) {
            let done = self.path(path);
            let lease = self.leases.get(&path);
            let leased = lease.and_then(|l| l.receives.iter().find(|r| r.unit == unit)).map(|r| r.version);
            needed.extend(leased);
            if done.steps == self.plan.schedule.total() {
                continue;
            }
            let next = self.receives(path, Task::Train).into_iter().find(|(r, _)| r.unit == unit);
            match next {
                Some((receive, _)) => needed.insert(receive.version),
                None => needed.insert(done.adopted[slot]),
            };
        }
        needed.remove(&newest);
        needed
    }
}

#[cfg(test)]
mod tests;
