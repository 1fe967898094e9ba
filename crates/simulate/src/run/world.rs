//! Virtual time: the events of a simulated run, and their effects on the core.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{
    Fence, FragmentId, LeaseLimits, OuterStep, RunPlan, RunState, ScheduledSend, TrainingProgress,
};
use dipaco_topology::{Topology, TopologyConfig};

use super::chips::{ChipEvent, OwnChips};
use super::learner::Learner;
use super::tally::Tally;
use super::{LargeRun, Played};
use crate::SimulateError;

mod leases;

/// Largest number of events.
const MOST_EVENTS: u64 = 200_000_000;
/// Duration of a lease without a heartbeat, in seconds: production's default.
const LEASE: f64 = 60.0;
/// Shortest duration of a lease without a heartbeat, in inner steps.
const LEASE_STEPS: f64 = 10.0;

#[derive(Debug)]
enum RunEvent {
    /// A learner has reached its target.
    Reached(usize, u64),
    /// An outer gradient sent before the end of the lease has arrived.
    Arrived(usize, Fence, ScheduledSend),
    /// All results of a lease have arrived.
    Finished(usize, Fence),
    /// Chips of a learner fail or return.
    Chips(usize),
    /// A learner continues after a pause.
    GoesOn(usize, u32),
    /// A learner has restarted.
    Returns(usize, u32),
    /// An outer step has been taken.
    Stepped(OuterStep),
    /// The deadline of the core has passed.
    Timer,
}

/// RunEnd of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RunEnd {
    /// At this time.
    At(Duration),
    /// When every learner has begun a lease at this inner step or later.
    Step(u64),
}

/// A simulated run and its pending events.
#[derive(Debug)]
pub(crate) struct RunWorld<'a> {
    run: &'a LargeRun,
    run_state: RunState,
    learners: Vec<Learner>,
    now: Duration,
    events: BTreeMap<(Duration, u64), RunEvent>,
    serial: u64,
    timer: Option<Duration>,
    computing: BTreeSet<FragmentId>,
    end: RunEnd,
    /// Learners without a lease at the step of the end or later.
    before_end: BTreeSet<usize>,
    tally: Tally,
}

impl<'a> RunWorld<'a> {
    /// Measurements begin at `from`.
    pub(crate) fn new(run: &'a LargeRun, from: Duration, end: RunEnd) -> Result<Self, SimulateError> {
        let refused = |problem| SimulateError::Learners { learners: run.learners, problem };
        let config = TopologyConfig { replicas: run.learners, ..TopologyConfig::dense(1) };
        let topology = Topology::new(&config, 1).map_err(|error| refused(error.to_string()))?;
        let schedule = run.scheme.schedule()?;
        let progress = TrainingProgress::start(&topology, schedule.fragments());
        let lease = Duration::try_from_secs_f64(LEASE.max(LEASE_STEPS * run.step_seconds));
        let lease = lease.map_err(|error| refused(error.to_string()))?;
        let plan = RunPlan {
            schedule,
            scheme: run.scheme.sync.scheme(),
            phase: 0,
            limits: LeaseLimits::of_silence(lease),
        };
        let paths = topology.path_ids();
        let mut run_state = RunState::new(topology, plan, progress, 0)?;
        paths.for_each(|path| run_state.bind(path, run.state_stays));
        Ok(Self {
            run,
            run_state,
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
        for number in 0..self.learners.len() {
            self.await_chips(number);
            self.ask(number);
        }
        let mut played = 0u64;
        while !self.ended() {
            let next = self.events.pop_first();
            let end = if let RunEnd::At(end) = self.end { Some(end) } else { None };
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
            let timer = matches!(event, RunEvent::Timer);
            self.now = now;
            self.handle(event)?;
            // If no other event is left, heartbeats can't change anything: without this rule they would keep a stuck
            // run going forever.
            if !timer || !self.events.is_empty() {
                self.schedule_timer();
            }
        }
        if let RunEnd::At(end) = self.end {
            self.now = end;
        }
        for learner in &mut self.learners {
            learner.account(self.now, self.tally.from);
        }
        Ok(self.tally.results(self.now, &self.learners))
    }

    fn ended(&self) -> bool {
        matches!(self.end, RunEnd::Step(_)) && self.before_end.is_empty()
    }

    /// Schedules an event in so many seconds; drops it if the time is not representable.
    fn after(&mut self, seconds: f64, event: RunEvent) {
        let at =
            Duration::try_from_secs_f64(seconds.max(0.0)).ok().and_then(|pause| self.now.checked_add(pause));
        if let Some(at) = at {
            self.serial += 1;
            self.events.insert((at, self.serial), event);
        }
    }

    /// Schedules a timer for the next deadline of the core.
    fn schedule_timer(&mut self) {
        let Some(deadline) = self.run_state.next_deadline() else { return };
        if self.timer.is_none_or(|timer| deadline < timer) {
            self.serial += 1;
            self.events.insert((deadline, self.serial), RunEvent::Timer);
            self.timer = Some(deadline);
        }
    }

    fn handle(&mut self, event: RunEvent) -> Result<(), SimulateError> {
        match event {
            RunEvent::Reached(number, serial) => {
                if self.learners[number].serial == serial {
                    self.reached(number)?;
                }
            }
            RunEvent::Arrived(number, fence, send) => self.contribute(number, fence, send)?,
            RunEvent::Finished(number, fence) => self.complete(number, fence)?,
            RunEvent::Chips(number) => self.chips(number),
            RunEvent::GoesOn(number, process) => {
                if self.learners[number].process == process {
                    self.learners[number].stopped = false;
                    self.go(number);
                    self.ask(number);
                }
            }
            RunEvent::Returns(number, process) => {
                if self.learners[number].process == process {
                    self.learners[number].alive = true;
                    // The earlier process is dead, so its lease is free, as in production.
                    if let Some((path, fence)) = self.learners[number].left.take() {
                        self.run_state.release(path, fence);
                    }
                    self.ask(number);
                    self.wake()?;
                }
            }
            RunEvent::Stepped(step) => {
                self.stepped(&step)?;
                self.step()?;
            }
            // A stale timer: a later one was set for an earlier time.
            RunEvent::Timer if self.timer != Some(self.now) => {}
            RunEvent::Timer => {
                self.timer = None;
                self.beat();
                if !self.run_state.expire(self.now).is_empty() {
                    self.wake()?;
                }
                self.step()?;
            }
        }
        Ok(())
    }

    /// All living learners send heartbeats.
    fn beat(&mut self) {
        for learner in self.learners.iter().filter(|learner| learner.alive) {
            if let Some(current) = &learner.current {
                // A learner with a lost lease notices it at its next result.
                let _lost = self.run_state.heartbeat(self.now, &current.lease.claim(), 0, 0);
            }
        }
    }

    /// All free learners ask for a lease, and those whose results are on their way for the lease that follows.
    fn wake(&mut self) -> Result<(), SimulateError> {
        for number in 0..self.learners.len() {
            self.ask(number);
            self.follow(number)?;
        }
        Ok(())
    }

    /// Starts or stops the training of a learner.
    fn go(&mut self, number: usize) {
        let learner = &mut self.learners[number];
        let trained = learner.trains();
        let pause = learner.go(self.now);
        let serial = learner.serial;
        self.tally.trains(self.now, trained, pause.is_some());
        if let Some(pause) = pause {
            self.after(pause, RunEvent::Reached(number, serial));
        }
    }

    fn reached(&mut self, number: usize) -> Result<(), SimulateError> {
        let (now, run) = (self.now, self.run);
        let learner = &mut self.learners[number];
        learner.account(now, self.tally.from);
        let step_seconds = learner.reach();
        let Some(current) = &mut learner.current else { return Ok(()) };
        let (at, to, fence) = (current.at, current.lease.to, current.lease.fence);
        let mut early = Vec::new();
        current.arrived = current.arrived.max(now.as_secs_f64());
        for send in current.lease.sends.iter().filter(|send| send.step == at) {
            let mut arrival = now.as_secs_f64();
            if let (Some(link), bits) = (&run.link, run.fragment_bits())
                && bits > 0.0
            {
                arrival = link.arrival(learner.link_free, arrival, step_seconds, bits);
                learner.link_free = arrival;
            }
            current.arrived = current.arrived.max(arrival);
            if at < to {
                early.push((*send, arrival));
            }
        }
        let arrived = current.arrived;
        if at < to {
            learner.aim();
        }
        self.go(number);
        for (send, arrival) in early {
            self.after(arrival - now.as_secs_f64(), RunEvent::Arrived(number, fence, send));
        }
        if at == to {
            let pause = arrived - now.as_secs_f64();
            self.after(pause, RunEvent::Finished(number, fence));
            if pause > 0.0 {
                self.follow(number)?;
            }
        }
        Ok(())
    }

    /// Starts all due outer steps.
    fn step(&mut self) -> Result<(), SimulateError> {
        loop {
            let due = self.run_state.due(self.now).into_iter();
            let due: Vec<_> = due.filter(|step| !self.computing.contains(&step.fragment)).collect();
            if due.is_empty() {
                return Ok(());
            }
            for step in due {
                self.computing.insert(step.fragment);
                if self.run.outer_seconds > 0.0 {
                    self.after(self.run.outer_seconds, RunEvent::Stepped(step));
                } else {
                    self.stepped(&step)?;
                }
            }
        }
    }

    fn stepped(&mut self, step: &OuterStep) -> Result<(), SimulateError> {
        self.computing.remove(&step.fragment);
        let took = Duration::try_from_secs_f64(self.run.outer_seconds).unwrap_or(Duration::MAX);
        if self.run_state.stepped(step, took) {
            self.tally.stepped(self.now, step);
        }
        self.wake()
    }

    /// Schedules the next event of a learner's chips.
    fn await_chips(&mut self, number: usize) {
        let next = self.learners[number].chips.as_ref().map(OwnChips::next);
        if let Some(next) = next {
            self.after(next - self.now.as_secs_f64(), RunEvent::Chips(number));
        }
    }

    fn chips(&mut self, number: usize) {
        let learner = &mut self.learners[number];
        learner.account(self.now, self.tally.from);
        let Some(chips) = &mut learner.chips else { return };
        let event = chips.advance(&mut learner.random);
        match (event, learner.alive) {
            (ChipEvent::Stops(seconds), true) => {
                // Events during a pause are part of the same pause.
                if !learner.stopped {
                    learner.stopped = true;
                    let process = learner.process;
                    self.after(seconds, RunEvent::GoesOn(number, process));
                }
                self.go(number);
            }
            (ChipEvent::Dies(seconds), true) | (ChipEvent::Stops(seconds), false) => {
                if learner.alive {
                    learner.die();
                }
                let process = learner.process;
                self.after(seconds, RunEvent::Returns(number, process));
                self.go(number);
            }
            (ChipEvent::Gone, _) => {
                learner.die();
                self.go(number);
            }
            // The learner restarts already.
            (ChipEvent::Dies(_), false) => {}
        }
        self.await_chips(number);
    }
}
