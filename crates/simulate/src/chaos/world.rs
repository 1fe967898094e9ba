//! Virtual time, the network and the faults of a chaos run.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dipaco_ledger::WritePart;
use dipaco_sync::{Lease, LeaseKey, ProcessId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::audit::Audit;
use super::case::{Case, Habit};
use super::coordinator::SimulatedCoordinator;
use super::disk::SimulatedDisk;
use super::events::{ChaosEvent, CoordinatorEvent, Fault, WorkerEvent};
use super::liar::{HONEST, Liar};
use super::messages::{ChaosAnswer, ChaosReply, ChaosRequest, Requester};
use super::object_store::{Content, ObjectStore};
use super::pins::Pins;
use super::played_run::PlayedRun;
use super::synchronizer::SimulatedSynchronizer;
use super::worker::{ChaosWorker, Surroundings, WorkerAction};
use super::{Bug, Chaos};

mod synchronizer_process;

/// Time without an answer after which a worker repeats a request.
const PATIENCE: Duration = Duration::from_millis(600);
/// Longest time for which the reader pins the objects of one manifest.
const LONGEST_PIN: Duration = Duration::from_millis(1_500);
/// Longest duration of a run, long after the last fault. A longer run is stuck.
const LONGEST: Duration = Duration::from_secs(3_000);

/// A run and its pending events.
pub(crate) struct ChaosWorld<'a> {
    pub(super) case: &'a Case,
    pub(super) bug: Option<Bug>,
    pub(super) random: ChaCha8Rng,
    pub(super) now: Duration,
    events: BTreeMap<(Duration, u64), ChaosEvent>,
    serial: u64,
    pub(super) disk: SimulatedDisk,
    pub(super) coordinator: Option<SimulatedCoordinator>,
    /// The parts of the coordinator's write under way that are not on the disk.
    pub(super) writing: VecDeque<WritePart>,
    pub(super) workers: Vec<ChaosWorker>,
    liars: Vec<Liar>,
    pub(super) store: ObjectStore,
    pub(super) pins: Pins,
    pub(super) synchronizer: SimulatedSynchronizer,
    pub(super) audit: Audit,
    pub(super) summary: Chaos,
}

impl<'a> ChaosWorld<'a> {
    pub(crate) fn new(case: &'a Case, seed: u64, bug: Option<Bug>) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(1);
        let mut store = ObjectStore::default();
        Self {
            case,
            bug,
            random,
            now: Duration::ZERO,
            events: BTreeMap::new(),
            serial: 0,
            disk: SimulatedDisk::new(case, &mut store),
            coordinator: None,
            writing: VecDeque::new(),
            workers: case.workers.iter().map(|_| ChaosWorker::default()).collect(),
            liars: (0..case.liars).map(Liar::new).collect(),
            store,
            pins: Pins::default(),
            synchronizer: SimulatedSynchronizer::default(),
            audit: Audit::default(),
            summary: Chaos::default(),
        }
    }

    /// Plays the run to its end. Returns the disk and the store.
    ///
    /// # Errors
    /// The violated invariant and its virtual time.
    pub(crate) fn play(mut self) -> Result<PlayedRun, String> {
        self.after(Duration::ZERO, ChaosEvent::CoordinatorStarts);
        for worker in 0..self.workers.len() {
            self.after(Duration::ZERO, ChaosEvent::WorkerStarts(worker));
        }
        for fault in [Fault::WorkerDies, Fault::WorkerPauses, Fault::Partition, Fault::CoordinatorDies] {
            self.next_fault(fault);
        }
        if self.case.synchronizer.is_some() {
            self.after(Duration::ZERO, ChaosEvent::SynchronizerStarts);
            self.next_fault(Fault::SynchronizerDies);
            self.next_fault(Fault::SynchronizerHangs);
        }
        if self.case.reads {
            self.after(Duration::ZERO, ChaosEvent::ReaderPins);
        }
        for liar in 0..self.liars.len() {
            self.after(Duration::ZERO, ChaosEvent::Lie(liar));
        }
        while let Some(((now, _), event)) = self.events.pop_first() {
            self.now = now;
            self.summary.events += 1;
            if now > LONGEST {
                return Err("the run does not end".to_owned());
            }
            self.handle(event).map_err(|why| format!("at {:.3} s: {why}", now.as_secs_f64()))?;
            if self.disk.training()?.paths.iter().all(|path| path.measured) {
                self.summary.virtual_seconds = now.as_secs_f64();
                let training = self.disk.training()?.clone();
                self.audit.ended(self.case, &training)?;
                return Ok(PlayedRun { disk: self.disk, store: self.store, summary: self.summary });
            }
        }
        Err("the simulation has no further event, and the run has not ended".to_owned())
    }

    /// Schedules an event of the current coordinator.
    pub(super) fn after_for_coordinator(&mut self, pause: Duration, event: CoordinatorEvent) {
        self.after(pause, ChaosEvent::OfCoordinator(self.disk.manifest.incarnation, event));
    }

    /// Duration of a write to the disk.
    pub(super) fn disk_time(&mut self) -> Duration {
        self.between(100, self.case.faults.disk)
    }

    pub(super) fn after(&mut self, pause: Duration, event: ChaosEvent) {
        self.serial += 1;
        self.events.insert((self.now + pause, self.serial), event);
    }

    fn disturbed(&self) -> bool {
        self.now < self.case.faults.until
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.disturbed() && share > 0.0 && self.random.random_bool(share)
    }

    pub(super) fn between(&mut self, least: u64, most: Duration) -> Duration {
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(least);
        Duration::from_micros(self.random.random_range(least..=most))
    }

    /// Sends a message from or to a peer: it is lost, or it arrives once or twice, each time with its own delay.
    pub(super) fn transmit(&mut self, peer: Option<usize>, event: impl Fn() -> ChaosEvent) {
        self.summary.messages += 1;
        let worker = peer.and_then(|peer| self.workers.get(peer));
        let cut_off = worker.is_some_and(|worker| self.now < worker.cut_off_until);
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
                    let request = self.as_sent(worker, request);
                    self.liars.iter_mut().for_each(|liar| liar.overhears(request.clone()));
                    let requester = self.requester(worker, incarnation, request_number);
                    self.transmit(Some(worker), || {
                        ChaosEvent::ToCoordinator(requester.clone(), request.clone())
                    });
                    self.after_for(PATIENCE, worker, WorkerEvent::Resend(request_number));
                }
                WorkerAction::Train(..) if self.stands_still(worker) => {}
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

    /// A request as its worker sends it: some liars send a state with wrong steps.
    fn as_sent(&self, worker: usize, mut request: ChaosRequest) -> ChaosRequest {
        if self.lies(worker)
            && self.case.habit == Habit::WrongSteps
            && let ChaosRequest::Upload { content: Content::State(state), .. } = &mut request
        {
            state.step += 1;
        }
        request
    }

    /// True if a worker lies, to the end of the run.
    fn lies(&self, worker: usize) -> bool {
        worker + self.case.lying_workers >= self.workers.len()
    }

    /// True if a worker does not train any more: it has trained a lease, and holds the state of a path.
    fn stands_still(&self, worker: usize) -> bool {
        self.lies(worker) && self.case.habit == Habit::StandsStill && !self.workers[worker].kept.is_empty()
    }

    /// The world of a worker.
    fn around(&self, worker: usize) -> Surroundings<'a> {
        Surroundings { now: self.now, case: self.case, worker, bug: self.bug }
    }

    /// The sender of a worker's request.
    fn requester(&self, worker: usize, incarnation: u32, request: u64) -> Requester {
        Requester { worker, incarnation, process: self.process(worker, incarnation), request }
    }

    /// The identity of a worker's process.
    pub(super) fn process(&self, worker: usize, incarnation: u32) -> ProcessId {
        let token = if self.lies(worker) { "lying worker" } else { HONEST };
        ProcessId { token: token.to_owned(), name: format!("worker-{worker}"), instance: incarnation.into() }
    }

    /// A liar sends its next message.
    fn lie(&mut self, number: usize) {
        let leases: Vec<LeaseKey> = self
            .coordinator
            .iter()
            .flat_map(|coordinator| coordinator.ledger.state().leases().map(Lease::key))
            .collect();
        // One token alone must not put a path into quarantine once honest workers have contributed.
        let contributed = self
            .disk
            .training()
            .is_ok_and(|training| training.paths.iter().any(|path| path.contributors.contains_key(HONEST)));
        let diverges = number == 0 && contributed && self.case.quarantine_after() > 1;
        let request = self.liars[number].lie(self.case, &mut self.random, &leases, diverges);
        let process = self.liars[number].next_process(&mut self.random, &request);
        let worker = self.workers.len() + number;
        let requester = Requester { worker, incarnation: 0, process, request: u64::MAX };
        self.transmit(Some(worker), || ChaosEvent::ToCoordinator(requester.clone(), request.clone()));
        let pause = self.between(10_000, Duration::from_millis(200));
        self.after(pause, ChaosEvent::Lie(number));
    }

    /// The reader pins the objects of the manifest on the disk, in place of those that it has pinned before.
    fn reader_pins(&mut self) -> Result<(), String> {
        self.pins = Pins(self.disk.training()?.objects().cloned().collect());
        let pause = self.between(1_000, LONGEST_PIN);
        self.after(pause, ChaosEvent::ReaderPins);
        Ok(())
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
            ChaosEvent::ToCoordinator(requester, request) => self.request_arrives(&requester, request),
            ChaosEvent::OfCoordinator(incarnation, event) => {
                // Events of an earlier coordinator are void.
                if self.coordinator.is_none() || incarnation != self.disk.manifest.incarnation {
                    return Ok(());
                }
                self.handle_of_coordinator(event)
            }
            ChaosEvent::Fault(fault) => self.inject(fault),
            ChaosEvent::ConnectionEnds(process) => self.connection_ends(&process),
            ChaosEvent::FromSynchronizer(caller, request) => self.request_of_synchronizer(caller, request),
            ChaosEvent::OfSynchronizer(instance, event) => self.handle_of_synchronizer(instance, event),
            ChaosEvent::SynchronizerStarts => {
                self.synchronizer_starts();
                Ok(())
            }
            ChaosEvent::ReaderPins => self.reader_pins(),
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
            ChaosEvent::CoordinatorStarts => self.coordinator_starts(),
        }
    }

    /// Handles an event of a worker that is alive and not paused.
    fn handle_of_worker(&mut self, worker: usize, event: WorkerEvent) -> Result<(), String> {
        let around = self.around(worker);
        let actions = match event {
            WorkerEvent::Reply(number, reply) => {
                // Before the worker forgets its request.
                let forged = self.forged_repeat(worker, number, &reply);
                // A refused liar gives up.
                let reply = match reply {
                    ChaosReply::Refused(_) if self.lies(worker) => ChaosReply::Lost,
                    reply => reply,
                };
                let actions = self.workers[worker].receive_reply(around, number, reply)?;
                if let Some(request) = forged {
                    let incarnation = self.workers[worker].incarnation;
                    let requester = self.requester(worker, incarnation, u64::MAX);
                    self.transmit(Some(worker), || {
                        ChaosEvent::ToCoordinator(requester.clone(), request.clone())
                    });
                }
                actions
            }
            WorkerEvent::Resend(number) => match self.workers[worker].open.get(&number).cloned() {
                Some(request) => vec![WorkerAction::Call(number, request)],
                None => Vec::new(),
            },
            WorkerEvent::Ask => self.workers[worker].ask(),
            WorkerEvent::Trained(lease) => self.workers[worker].trained(around, lease)?,
            WorkerEvent::Follow(lease) => self.workers[worker].follow(lease),
            WorkerEvent::Beat(lease) => self.workers[worker].beat(around, lease),
        };
        self.perform(worker, actions);
        Ok(())
    }

    /// Sends an answer.
    pub(super) fn send(&mut self, answer: &ChaosAnswer) {
        let (to, reply) = match answer {
            ChaosAnswer::ToPeer(to, reply) => (to, reply),
            ChaosAnswer::ToSynchronizer(to, reply) => return self.send_to_synchronizer(to, reply),
        };
        let &Requester { worker, incarnation, request, .. } = to;
        if let Some(liar) = worker.checked_sub(self.workers.len()) {
            if let ChaosReply::Lease(granted) = reply {
                self.liars[liar].granted(granted.lease.clone());
            }
            return;
        }
        self.transmit(Some(worker), || {
            let event = WorkerEvent::Reply(request, reply.clone());
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
            ChaosRequest::Upload { content: Content::Gradient(gradient), .. } => gradient.values = [1e9; 3],
            ChaosRequest::Upload { content: Content::State(state), .. } => {
                state.local.iter_mut().for_each(|values| *values = [1e9; 3]);
            }
            _ => return None,
        }
        Some(request)
    }
}
