//! Time, the network and everything that goes wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::audit::Audit;
use super::case::Case;
use super::coordinator::{Asker, Coordinator, Disk, Operation, Reply, Request};
use super::worker::{Act, Worker};
use super::{Bug, Chaos};

/// A request that has not been answered for this long is sent again.
const PATIENCE: Duration = Duration::from_millis(600);
/// A run that has not ended by then, long after the last fault, is stuck.
const LONGEST: Duration = Duration::from_secs(3_000);

#[derive(Debug)]
enum Event {
    ToCoordinator(Asker, Request),
    ToWorker(Asker, Reply),
    Resend(usize, u32, u64),
    Ask(usize, u32),
    Trained(usize, u32, u64),
    Beat(usize, u32, u64),
    Follow(usize, u32, u64),
    Written(u32),
    Computed(u32, Operation),
    Timer(u32),
    Fault(Fault),
    WorkerStarts(usize),
    CoordinatorStarts,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    WorkerDies,
    WorkerPauses,
    Partition,
    CoordinatorDies,
}

/// A run and what happens to it.
pub(crate) struct World<'a> {
    case: &'a Case,
    bug: Option<Bug>,
    random: ChaCha8Rng,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    disk: Disk,
    coordinator: Option<Coordinator>,
    workers: Vec<Worker>,
    audit: Audit,
    told: Chaos,
}

impl<'a> World<'a> {
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
            disk: Disk::new(case),
            coordinator: None,
            workers: case.workers.iter().map(|_| Worker::default()).collect(),
            audit: Audit::default(),
            told: Chaos::default(),
        }
    }

    /// Plays the run to its end.
    ///
    /// # Errors
    /// What did not hold, and when.
    pub(crate) fn play(mut self) -> Result<(Disk, Chaos), String> {
        self.after(Duration::ZERO, Event::CoordinatorStarts);
        for worker in 0..self.workers.len() {
            self.after(Duration::ZERO, Event::WorkerStarts(worker));
        }
        for fault in [Fault::WorkerDies, Fault::WorkerPauses, Fault::Partition, Fault::CoordinatorDies] {
            self.next_fault(fault);
        }
        while let Some(((now, _), event)) = self.events.pop_first() {
            self.now = now;
            self.told.events += 1;
            if now > LONGEST {
                return Err(format!("the run does not end: {:?}", self.disk.progress));
            }
            self.happen(event).map_err(|why| format!("at {:.3} s: {why}", now.as_secs_f64()))?;
            if self.disk.progress.paths.iter().all(|path| path.measured) {
                self.told.virtual_seconds = now.as_secs_f64();
                self.audit.ended(self.case)?;
                return Ok((self.disk, self.told));
            }
        }
        Err("nothing happens any more".to_owned())
    }

    fn after(&mut self, pause: Duration, event: Event) {
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
            self.after(pause, Event::Fault(fault));
        }
    }

    /// Puts a message on its way, if it gets there: once or twice, each time after a time of its own.
    fn transmit(&mut self, worker: usize, event: impl Fn() -> Event) {
        self.told.messages += 1;
        if self.now < self.workers[worker].cut_off_until || self.chance(self.case.faults.lost) {
            return;
        }
        let times = if self.chance(self.case.faults.doubled) { 2 } else { 1 };
        for _ in 0..times {
            let delay = self.between(100, self.case.faults.delay);
            self.after(delay, event());
        }
    }

    fn act(&mut self, worker: usize, acts: Vec<Act>) {
        let incarnation = self.workers[worker].incarnation;
        for act in acts {
            match act {
                Act::Call(id, request) => {
                    self.transmit(worker, || {
                        Event::ToCoordinator((worker, incarnation, id), request.clone())
                    });
                    self.after(PATIENCE, Event::Resend(worker, incarnation, id));
                }
                Act::Train(pause, serial) => self.after(pause, Event::Trained(worker, incarnation, serial)),
                Act::Beat(pause, serial) => self.after(pause, Event::Beat(worker, incarnation, serial)),
                Act::AskLater(pause) => self.after(pause, Event::Ask(worker, incarnation)),
                Act::FollowLater(pause, serial) => {
                    self.after(pause, Event::Follow(worker, incarnation, serial));
                }
            }
        }
    }

    /// Whether an event of a worker is for the process that runs; one of a stopped process waits until it goes on.
    fn reaches(&mut self, worker: usize, incarnation: u32) -> Option<Duration> {
        let state = &self.workers[worker];
        (state.alive && state.incarnation == incarnation).then_some(state.paused_until)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        if let Event::ToWorker((worker, incarnation, _), _)
        | Event::Resend(worker, incarnation, _)
        | Event::Ask(worker, incarnation)
        | Event::Trained(worker, incarnation, _)
        | Event::Follow(worker, incarnation, _)
        | Event::Beat(worker, incarnation, _) = &event
        {
            match self.reaches(*worker, *incarnation) {
                None => return Ok(()),
                Some(until) if until > self.now => {
                    self.after(until - self.now, event);
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        let (case, now) = (self.case, self.now);
        match event {
            Event::ToCoordinator(asker, request) => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.queue.push_back(Operation::Answer(asker, request));
                }
                return self.work_off();
            }
            Event::ToWorker((worker, _, id), reply) => {
                let lie = self.lie(worker, id, &reply);
                let heard = self.workers[worker].hear(now, case, worker, id, reply, self.bug)?;
                self.act(worker, heard);
                if let Some(request) = lie {
                    let asker = (worker, self.workers[worker].incarnation, u64::MAX);
                    self.transmit(worker, || Event::ToCoordinator(asker, request.clone()));
                }
            }
            Event::Resend(worker, _, id) => {
                if let Some(request) = self.workers[worker].open.get(&id).cloned() {
                    self.act(worker, vec![Act::Call(id, request)]);
                }
            }
            Event::Ask(worker, _) => {
                let acts = self.workers[worker].ask();
                self.act(worker, acts);
            }
            Event::Trained(worker, _, serial) => {
                let acts = self.workers[worker].trained(now, case, worker, serial, self.bug);
                self.act(worker, acts);
            }
            Event::Follow(worker, _, serial) => {
                let acts = self.workers[worker].follow(serial);
                self.act(worker, acts);
            }
            Event::Beat(worker, _, serial) => {
                let acts = self.workers[worker].beat(case, worker, serial);
                self.act(worker, acts);
            }
            Event::Written(incarnation) if incarnation == self.disk.incarnation => {
                if let Some(writing) = self.coordinator.as_mut().and_then(|c| c.writing.take()) {
                    self.audit.written(case, &self.disk, &writing.disk, writing.step.as_ref())?;
                    self.disk = writing.disk;
                    if let Some((asker, reply)) = writing.reply {
                        self.transmit(asker.0, || Event::ToWorker(asker, reply.clone()));
                    }
                }
                return self.work_off();
            }
            Event::Computed(incarnation, operation) if incarnation == self.disk.incarnation => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.queue.push_back(operation);
                }
                return self.work_off();
            }
            Event::Timer(incarnation) if incarnation == self.disk.incarnation => return self.work_off(),
            // Of a coordinator that is gone.
            Event::Written(_) | Event::Computed(..) | Event::Timer(_) => {}
            Event::Fault(fault) => self.strike(fault)?,
            Event::WorkerStarts(worker) => {
                let incarnation = self.workers[worker].incarnation + 1;
                self.workers[worker] = Worker::started(incarnation);
                let acts = self.workers[worker].ask();
                self.act(worker, acts);
            }
            Event::CoordinatorStarts => {
                self.coordinator = Some(Coordinator::take_over(case, &mut self.disk, self.bug)?);
                return self.work_off();
            }
        }
        Ok(())
    }

    /// The request that an answer belongs to, once more and with another content: what was answered must stand.
    fn lie(&mut self, worker: usize, id: u64, reply: &Reply) -> Option<Request> {
        if !matches!(reply, Reply::Done) || !self.chance(self.case.faults.lies) {
            return None;
        }
        let mut request = self.workers[worker].open.get(&id)?.clone();
        match &mut request {
            Request::Contribute { gradient, .. } => gradient.values = [1e9; 3],
            Request::Complete { last, state, .. } => {
                last.iter_mut().for_each(|(_, gradient)| gradient.values = [1e9; 3]);
                state.local.iter_mut().for_each(|values| *values = [1e9; 3]);
            }
            Request::Ask | Request::Follow { .. } | Request::Heartbeat { .. } => return None,
        }
        Some(request)
    }

    /// Lets the coordinator do what it has to do, until it writes or nothing is left.
    fn work_off(&mut self) -> Result<(), String> {
        let now = self.now;
        loop {
            let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
            let begun = coordinator.look(now)?;
            let deadline = coordinator.rounds.next_deadline();
            let next = if coordinator.writing.is_none() { coordinator.queue.pop_front() } else { None };
            let done = next.map(|operation| coordinator.operate(now, operation));
            let incarnation = self.disk.incarnation;
            for operation in begun {
                let pause = self.between(100, Duration::from_millis(20));
                self.after(pause, Event::Computed(incarnation, operation));
            }
            if let Some(deadline) = deadline.filter(|deadline| *deadline > now) {
                self.after(deadline - now, Event::Timer(incarnation));
            }
            match done {
                None => return Ok(()),
                Some(Ok(writing)) => {
                    let pause = self.between(100, self.case.faults.disk);
                    if let Some(coordinator) = &mut self.coordinator {
                        coordinator.writing = Some(writing);
                    }
                    self.after(pause, Event::Written(incarnation));
                }
                Some(Err(Some((asker, reply)))) => {
                    self.transmit(asker.0, || Event::ToWorker(asker, reply.clone()));
                }
                Some(Err(None)) => {}
            }
        }
    }

    fn strike(&mut self, fault: Fault) -> Result<(), String> {
        self.told.faults += 1;
        let worker = self.random.random_range(0..self.workers.len());
        match fault {
            Fault::WorkerDies => {
                if self.workers[worker].alive {
                    self.workers[worker].alive = false;
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, Event::WorkerStarts(worker));
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
                    // What was being written is there or is not; nobody has been told.
                    if let Some(writing) = coordinator.writing
                        && self.random.random_bool(0.5)
                    {
                        self.audit.written(self.case, &self.disk, &writing.disk, writing.step.as_ref())?;
                        self.disk = writing.disk;
                    }
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, Event::CoordinatorStarts);
                }
            }
        }
        self.next_fault(fault);
        Ok(())
    }
}
