//! A worker of a simulated run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_ledger::{LeaseReport, LeaseResult};
use dipaco_sync::{Fence, FragmentId, LeaseKey};
use dipaco_topology::PathId;

use super::Bug;
use super::case::{Case, Diverging};
use super::lease_in_training::{LeaseInTraining, send};
use super::messages::{ChaosLease, ChaosReply, ChaosRequest};
use super::object_store::Content;
use super::toy::{Beginning, ToyPathState, ToyWeights};

/// Time between two heartbeats on the worker's clock.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Memory of a worker.
#[derive(Debug, Default)]
pub(crate) struct ChaosWorker {
    /// Number of the process. A restart increases it.
    pub(crate) incarnation: u32,
    pub(crate) alive: bool,
    pub(crate) finished: bool,
    pub(crate) paused_until: Duration,
    pub(crate) cut_off_until: Duration,
    /// Requests without an answer.
    pub(crate) open: BTreeMap<u64, ChaosRequest>,
    next: u64,
    /// The previous lease: trained, but not completed.
    previous: Option<LeaseInTraining>,
    /// The lease in training.
    current: Option<LeaseInTraining>,
    /// The last received weights; only a worker with a bug uses them.
    seen: BTreeMap<FragmentId, ToyWeights>,
    /// The states of the paths that the worker trained, with the lease that made each.
    pub(super) kept: BTreeMap<PathId, (Fence, ToyPathState)>,
}

/// An action of a worker.
#[derive(Debug)]
pub(crate) enum WorkerAction {
    /// Sends a request under its number, and repeats it until the answer.
    Call(u64, ChaosRequest),
    /// Trains for this long.
    Train(Duration, u64),
    /// Sends a heartbeat after this long.
    Beat(Duration, u64),
    /// Asks for a lease after this long.
    AskLater(Duration),
    /// Asks for the following lease after this long.
    FollowLater(Duration, u64),
}

/// The world of a worker at an event.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) now: Duration,
    pub(crate) case: &'a Case,
    /// Number of the worker.
    pub(crate) worker: usize,
    pub(crate) bug: Option<Bug>,
}

impl Surroundings<'_> {
    fn heartbeat(&self) -> Duration {
        HEARTBEAT.div_f64(self.case.workers[self.worker].clock)
    }
}

impl ChaosWorker {
    /// A process at its start.
    pub(crate) fn started(incarnation: u32) -> Self {
        Self { incarnation, alive: true, ..Self::default() }
    }

    fn call(&mut self, request: ChaosRequest) -> WorkerAction {
        self.next += 1;
        self.open.insert(self.next, request.clone());
        WorkerAction::Call(self.next, request)
    }

    pub(crate) fn ask(&mut self) -> Vec<WorkerAction> {
        let asks = self.open.values().any(|request| matches!(request, ChaosRequest::Ask { .. }));
        if self.current.is_some() || asks || self.finished {
            Vec::new()
        } else {
            let held = self.kept.keys().copied().collect();
            vec![self.call(ChaosRequest::Ask { held })]
        }
    }

    fn drop_leases(&mut self) -> Vec<WorkerAction> {
        (self.current, self.previous) = (None, None);
        self.open.retain(|_, request| matches!(request, ChaosRequest::Ask { .. }));
        self.ask()
    }

    /// Processes the answer to a request.
    ///
    /// # Errors
    /// If the coordinator refuses a valid request, or grants a lease with wrong inputs.
    pub(crate) fn receive_reply(
        &mut self,
        around: Surroundings<'_>,
        id: u64,
        reply: ChaosReply,
    ) -> Result<Vec<WorkerAction>, String> {
        // A doubled reply, or a reply to a request that the worker gave up with its leases.
        let Some(request) = self.open.remove(&id) else { return Ok(Vec::new()) };
        Ok(match (request, reply) {
            (_, ChaosReply::Refused(why)) => {
                return Err(format!("a valid request of a worker is refused: {why}"));
            }
            (ChaosRequest::Ask { .. }, ChaosReply::Lease(granted)) => self.begin(around, *granted, None)?,
            (ChaosRequest::Ask { .. }, ChaosReply::Finished) => {
                self.finished = true;
                Vec::new()
            }
            (ChaosRequest::Ask { .. }, _) => vec![WorkerAction::AskLater(Duration::from_millis(40))],
            (_, ChaosReply::Lost) | (ChaosRequest::Diverged { .. }, _) => self.drop_leases(),
            (ChaosRequest::Heartbeat { .. }, _) => Vec::new(),
            (ChaosRequest::Follow { lease: LeaseKey { fence, .. } }, reply) => {
                match (&mut self.current, reply) {
                    (Some(training), ChaosReply::Lease(granted)) if training.lease.fence == fence => {
                        training.following = Some(*granted);
                        self.go_on(around)?
                    }
                    (Some(training), ChaosReply::Wait) if training.lease.fence == fence => {
                        vec![WorkerAction::FollowLater(Duration::from_millis(15), training.serial)]
                    }
                    _ => Vec::new(),
                }
            }
            (ChaosRequest::Upload { .. }, _) => {
                for training in self.previous.iter_mut().chain(&mut self.current) {
                    training.open.remove(&id);
                }
                self.complete(around.now)
            }
            (ChaosRequest::Complete { lease, .. }, _) => self.completed(around, lease)?,
        })
    }

    /// Keeps the state of a completed lease, and goes on.
    fn completed(&mut self, around: Surroundings<'_>, lease: LeaseKey) -> Result<Vec<WorkerAction>, String> {
        let Some(done) = self.previous.take() else {
            if let Some(done) = self.current.take() {
                self.kept.insert(lease.path, (lease.fence, done.state));
            }
            return Ok(self.drop_leases());
        };
        self.kept.insert(lease.path, (lease.fence, done.state));
        // The current lease counts from here on, so its results may go.
        let waiting = self.current.as_mut().map(|training| std::mem::take(&mut training.waiting));
        let mut actions = self.contribute(waiting.unwrap_or_default());
        actions.extend(self.complete(around.now));
        actions.extend(self.go_on(around)?);
        Ok(actions)
    }

    /// Begins the following lease if the training of the current lease is done.
    fn go_on(&mut self, around: Surroundings<'_>) -> Result<Vec<WorkerAction>, String> {
        if self.previous.is_some() || self.current.as_ref().is_none_or(|training| !training.trained) {
            return Ok(Vec::new());
        }
        let Some(granted) = self.current.as_mut().and_then(|training| training.following.take()) else {
            return Ok(Vec::new());
        };
        self.previous = self.current.take();
        let state = self.previous.as_ref().map(|training| training.state.clone());
        self.begin(around, granted, state)
    }

    pub(crate) fn follow(&mut self, serial: u64) -> Vec<WorkerAction> {
        let Some(training) = self.current.as_ref().filter(|training| training.serial == serial) else {
            return Vec::new();
        };
        let lease = training.lease.key();
        if training.completing { Vec::new() } else { vec![self.call(ChaosRequest::Follow { lease })] }
    }

    /// Uploads results of the lease in training, after the completion of the previous lease.
    fn upload(&mut self, results: Vec<ChaosRequest>) -> Vec<WorkerAction> {
        match (&self.previous, &mut self.current) {
            (Some(_), Some(training)) => {
                training.waiting.extend(results);
                Vec::new()
            }
            _ => self.contribute(results),
        }
    }

    fn contribute(&mut self, results: Vec<ChaosRequest>) -> Vec<WorkerAction> {
        let actions: Vec<WorkerAction> = results.into_iter().map(|request| self.call(request)).collect();
        if let Some(training) = &mut self.current {
            training.open.extend(
                actions.iter().filter_map(|action| {
                    if let WorkerAction::Call(id, _) = action { Some(*id) } else { None }
                }),
            );
        }
        actions
    }

    fn begin(
        &mut self,
        around: Surroundings<'_>,
        granted: ChaosLease,
        before: Option<ToyPathState>,
    ) -> Result<Vec<WorkerAction>, String> {
        let case = around.case;
        let (mut state, repeated) = self.start_state(case, &granted, before)?;
        let ChaosLease { lease, mut weights, .. } = granted;
        for input in weights.iter_mut().filter(|input| input.received) {
            let old = self.seen.insert(input.fragment, input.weights);
            if let (Some(Bug::StaleBase), Some(old)) = (around.bug, old) {
                input.weights = old;
            }
        }
        let begins_phase = lease.from == lease.phase_step;
        let beginning = Beginning {
            path: lease.path,
            from: lease.from,
            trains: lease.trains(),
            begins_phase,
            weights: &weights,
        };
        state.take_over(case, &beginning);
        self.next += 1;
        let serial = self.next;
        let trains = lease.trains();
        self.current = Some(LeaseInTraining {
            lease,
            weights,
            state,
            begun: around.now,
            repeated,
            open: BTreeSet::new(),
            waiting: Vec::new(),
            trained: false,
            following: None,
            completing: false,
            serial,
        });
        let mut actions = vec![WorkerAction::Beat(around.heartbeat(), serial)];
        if trains {
            actions.extend(self.until_next(around, repeated));
            if case.schedule.overlap() > 0 {
                actions.push(WorkerAction::FollowLater(Duration::from_millis(5), serial));
            }
        } else {
            actions.extend(self.end(around));
        }
        Ok(actions)
    }

    /// Trains until the next send of the path or the end of the lease, after `repeated` steps of earlier leases.
    fn until_next(&self, around: Surroundings<'_>, repeated: u64) -> Option<WorkerAction> {
        let training = self.current.as_ref()?;
        let steps = training.next_stop() - training.state.step + repeated;
        // Leases of the cases have few steps, so the conversion never saturates.
        let time = around.case.workers[around.worker].step * u32::try_from(steps).unwrap_or(u32::MAX);
        Some(WorkerAction::Train(time, training.serial))
    }

    /// Handles the end of the training up to the next send.
    pub(crate) fn trained(
        &mut self,
        around: Surroundings<'_>,
        serial: u64,
    ) -> Result<Vec<WorkerAction>, String> {
        let Some(training) = self.current.as_mut().filter(|training| training.serial == serial) else {
            return Ok(Vec::new());
        };
        let to = training.next_stop();
        let lease = &training.lease;
        if let Some(Diverging { path, after }) = around.case.diverging
            && path == lease.path
            && lease.to > after
        {
            let request = ChaosRequest::Diverged { lease: lease.key(), step: training.state.step };
            return Ok(vec![self.call(request)]);
        }
        if to == training.lease.to {
            let mut actions = self.end(around);
            actions.extend(self.go_on(around)?);
            return Ok(actions);
        }
        let sent = training.train(around.case, to);
        let mut actions = self.upload(sent);
        actions.extend(self.until_next(around, 0));
        Ok(actions)
    }

    /// Handles the end of the lease's training.
    fn end(&mut self, around: Surroundings<'_>) -> Vec<WorkerAction> {
        let Some(training) = &mut self.current else { return Vec::new() };
        let to = training.lease.to;
        let mut results = if training.lease.trains() { training.train(around.case, to) } else { Vec::new() };
        if training.lease.uploads_state {
            let content = Content::State(Box::new(training.state.clone()));
            results.push(ChaosRequest::Upload {
                lease: training.lease.key(),
                item: LeaseResult::State,
                content,
            });
        }
        training.trained = true;
        let mut actions = self.upload(results);
        actions.extend(self.complete(around.now));
        actions
    }

    /// Completes the older lease after the acknowledgement of all its results.
    fn complete(&mut self, now: Duration) -> Vec<WorkerAction> {
        let Some(training) = self.previous.as_mut().or(self.current.as_mut()) else { return Vec::new() };
        let open = !training.open.is_empty() || !training.waiting.is_empty();
        if !training.trained || training.completing || open {
            return Vec::new();
        }
        training.completing = true;
        let report = LeaseReport {
            // Any loss: it decides which versions are kept as the best.
            held_out_loss: Some(f64::from(training.state.local[0][0]).abs()),
            seconds: (now - training.begun).as_secs_f64(),
            ..LeaseReport::default()
        };
        let lease = training.lease.key();
        vec![self.call(ChaosRequest::Complete { lease, report })]
    }

    pub(crate) fn beat(&mut self, around: Surroundings<'_>, serial: u64) -> Vec<WorkerAction> {
        let Some(training) = self.current.as_ref().filter(|training| training.serial == serial) else {
            return Vec::new();
        };
        let lease = training.lease.key();
        let (taken, repeated) = (training.state.step - training.lease.from, training.repeated);
        let beat = self.call(ChaosRequest::Heartbeat { lease, taken, repeated });
        vec![beat, WorkerAction::Beat(around.heartbeat(), serial)]
    }
}

impl ChaosWorker {
    /// The state with which a lease begins, and the number of steps repeated for it: the state of the lease before, the
    /// kept state of the lease that made it, or the stored state and the leases since then, trained again.
    pub(super) fn start_state(
        &mut self,
        case: &Case,
        granted: &ChaosLease,
        before: Option<ToyPathState>,
    ) -> Result<(ToyPathState, u64), String> {
        let ChaosLease { lease, stored, replay, .. } = granted;
        // Taken out even if it does not match: another worker has trained the path since, so the kept state is old.
        let kept = self.kept.remove(&lease.path).filter(|(fence, _)| lease.made_by == Some(*fence));
        let (mut state, mut repeated) = (before.or(kept.map(|(_, state)| state)), 0);
        if state.is_none() && lease.trains() {
            let mut again = stored.clone();
            for (completed, weights) in lease.replay.iter().zip(replay) {
                let beginning = Beginning {
                    path: lease.path,
                    from: completed.from,
                    trains: true,
                    begins_phase: completed.from == lease.phase_step,
                    weights,
                };
                again.rest(case, lease.path, completed.from);
                again.take_over(case, &beginning);
                for step in completed.from + 1..=completed.to {
                    again.train(case, lease.path, step);
                    send(case, &mut again, weights, &completed.sends, step);
                }
                repeated += completed.to - completed.from;
            }
            state = Some(again);
        }
        let mut state = state.unwrap_or_else(|| stored.clone().at(lease.from));
        state.rest(case, lease.path, lease.from);
        if state.step != lease.from {
            return Err(format!(
                "path {} is at step {}, and its lease begins at {}",
                lease.path, state.step, lease.from
            ));
        }
        Ok((state, repeated))
    }
}
