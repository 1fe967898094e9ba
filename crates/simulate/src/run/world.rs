//! Virtual time: what happens when, and what the core makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{
    Commit, Fence, FragmentId, Grant, LeaseError, LeaseOutcome, OuterStep, RunPlan, RunState, ScheduledSend,
    TrainingProgress,
};
use dipaco_topology::{PathId, Topology, TopologyConfig};

use super::chips::{Incident, OwnChips};
use super::learner::Learner;
use super::tally::Tally;
use super::{LargeRun, Played};
use crate::SimulateError;

/// The most events that are played.
const MOST_EVENTS: u64 = 200_000_000;
/// How long a lease lasts without a heartbeat, in seconds: production's default.
const LEASE: f64 = 60.0;
/// Inner steps without a heartbeat that a lease lasts at least.
const LEASE_STEPS: f64 = 10.0;

#[derive(Debug)]
enum Event {
    /// A learner is where it aimed at.
    Reached(usize, u64),
    /// What it sent early has arrived.
    Arrived(usize, Fence, ScheduledSend),
    /// Everything of a lease has arrived.
    Finished(usize, Fence),
    /// Something happens to its chips.
    Chips(usize),
    /// It goes on after a stop.
    GoesOn(usize, u32),
    /// It is there again.
    Returns(usize, u32),
    /// An outer step has been taken.
    Stepped(OuterStep),
    /// The core has asked to be looked at.
    Timer,
}

/// When it has been played for long enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    /// After this time.
    At(Duration),
    /// When every learner has begun a lease from this step on.
    Step(u64),
}

/// A run in virtual time.
#[derive(Debug)]
pub(crate) struct World<'a> {
    run: &'a LargeRun,
    rounds: RunState,
    learners: Vec<Learner>,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    timer: Option<Duration>,
    computing: BTreeSet<FragmentId>,
    end: End,
    /// Learners that have not begun a lease from the step of the end on.
    before_end: BTreeSet<usize>,
    tally: Tally,
}

impl<'a> World<'a> {
    /// `from` says from when on it is measured.
    pub(crate) fn new(run: &'a LargeRun, from: Duration, end: End) -> Result<Self, SimulateError> {
        let refused = |problem| SimulateError::Learners { learners: run.learners, problem };
        let config = TopologyConfig { replicas: run.learners, ..TopologyConfig::dense(1) };
        let topology = Topology::new(&config, 1).map_err(|error| refused(error.to_string()))?;
        let schedule = run.scheme.schedule()?;
        let progress = TrainingProgress::start(&topology, schedule.fragments());
        let lease = Duration::try_from_secs_f64(LEASE.max(LEASE_STEPS * run.step_seconds));
        let lease = lease.map_err(|error| refused(error.to_string()))?;
        let plan = RunPlan { schedule, scheme: run.scheme.sync.scheme(), phase: 0, lease };
        let paths = topology.path_ids();
        let mut rounds = RunState::new(topology, plan, progress, 0)?;
        paths.for_each(|path| rounds.bind(path, run.state_stays));
        Ok(Self {
            run,
            rounds,
            learners: (0..run.learners).map(|number| Learner::new(run, number)).collect(),
            now: Duration::ZERO,
            events: BTreeMap::new(),
            serial: 0,
            timer: None,
            computing: BTreeSet::new(),
            end,
            before_end: (0..run.learners as usize).collect(),
            tally: Tally::new(from),
        })
    }

    pub(crate) fn play(mut self) -> Result<Played, SimulateError> {
        for who in 0..self.learners.len() {
            self.await_chips(who);
            self.ask(who);
        }
        let mut played = 0u64;
        while !self.ended() {
            let next = self.events.pop_first();
            let end = if let End::At(end) = self.end { Some(end) } else { None };
            let ((now, _), event) = match (next, end) {
                (Some(((now, _), _)), Some(end)) if now >= end => break,
                (None, Some(_)) => break,
                (None, None) => return Err(SimulateError::Stuck { seconds: self.now.as_secs_f64() }),
                (Some(next), _) => next,
            };
            played += 1;
            if played > MOST_EVENTS {
                return Err(SimulateError::TooLong { events: MOST_EVENTS });
            }
            let looked = matches!(event, Event::Timer);
            self.now = now;
            self.happen(event)?;
            // Where nothing else is to happen, heartbeats change nothing any more.
            if !looked || !self.events.is_empty() {
                self.wind();
            }
        }
        if let End::At(end) = self.end {
            self.now = end;
        }
        for learner in &mut self.learners {
            learner.account(self.now, self.tally.from);
        }
        Ok(self.tally.tell(self.now, &self.learners))
    }

    fn ended(&self) -> bool {
        matches!(self.end, End::Step(_)) && self.before_end.is_empty()
    }

    /// Lets something happen so many seconds from now; never, when time is not counted for so long.
    fn after(&mut self, seconds: f64, event: Event) {
        let at =
            Duration::try_from_secs_f64(seconds.max(0.0)).ok().and_then(|pause| self.now.checked_add(pause));
        if let Some(at) = at {
            self.serial += 1;
            self.events.insert((at, self.serial), event);
        }
    }

    /// The core is looked at when it has said so.
    fn wind(&mut self) {
        let Some(deadline) = self.rounds.next_deadline() else { return };
        if self.timer.is_none_or(|timer| deadline < timer) {
            self.serial += 1;
            self.events.insert((deadline, self.serial), Event::Timer);
            self.timer = Some(deadline);
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), SimulateError> {
        match event {
            Event::Reached(who, serial) => {
                if self.learners[who].serial == serial {
                    self.reached(who)?;
                }
            }
            Event::Arrived(who, fence, send) => self.contribute(who, fence, send)?,
            Event::Finished(who, fence) => self.complete(who, fence)?,
            Event::Chips(who) => self.chips(who),
            Event::GoesOn(who, process) => {
                if self.learners[who].process == process {
                    self.learners[who].stopped = false;
                    self.go(who);
                    self.ask(who);
                }
            }
            Event::Returns(who, process) => {
                if self.learners[who].process == process {
                    self.learners[who].alive = true;
                    // Leases of an earlier process of a name are free: that process is gone.
                    if let Some((path, fence)) = self.learners[who].left.take() {
                        self.rounds.release(path, fence);
                    }
                    self.ask(who);
                    self.wake();
                }
            }
            Event::Stepped(step) => {
                self.stepped(&step);
                self.step();
            }
            // Another one has been set for an earlier time since.
            Event::Timer if self.timer != Some(self.now) => {}
            Event::Timer => {
                self.timer = None;
                self.beat();
                if !self.rounds.expire(self.now).is_empty() {
                    self.wake();
                }
                self.step();
            }
        }
        Ok(())
    }

    /// Everyone who lives says so.
    fn beat(&mut self) {
        for learner in self.learners.iter().filter(|learner| learner.alive) {
            if let Some(job) = &learner.job {
                // Whoever has lost its lease learns so when it brings something.
                let _lost = self.rounds.heartbeat(self.now, job.lease.path, job.lease.fence);
            }
        }
    }

    /// A learner asks for work, if it can do any.
    fn ask(&mut self, who: usize) {
        let learner = &mut self.learners[who];
        if !learner.is_free() {
            return;
        }
        let Grant::Lease(lease) = self.rounds.grant(self.now, &learner.name, &learner.held) else { return };
        if let End::Step(step) = self.end
            && lease.from >= step
        {
            self.before_end.remove(&who);
        }
        learner.begin(lease);
        self.go(who);
    }

    /// Those who wait for work ask again.
    fn wake(&mut self) {
        for who in 0..self.learners.len() {
            self.ask(who);
        }
    }

    /// Lets a learner train, if it can.
    fn go(&mut self, who: usize) {
        let learner = &mut self.learners[who];
        let trained = learner.trains();
        let pause = learner.go(self.now);
        let serial = learner.serial;
        self.tally.trains(self.now, trained, pause.is_some());
        if let Some(pause) = pause {
            self.after(pause, Event::Reached(who, serial));
        }
    }

    fn reached(&mut self, who: usize) -> Result<(), SimulateError> {
        let (now, run) = (self.now, self.run);
        let learner = &mut self.learners[who];
        learner.account(now, self.tally.from);
        let step_seconds = learner.reach();
        let Some(job) = &mut learner.job else { return Ok(()) };
        let (at, to, fence) = (job.at, job.lease.to, job.lease.fence);
        let mut early = Vec::new();
        job.arrived = job.arrived.max(now.as_secs_f64());
        for send in job.lease.sends.iter().filter(|send| send.step == at) {
            let mut arrival = now.as_secs_f64();
            if let (Some(link), bits) = (&run.link, run.fragment_bits())
                && bits > 0.0
            {
                arrival = link.arrival(learner.link_free, arrival, step_seconds, bits);
                learner.link_free = arrival;
            }
            job.arrived = job.arrived.max(arrival);
            if at < to {
                early.push((*send, arrival));
            }
        }
        let arrived = job.arrived;
        if at < to {
            learner.aim();
        }
        self.go(who);
        for (send, arrival) in early {
            self.after(arrival - now.as_secs_f64(), Event::Arrived(who, fence, send));
        }
        if at == to {
            self.after(arrived - now.as_secs_f64(), Event::Finished(who, fence));
        }
        Ok(())
    }

    /// The lease of a learner, unless it has another by now.
    fn path(&self, who: usize, fence: Fence) -> Option<PathId> {
        let lease = &self.learners[who].job.as_ref()?.lease;
        (lease.fence == fence).then_some(lease.path)
    }

    fn refused(&self, who: usize, error: &LeaseError) -> SimulateError {
        SimulateError::Refused { seconds: self.now.as_secs_f64(), learner: who, problem: error.to_string() }
    }

    fn contribute(&mut self, who: usize, fence: Fence, send: ScheduledSend) -> Result<(), SimulateError> {
        let Some(path) = self.path(who, fence) else { return Ok(()) };
        if let Commit::Refused(error) = self.rounds.contribute(path, fence, send.fragment, send.number, 0) {
            return Err(self.refused(who, &error));
        }
        self.step();
        Ok(())
    }

    fn complete(&mut self, who: usize, fence: Fence) -> Result<(), SimulateError> {
        let Some(path) = self.path(who, fence) else { return Ok(()) };
        let seconds = self.learners[who].job.as_ref().map_or(0.0, |job| job.seconds);
        let done = LeaseOutcome { seconds, ..LeaseOutcome::default() };
        if let Commit::Refused(error) = self.rounds.commit(path, fence, &done) {
            return Err(self.refused(who, &error));
        }
        self.learners[who].done();
        self.step();
        self.ask(who);
        Ok(())
    }

    /// Takes the outer steps that are due.
    fn step(&mut self) {
        loop {
            let due = self.rounds.due(self.now).into_iter();
            let due: Vec<_> = due.filter(|step| !self.computing.contains(&step.fragment)).collect();
            if due.is_empty() {
                return;
            }
            for step in due {
                self.computing.insert(step.fragment);
                if self.run.outer_seconds > 0.0 {
                    self.after(self.run.outer_seconds, Event::Stepped(step));
                } else {
                    self.stepped(&step);
                }
            }
        }
    }

    fn stepped(&mut self, step: &OuterStep) {
        self.computing.remove(&step.fragment);
        let took = Duration::try_from_secs_f64(self.run.outer_seconds).unwrap_or(Duration::MAX);
        if self.rounds.stepped(step, took) {
            self.tally.stepped(self.now, step);
        }
        self.wake();
    }

    /// Waits for what happens to a learner's chips next.
    fn await_chips(&mut self, who: usize) {
        let next = self.learners[who].chips.as_ref().map(OwnChips::next);
        if let Some(next) = next {
            self.after(next - self.now.as_secs_f64(), Event::Chips(who));
        }
    }

    fn chips(&mut self, who: usize) {
        let learner = &mut self.learners[who];
        learner.account(self.now, self.tally.from);
        let Some(chips) = &mut learner.chips else { return };
        let incident = chips.happen(&mut learner.random);
        match (incident, learner.alive) {
            (Incident::Stops(seconds), true) => {
                // What happens in the middle of a stop is dealt with in the same stop.
                if !learner.stopped {
                    learner.stopped = true;
                    let process = learner.process;
                    self.after(seconds, Event::GoesOn(who, process));
                }
                self.go(who);
            }
            (Incident::Dies(seconds), true) | (Incident::Stops(seconds), false) => {
                if learner.alive {
                    learner.die();
                }
                let process = learner.process;
                self.after(seconds, Event::Returns(who, process));
                self.go(who);
            }
            (Incident::Gone, _) => {
                learner.die();
                self.go(who);
            }
            // It is being started already.
            (Incident::Dies(_), false) => {}
        }
        self.await_chips(who);
    }
}
