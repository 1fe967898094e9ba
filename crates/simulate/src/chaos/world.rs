//! Virtual time, the network and the faults of a chaos run.

use std::collections::BTreeMap;
use std::time::Duration;

use dipaco_sync::{LeaseKey, ProcessId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::audit::Audit;
use super::case::Case;
use super::coordinator::{
    ChaosAnswer, ChaosReply, ChaosRequest, DiskWrite, Effect, Operation, Requester, SimulatedCoordinator,
    SimulatedDisk,
};
use super::liar::Liar;
use super::object_store::{Item, ObjectStore};
use super::worker::{ChaosWorker, WorkerAction};
use super::{Bug, Chaos};

/// Time without an answer after which a worker repeats a request.
const PATIENCE: Duration = Duration::from_millis(600);
/// Longest duration of a run, long after the last fault. A longer run is stuck.
const LONGEST: Duration = Duration::from_secs(3_000);

#[derive(Debug)]
enum ChaosEvent {
    /// A request arrives at the coordinator.
    ToCoordinator(Requester, ChaosRequest),
    /// An event of a worker's process.
    OfWorker {
        worker: usize,
        incarnation: u32,
        event: WorkerEvent,
    },
    /// The write of a coordinator has reached the disk.
    Written(u32),
    /// A coordinator has computed an outer step.
    Computed(u32, Operation),
    /// The deadline of a coordinator has passed.
    Timer(u32),
    Fault(Fault),
    /// A liar sends a message.
    Lie(usize),
    WorkerStarts(usize),
    CoordinatorStarts,
}

/// An event of a worker's process. Requests and leases have numbers at their worker.
#[derive(Debug)]
enum WorkerEvent {
    Reply(u64, ChaosReply),
    Resend(u64),
    Ask,
    Trained(u64),
    Beat(u64),
    Follow(u64),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    WorkerDies,
    WorkerPauses,
    Partition,
    CoordinatorDies,
}

/// A run and its pending events.
pub(crate) struct ChaosWorld<'a> {
    case: &'a Case,
    bug: Option<Bug>,
    random: ChaCha8Rng,
    now: Duration,
    events: BTreeMap<(Duration, u64), ChaosEvent>,
    serial: u64,
    disk: SimulatedDisk,
    coordinator: Option<SimulatedCoordinator>,
    workers: Vec<ChaosWorker>,
    liars: Vec<Liar>,
    store: ObjectStore,
    audit: Audit,
    summary: Chaos,
}

impl<'a> ChaosWorld<'a> {
    pub(crate) fn new(case: &'a Case, seed: u64, bug: Option<Bug>) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(1);
        Self {
            case,
            bug,
            random,
            now: Duration::ZERO,
            events: BTreeMap::new(),
            serial: 0,
            disk: SimulatedDisk::new(case),
            coordinator: None,
            workers: case.workers.iter().map(|_| ChaosWorker::default()).collect(),
            liars: (0..case.liars).map(Liar::new).collect(),
            store: ObjectStore::default(),
            audit: Audit::default(),
            summary: Chaos::default(),
        }
    }

    /// Plays the run to its end.
    ///
    /// # Errors
    /// The violated invariant and its virtual time.
    pub(crate) fn play(mut self) -> Result<(SimulatedDisk, Chaos), String> {
        self.after(Duration::ZERO, ChaosEvent::CoordinatorStarts);
        for worker in 0..self.workers.len() {
            self.after(Duration::ZERO, ChaosEvent::WorkerStarts(worker));
        }
        for fault in [Fault::WorkerDies, Fault::WorkerPauses, Fault::Partition, Fault::CoordinatorDies] {
            self.next_fault(fault);
        }
        for liar in 0..self.liars.len() {
            self.after(Duration::ZERO, ChaosEvent::Lie(liar));
        }
        while let Some(((now, _), event)) = self.events.pop_first() {
            self.now = now;
            self.summary.events += 1;
            if now > LONGEST {
                return Err(format!("the run does not end: {:?}", self.disk.progress));
            }
            self.handle(event).map_err(|why| format!("at {:.3} s: {why}", now.as_secs_f64()))?;
            if self.disk.progress.paths.iter().all(|path| path.measured) {
                self.summary.virtual_seconds = now.as_secs_f64();
                self.audit.ended(self.case)?;
                return Ok((self.disk, self.summary));
            }
        }
        Err("the simulation has no further event, and the run has not ended".to_owned())
    }

    fn after(&mut self, pause: Duration, event: ChaosEvent) {
        self.serial += 1;
        self.events.insert((self.now + pause, self.serial), event);
    }

    fn disturbed(&self) -> bool {
        self.now < self.case.faults.until
    }

    fn chance(&mut self, share: f64) -> bool {
        self.disturbed() && share > 0.0 && self.random.random_bool(share)
    }

    fn between(&mut self, least: u64, most: Duration) -> Duration {
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(least);
        Duration::from_micros(self.random.random_range(least..=most))
    }

    fn next_fault(&mut self, fault: Fault) {
        let faults = &self.case.faults;
        let mean = match fault {
            Fault::WorkerDies => faults.worker_crash,
            Fault::WorkerPauses => faults.worker_pause,
            Fault::Partition => faults.partition,
            Fault::CoordinatorDies => faults.coordinator_crash,
        };
        let pause = self.between(1, mean * 2);
        if self.now + pause < self.case.faults.until {
            self.after(pause, ChaosEvent::Fault(fault));
        }
    }

    /// Sends a message: it is lost, or it arrives once or twice, each time with its own delay.
    fn transmit(&mut self, worker: usize, event: impl Fn() -> ChaosEvent) {
        self.summary.messages += 1;
        let cut_off = self.workers.get(worker).is_some_and(|worker| self.now < worker.cut_off_until);
        if cut_off || self.chance(self.case.faults.lost) {
            return;
        }
        let times = if self.chance(self.case.faults.doubled) { 2 } else { 1 };
        for _ in 0..times {
            let delay = self.between(100, self.case.faults.delay);
            self.after(delay, event());
        }
    }

    fn perform(&mut self, worker: usize, actions: Vec<WorkerAction>) {
        let incarnation = self.workers[worker].incarnation;
        for action in actions {
            match action {
                WorkerAction::Call(request_number, request) => {
                    let requester = self.requester(worker, incarnation, request_number);
                    self.transmit(worker, || ChaosEvent::ToCoordinator(requester.clone(), request.clone()));
                    self.after_for(PATIENCE, worker, WorkerEvent::Resend(request_number));
                }
                WorkerAction::Train(pause, lease) => {
                    self.after_for(pause, worker, WorkerEvent::Trained(lease));
                }
                WorkerAction::Beat(pause, lease) => self.after_for(pause, worker, WorkerEvent::Beat(lease)),
                WorkerAction::AskLater(pause) => self.after_for(pause, worker, WorkerEvent::Ask),
                WorkerAction::FollowLater(pause, lease) => {
                    self.after_for(pause, worker, WorkerEvent::Follow(lease));
                }
            }
        }
    }

    /// The sender of a worker's request.
    fn requester(&self, worker: usize, incarnation: u32, request: u64) -> Requester {
        let (token, name) = ("honest".to_owned(), format!("worker-{worker}"));
        let process = ProcessId { token, name, instance: incarnation.into() };
        Requester { worker, incarnation, process, request }
    }

    /// A liar sends its next message.
    fn lie(&mut self, number: usize) {
        let leases: Vec<LeaseKey> = self
            .coordinator
            .iter()
            .flat_map(|coordinator| coordinator.run_state.leases().map(dipaco_sync::Lease::key))
            .collect();
        let request = self.liars[number].lie(self.case, &mut self.random, &leases);
        let process = self.liars[number].process.clone();
        let worker = self.workers.len() + number;
        let requester = Requester { worker, incarnation: 0, process, request: u64::MAX };
        self.transmit(worker, || ChaosEvent::ToCoordinator(requester.clone(), request.clone()));
        let pause = self.between(10_000, Duration::from_millis(200));
        if self.disturbed() {
            self.after(pause, ChaosEvent::Lie(number));
        }
    }

    /// Schedules an event of a worker's current process.
    fn after_for(&mut self, pause: Duration, worker: usize, event: WorkerEvent) {
        let incarnation = self.workers[worker].incarnation;
        self.after(pause, ChaosEvent::OfWorker { worker, incarnation, event });
    }

    /// Returns the end of the worker's pause if the event is for its current process; `None` for a dead process.
    fn paused_until(&self, worker: usize, incarnation: u32) -> Option<Duration> {
        let state = &self.workers[worker];
        (state.alive && state.incarnation == incarnation).then_some(state.paused_until)
    }

    fn handle(&mut self, event: ChaosEvent) -> Result<(), String> {
        match event {
            ChaosEvent::OfWorker { worker, incarnation, event } => {
                match self.paused_until(worker, incarnation) {
                    None => {}
                    Some(until) if until > self.now => {
                        self.after(until - self.now, ChaosEvent::OfWorker { worker, incarnation, event });
                    }
                    Some(_) => self.handle_of_worker(worker, event)?,
                }
                Ok(())
            }
            ChaosEvent::ToCoordinator(requester, request) => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.queue.push_back(Operation::Answer(requester, request));
                }
                self.run_coordinator()
            }
            ChaosEvent::Written(incarnation) if incarnation == self.disk.incarnation => {
                if let Some(write) = self.coordinator.as_mut().and_then(|c| c.writing.take())
                    && let Some(answer) = self.write(*write)?
                {
                    self.send(&answer);
                }
                self.run_coordinator()
            }
            ChaosEvent::Computed(incarnation, operation) if incarnation == self.disk.incarnation => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.queue.push_back(operation);
                }
                self.run_coordinator()
            }
            ChaosEvent::Timer(incarnation) if incarnation == self.disk.incarnation => self.run_coordinator(),
            // Events of an earlier coordinator.
            ChaosEvent::Written(_) | ChaosEvent::Computed(..) | ChaosEvent::Timer(_) => Ok(()),
            ChaosEvent::Fault(fault) => self.inject(fault),
            ChaosEvent::Lie(liar) => {
                self.lie(liar);
                Ok(())
            }
            ChaosEvent::WorkerStarts(worker) => {
                let incarnation = self.workers[worker].incarnation + 1;
                self.workers[worker] = ChaosWorker::started(incarnation);
                let actions = self.workers[worker].ask();
                self.perform(worker, actions);
                Ok(())
            }
            ChaosEvent::CoordinatorStarts => {
                let coordinator = SimulatedCoordinator::take_over(self.case, &mut self.disk, self.bug)?;
                self.coordinator = Some(coordinator);
                let disk = &self.disk;
                self.store.keep(|name| disk.refers_to(name));
                self.run_coordinator()
            }
        }
    }

    /// Handles an event of a worker that is alive and not paused.
    fn handle_of_worker(&mut self, worker: usize, event: WorkerEvent) -> Result<(), String> {
        let (case, now, bug) = (self.case, self.now, self.bug);
        match event {
            WorkerEvent::Reply(number, reply) => {
                // Before the worker forgets its request.
                let forged = self.forged_repeat(worker, number, &reply);
                let actions = self.workers[worker].receive_reply(now, case, worker, number, reply, bug)?;
                self.perform(worker, actions);
                if let Some(request) = forged {
                    let incarnation = self.workers[worker].incarnation;
                    let requester = self.requester(worker, incarnation, u64::MAX);
                    self.transmit(worker, || ChaosEvent::ToCoordinator(requester.clone(), request.clone()));
                }
            }
            WorkerEvent::Resend(number) => {
                if let Some(request) = self.workers[worker].open.get(&number).cloned() {
                    self.perform(worker, vec![WorkerAction::Call(number, request)]);
                }
            }
            WorkerEvent::Ask => {
                let actions = self.workers[worker].ask();
                self.perform(worker, actions);
            }
            WorkerEvent::Trained(lease) => {
                let actions = self.workers[worker].trained(now, case, worker, lease, bug);
                self.perform(worker, actions);
            }
            WorkerEvent::Follow(lease) => {
                let actions = self.workers[worker].follow(lease);
                self.perform(worker, actions);
            }
            WorkerEvent::Beat(lease) => {
                let actions = self.workers[worker].beat(case, worker, lease);
                self.perform(worker, actions);
            }
        }
        Ok(())
    }

    /// Audits a write, and makes it durable. Returns the answer that waited for it.
    fn write(&mut self, write: DiskWrite) -> Result<Option<ChaosAnswer>, String> {
        self.audit.written(self.case, &self.disk, &write.disk, write.merged.as_ref())?;
        self.disk = write.disk;
        write.obsolete.iter().for_each(|name| self.store.delete(name));
        Ok(write.answer)
    }

    /// Sends an answer to its worker.
    fn send(&mut self, answer: &ChaosAnswer) {
        let Requester { worker, incarnation, request, .. } = answer.to;
        if let Some(liar) = worker.checked_sub(self.workers.len()) {
            if let ChaosReply::Lease(granted) = &answer.reply {
                self.liars[liar].granted(granted.lease.key());
            }
            return;
        }
        self.transmit(worker, || {
            let event = WorkerEvent::Reply(request, answer.reply.clone());
            ChaosEvent::OfWorker { worker, incarnation, event }
        });
    }

    /// Repeats an answered request with different content. The answered request must keep its effect.
    fn forged_repeat(&mut self, worker: usize, number: u64, reply: &ChaosReply) -> Option<ChaosRequest> {
        if !matches!(reply, ChaosReply::Done) || !self.chance(self.case.faults.forged) {
            return None;
        }
        let mut request = self.workers[worker].open.get(&number)?.clone();
        match &mut request {
            ChaosRequest::Upload { item: Item::Gradient(_, gradient), .. } => gradient.values = [1e9; 3],
            ChaosRequest::Upload { item: Item::State(state), .. } => {
                state.local.iter_mut().for_each(|values| *values = [1e9; 3]);
            }
            _ => return None,
        }
        Some(request)
    }

    /// Runs the coordinator until it writes or its queue is empty.
    fn run_coordinator(&mut self) -> Result<(), String> {
        let now = self.now;
        loop {
            let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
            let begun = coordinator.look(now, &self.store)?;
            let deadline = coordinator.run_state.next_deadline();
            let next = if coordinator.writing.is_none() { coordinator.queue.pop_front() } else { None };
            let effect =
                next.map(|operation| coordinator.operate(now, operation, &self.store)).transpose()?;
            let incarnation = self.disk.incarnation;
            for operation in begun {
                let pause = self.between(100, Duration::from_millis(20));
                self.after(pause, ChaosEvent::Computed(incarnation, operation));
            }
            if let Some(deadline) = deadline.filter(|deadline| *deadline > now) {
                self.after(deadline - now, ChaosEvent::Timer(incarnation));
            }
            match effect {
                None => return Ok(()),
                Some(Effect::Write(write)) => {
                    let pause = self.between(100, self.case.faults.disk);
                    if let Some(coordinator) = &mut self.coordinator {
                        coordinator.writing = Some(write);
                    }
                    self.after(pause, ChaosEvent::Written(incarnation));
                }
                Some(Effect::Store(object, record)) => {
                    if let Operation::Record { item, .. } = &*record {
                        self.store.put(&object, item.clone().content());
                    }
                    let pause = self.between(100, self.case.faults.disk);
                    self.after(pause, ChaosEvent::Computed(incarnation, *record));
                }
                Some(Effect::Answer(answer)) => self.send(&answer),
                Some(Effect::Nothing) => {}
            }
        }
    }

    fn inject(&mut self, fault: Fault) -> Result<(), String> {
        self.summary.faults += 1;
        let worker = self.random.random_range(0..self.workers.len());
        match fault {
            Fault::WorkerDies => {
                if self.workers[worker].alive {
                    self.workers[worker].alive = false;
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, ChaosEvent::WorkerStarts(worker));
                }
            }
            Fault::WorkerPauses => {
                self.workers[worker].paused_until = self.now + self.between(1_000, Duration::from_secs(5));
            }
            Fault::Partition => {
                self.workers[worker].cut_off_until = self.now + self.between(1_000, Duration::from_secs(5));
            }
            Fault::CoordinatorDies => {
                if let Some(coordinator) = self.coordinator.take() {
                    // An unfinished write may have reached the disk or not. In both cases no worker has an answer.
                    if let Some(write) = coordinator.writing
                        && self.random.random_bool(0.5)
                    {
                        self.write(*write)?;
                    }
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, ChaosEvent::CoordinatorStarts);
                }
            }
        }
        self.next_fault(fault);
        Ok(())
    }
}
