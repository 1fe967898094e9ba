//! A worker of a simulated run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{FragmentId, LeaseKey, LeaseOutcome, LeaseTask, ScheduledReceive, fragment_ids_of};
use dipaco_topology::PathId;

use super::Bug;
use super::case::Case;
use super::coordinator::{ChaosLease, ChaosReply, ChaosRequest};
use super::object_store::Item;
use super::toy::{ToyPathState, Values};

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
    seen: BTreeMap<FragmentId, (u32, Values)>,
    /// The path that the worker trained last; it holds the state.
    held: Vec<PathId>,
}

#[derive(Debug)]
struct LeaseInTraining {
    granted: ChaosLease,
    fragments: Vec<FragmentId>,
    state: ToyPathState,
    begun: Duration,
    /// Requests of uploaded results without an acknowledgement.
    open: BTreeSet<u64>,
    /// Results that wait for the completion of the previous lease.
    waiting: Vec<ChaosRequest>,
    /// True after the last inner step.
    trained: bool,
    /// The following lease.
    following: Option<ChaosLease>,
    completing: bool,
    /// Number of the lease at its worker. Events of earlier leases are stale.
    serial: u64,
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
            let held = self.held.clone();
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
    /// If the coordinator refuses a valid request.
    pub(crate) fn receive_reply(
        &mut self,
        now: Duration,
        case: &Case,
        who: usize,
        id: u64,
        reply: ChaosReply,
        bug: Option<Bug>,
    ) -> Result<Vec<WorkerAction>, String> {
        // A doubled reply, or a reply to a request that the worker gave up with its leases.
        let Some(request) = self.open.remove(&id) else { return Ok(Vec::new()) };
        Ok(match (request, reply) {
            (_, ChaosReply::Refused(why)) => {
                return Err(format!("a valid request of a worker is refused: {why}"));
            }
            (ChaosRequest::Ask { .. }, ChaosReply::Lease(granted)) => {
                self.begin(now, case, who, *granted, bug)
            }
            (ChaosRequest::Ask { .. }, ChaosReply::Finished) => {
                self.finished = true;
                Vec::new()
            }
            (ChaosRequest::Ask { .. }, _) => vec![WorkerAction::AskLater(Duration::from_millis(40))],
            (_, ChaosReply::Lost) => self.drop_leases(),
            (ChaosRequest::Heartbeat { .. }, _) => Vec::new(),
            (ChaosRequest::Follow { lease: LeaseKey { fence, .. } }, reply) => {
                match (&mut self.current, reply) {
                    (Some(training), ChaosReply::Lease(granted)) if training.granted.lease.fence == fence => {
                        training.following = Some(*granted);
                        self.go_on(now, case, who, bug)
                    }
                    (Some(training), ChaosReply::Wait) if training.granted.lease.fence == fence => {
                        vec![WorkerAction::FollowLater(Duration::from_millis(15), training.serial)]
                    }
                    _ => Vec::new(),
                }
            }
            (ChaosRequest::Upload { .. }, _) => {
                for training in self.previous.iter_mut().chain(&mut self.current) {
                    training.open.remove(&id);
                }
                self.complete(now)
            }
            (ChaosRequest::Complete { lease, .. }, _) if self.previous.take().is_some() => {
                // The current lease counts from here on, so its results may go.
                self.held = vec![lease.path];
                let waiting = self
                    .current
                    .as_mut()
                    .map(|training| std::mem::take(&mut training.waiting))
                    .unwrap_or_default();
                let mut actions = self.contribute(waiting);
                actions.extend(self.complete(now));
                actions.extend(self.go_on(now, case, who, bug));
                actions
            }
            (ChaosRequest::Complete { lease, .. }, _) => {
                self.held = vec![lease.path];
                self.drop_leases()
            }
        })
    }

    /// Begins the following lease if the training of the current lease is done.
    fn go_on(&mut self, now: Duration, case: &Case, who: usize, bug: Option<Bug>) -> Vec<WorkerAction> {
        if self.previous.is_some() || self.current.as_ref().is_none_or(|training| !training.trained) {
            return Vec::new();
        }
        let Some(granted) = self.current.as_mut().and_then(|training| training.following.take()) else {
            return Vec::new();
        };
        self.previous = self.current.take();
        let state = self.previous.as_ref().map(|training| training.state.clone());
        let granted = ChaosLease { state: state.unwrap_or_else(|| granted.state.clone()), ..granted };
        self.begin(now, case, who, granted, bug)
    }

    pub(crate) fn follow(&mut self, serial: u64) -> Vec<WorkerAction> {
        let Some(training) = self.current.as_ref().filter(|training| training.serial == serial) else {
            return Vec::new();
        };
        let lease = training.granted.lease.key();
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

    fn contribute(&mut self, gradients: Vec<ChaosRequest>) -> Vec<WorkerAction> {
        let actions: Vec<WorkerAction> = gradients.into_iter().map(|request| self.call(request)).collect();
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
        now: Duration,
        case: &Case,
        who: usize,
        granted: ChaosLease,
        bug: Option<Bug>,
    ) -> Vec<WorkerAction> {
        let fragments = fragment_ids_of(&case.topology, case.schedule.fragments(), granted.lease.path);
        let mut state = granted.state.clone();
        let mut globals = granted.globals.clone();
        for (receive, values) in &mut globals {
            let fresh = (receive.version, *values);
            if let (Some(Bug::StaleBase), Some(old)) = (bug, self.seen.insert(receive.fragment, fresh)) {
                *receive = ScheduledReceive { fragment: receive.fragment, version: old.0 };
                *values = old.1;
            }
        }
        state.take_over(case, &granted.lease, &fragments, &globals);
        self.next += 1;
        let serial = self.next;
        let training = LeaseInTraining {
            granted,
            fragments,
            state,
            begun: now,
            open: BTreeSet::new(),
            waiting: Vec::new(),
            trained: false,
            following: None,
            completing: false,
            serial,
        };
        let measures = training.granted.lease.task == LeaseTask::Measure;
        self.current = Some(training);
        let pause = Duration::from_millis(500).div_f64(case.workers[who].clock);
        let mut actions = vec![WorkerAction::Beat(pause, serial)];
        if measures {
            actions.extend(self.end(now, case));
        } else {
            actions.extend(self.until_next(case, who));
            if case.schedule.overlap() > 0 {
                actions.push(WorkerAction::FollowLater(Duration::from_millis(5), serial));
            }
        }
        actions
    }

    /// Trains until the next send of the path or the end of the lease.
    fn until_next(&self, case: &Case, who: usize) -> Option<WorkerAction> {
        let training = self.current.as_ref()?;
        let at = training.state.step;
        let next = training.granted.lease.sends.iter().map(|send| send.step).filter(|&step| step > at).min();
        let steps = next.unwrap_or(training.granted.lease.to).min(training.granted.lease.to) - at;
        // Leases of the cases have few steps, so the conversion never saturates.
        Some(WorkerAction::Train(
            case.workers[who].step * u32::try_from(steps).unwrap_or(u32::MAX),
            training.serial,
        ))
    }

    /// Handles the end of the training up to the next send.
    pub(crate) fn trained(
        &mut self,
        now: Duration,
        case: &Case,
        who: usize,
        serial: u64,
        bug: Option<Bug>,
    ) -> Vec<WorkerAction> {
        let Some(training) = self.current.as_mut().filter(|training| training.serial == serial) else {
            return Vec::new();
        };
        let lease = training.granted.lease.clone();
        let at = training.state.step;
        let next = lease.sends.iter().map(|send| send.step).filter(|&step| step > at).min();
        let to = next.unwrap_or(lease.to).min(lease.to);
        let path = lease.path;
        training.state.train(path, to);
        let mut sent = Vec::new();
        for send in lease.sends.iter().filter(|send| send.step == to && to < lease.to) {
            if let Some(slot) = training.fragments.iter().position(|fragment| *fragment == send.fragment) {
                let gradient = training.state.send(case, path, send.fragment, slot);
                let item = Item::Gradient(*send, gradient);
                sent.push(ChaosRequest::Upload { lease: lease.key(), item });
            }
        }
        let mut actions = self.upload(sent);
        if to == lease.to {
            actions.extend(self.end(now, case));
            actions.extend(self.go_on(now, case, who, bug));
        } else {
            actions.extend(self.until_next(case, who));
        }
        actions
    }

    /// Handles the end of the lease's training.
    fn end(&mut self, now: Duration, case: &Case) -> Vec<WorkerAction> {
        let Some(training) = &mut self.current else { return Vec::new() };
        let granted = training.granted.lease.clone();
        let (path, lease) = (granted.path, granted.key());
        let mut results = Vec::new();
        for send in granted.sends.iter().filter(|send| send.step == granted.to) {
            if let Some(slot) = training.fragments.iter().position(|fragment| *fragment == send.fragment) {
                let gradient = training.state.send(case, path, send.fragment, slot);
                results.push(ChaosRequest::Upload { lease, item: Item::Gradient(*send, gradient) });
            }
        }
        if granted.task == LeaseTask::Train {
            let item = Item::State(Box::new(training.state.clone()));
            results.push(ChaosRequest::Upload { lease, item });
        }
        training.trained = true;
        let mut actions = self.upload(results);
        actions.extend(self.complete(now));
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
        let done = LeaseOutcome { seconds: (now - training.begun).as_secs_f64(), ..LeaseOutcome::default() };
        let lease = training.granted.lease.key();
        vec![self.call(ChaosRequest::Complete { lease, done })]
    }

    pub(crate) fn beat(&mut self, case: &Case, who: usize, serial: u64) -> Vec<WorkerAction> {
        let Some(training) = self.current.as_ref().filter(|training| training.serial == serial) else {
            return Vec::new();
        };
        let lease = training.granted.lease.key();
        let taken = training.state.step - training.granted.lease.from;
        let pause = Duration::from_millis(500).div_f64(case.workers[who].clock);
        vec![self.call(ChaosRequest::Heartbeat { lease, taken }), WorkerAction::Beat(pause, serial)]
    }
}
