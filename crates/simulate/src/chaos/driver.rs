//! The coordinator's process in a simulated run: what it does at each event, and when.

use std::time::Duration;

use dipaco_sync::ProcessId;

use super::Bug;
use super::coordinator::{Handled, SimulatedCoordinator};
use super::events::CoordinatorEvent;
use super::messages::{ChaosAnswer, ChaosRequest, Requester};
use super::storing_result::StoringResult;
use super::synchronizer::{SynchronizerCaller, SynchronizerReply, SynchronizerRequest};
use super::world::ChaosWorld;

/// Longest duration of an outer step's computation.
pub(super) const COMPUTATION: Duration = Duration::from_millis(20);

/// Time without an outer step after which a synchronizer loses its modules.
const STANDSTILL_OF_STEPS: Duration = Duration::from_millis(1_500);

impl ChaosWorld<'_> {
    /// A coordinator takes the run over. The new incarnation is on the disk before anything else happens.
    pub(super) fn coordinator_starts(&mut self) -> Result<(), String> {
        let coordinator = SimulatedCoordinator::take_over(self.case, &self.disk, &self.store, self.bug)?;
        self.coordinator = Some(coordinator);
        self.begin_write()?;
        while !self.writing.is_empty() {
            self.write_next_of_coordinator()?;
        }
        self.go_on()
    }

    /// A request arrives.
    pub(super) fn request_arrives(&mut self, to: &Requester, request: ChaosRequest) -> Result<(), String> {
        let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
        let handled = coordinator.handle(self.now, to, request, &self.store)?;
        let answer = |reply| ChaosAnswer::ToPeer(to.clone(), reply);
        match handled {
            Handled::Nothing => {}
            Handled::Answer(reply) => self.send(&answer(reply)),
            Handled::AnswerOnDisk(reply) => self.answer_on_disk(answer(reply)),
            Handled::Store(result) => self.store_result(*result)?,
        }
        self.go_on()
    }

    /// A request of a synchronizer arrives.
    pub(super) fn request_of_synchronizer(
        &mut self,
        from: SynchronizerCaller,
        request: SynchronizerRequest,
    ) -> Result<(), String> {
        let (Some(coordinator), Some(case)) = (&mut self.coordinator, &self.case.synchronizer) else {
            return Ok(());
        };
        if !coordinator.greets(&from.process) {
            return Ok(());
        }
        match request {
            SynchronizerRequest::Orders => {
                let orders = coordinator.give_orders(self.now, &from.process, &case.modules)?;
                self.send_to_synchronizer(&from, &SynchronizerReply::Orders(orders));
            }
            SynchronizerRequest::Stepped(taken) => {
                coordinator.record_step(*taken)?;
                self.answer_on_disk(ChaosAnswer::ToSynchronizer(from, SynchronizerReply::Recorded));
            }
        }
        self.go_on()
    }

    /// The transport notices that a process is silent, and ends its connection.
    pub(super) fn connection_ends(&mut self, process: &ProcessId) -> Result<(), String> {
        let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
        coordinator.connection_ends(self.now, process);
        self.go_on()
    }

    /// Puts a result into the store, and records it afterwards.
    fn store_result(&mut self, result: StoringResult) -> Result<(), String> {
        let pause = self.disk_time();
        // The write may be early or late in this time.
        if self.bug == Some(Bug::RecordedFirst) {
            // The planted bug: the result counts before it is in the store.
            let (object, content) = (result.object().clone(), result.content.clone());
            self.record_result(result.clone())?;
            if self.chance(0.5) {
                self.store.put(&object, content);
            }
        } else {
            self.store.put(result.object(), result.content.clone());
        }
        self.after_for_coordinator(pause, CoordinatorEvent::Stored(Box::new(result)));
        Ok(())
    }

    /// Records a result that is in the store.
    fn record_result(&mut self, result: StoringResult) -> Result<(), String> {
        let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
        let to = result.to.clone();
        let reply = coordinator.record(result)?;
        self.answer_on_disk(ChaosAnswer::ToPeer(to, reply));
        Ok(())
    }

    /// Sends an answer when all changes of the ledger up to now are on the disk.
    fn answer_on_disk(&mut self, answer: ChaosAnswer) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let change = coordinator.ledger.changes();
        if let Some(answer) = coordinator.answers.keep(change, answer) {
            self.send(&answer);
        }
    }

    /// Handles an event of the running coordinator.
    pub(super) fn handle_of_coordinator(&mut self, event: CoordinatorEvent) -> Result<(), String> {
        match event {
            CoordinatorEvent::Stored(result) => {
                // Again, as the last moment at which the store may get it.
                self.store.put(result.object(), result.content.clone());
                self.record_result(*result)?;
            }
            CoordinatorEvent::Written => self.write_next_of_coordinator()?,
            CoordinatorEvent::TakesStep => {
                if let Some(coordinator) = &mut self.coordinator
                    && let Some(taken) = coordinator.take_own_step(&mut self.store)?
                {
                    let pause = self.disk_time();
                    self.after_for_coordinator(pause, CoordinatorEvent::TookStep(Box::new(taken)));
                }
            }
            CoordinatorEvent::TookStep(taken) => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.ordered.pop_front();
                    coordinator.record_step(*taken)?;
                    if !coordinator.ordered.is_empty() {
                        self.takes_step();
                    }
                }
            }
            CoordinatorEvent::Rerouted => {
                if let Some(coordinator) = &mut self.coordinator
                    && let Some(boundary) = coordinator.ledger.boundary()
                {
                    let shards = self.case.shards(boundary.phase);
                    coordinator.ledger.begin_phase(shards).map_err(|error| error.to_string())?;
                    coordinator.rerouting = false;
                }
            }
            CoordinatorEvent::Timer => {}
        }
        self.go_on()
    }

    fn takes_step(&mut self) {
        let pause = self.between(100, COMPUTATION);
        self.after_for_coordinator(pause, CoordinatorEvent::TakesStep);
    }

    /// Does everything that the time or the last change allows: ends leases, orders outer steps, begins a write.
    fn go_on(&mut self) -> Result<(), String> {
        let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
        let ledger = &mut coordinator.ledger;
        ledger.expire(self.now);
        let before = self.now.checked_sub(STANDSTILL_OF_STEPS);
        for synchronizer in before.map(|before| ledger.overdue(before)).unwrap_or_default() {
            ledger.release_modules(self.now, &synchronizer);
        }
        let mut steps = false;
        if coordinator.ordered.is_empty() {
            let fence = ledger.own_fence();
            let due = coordinator.due_steps(self.now, fence)?;
            coordinator.ordered.extend(due);
            steps = !coordinator.ordered.is_empty();
        }
        let reroutes = !coordinator.rerouting && coordinator.ledger.boundary().is_some();
        coordinator.rerouting |= reroutes;
        let deadline = coordinator.ledger.next_deadline(STANDSTILL_OF_STEPS).filter(|&at| at > self.now);
        let timer = deadline.filter(|_| coordinator.timer != deadline);
        coordinator.timer = deadline;
        if steps {
            self.takes_step();
        }
        if reroutes {
            let pause = self.between(100, Duration::from_millis(200));
            self.after_for_coordinator(pause, CoordinatorEvent::Rerouted);
        }
        if let Some(deadline) = timer {
            self.after_for_coordinator(deadline - self.now, CoordinatorEvent::Timer);
        }
        self.begin_write()
    }
}
