//! What the process of a synchronizer does at each event, and when.

use std::time::Duration;

use dipaco_sync::ProcessId;

use super::ChaosWorld;
use crate::chaos::driver::COMPUTATION;
use crate::chaos::events::ChaosEvent;
use crate::chaos::outer_step::take_step;
use crate::chaos::synchronizer::{
    SimulatedSynchronizer, SynchronizerCaller, SynchronizerEvent, SynchronizerReply, SynchronizerRequest,
};

/// Time between two looks whether to ask for orders.
const LOOK: Duration = Duration::from_millis(40);
/// Time without an answer after which it repeats a request, longer than two delays of messages.
const PATIENCE: Duration = Duration::from_millis(1_000);

impl ChaosWorld<'_> {
    /// The identity of the synchronizer's process.
    pub(in crate::chaos) fn synchronizer_process(&self) -> ProcessId {
        let name = "synchronizer".to_owned();
        ProcessId { token: name.clone(), name, instance: self.synchronizer.instance }
    }

    fn after_for_synchronizer(&mut self, pause: Duration, event: SynchronizerEvent) {
        self.after(pause, ChaosEvent::OfSynchronizer(self.synchronizer.instance, event));
    }

    /// A process of the synchronizer starts.
    pub(in crate::chaos) fn synchronizer_starts(&mut self) {
        let instance = self.synchronizer.instance + 1;
        self.synchronizer =
            SimulatedSynchronizer { instance, alive: true, ..SimulatedSynchronizer::default() };
        self.after_for_synchronizer(Duration::ZERO, SynchronizerEvent::Looks);
    }

    /// Sends a request to the coordinator.
    fn call_of_synchronizer(&mut self, request: &SynchronizerRequest) {
        self.synchronizer.requests += 1;
        let (process, number) = (self.synchronizer_process(), self.synchronizer.requests);
        let caller = SynchronizerCaller { process, request: number };
        self.transmit(None, || ChaosEvent::FromSynchronizer(caller.clone(), request.clone()));
    }

    /// Sends an answer to a synchronizer.
    pub(in crate::chaos) fn send_to_synchronizer(
        &mut self,
        to: &SynchronizerCaller,
        reply: &SynchronizerReply,
    ) {
        self.transmit(None, || {
            let event = SynchronizerEvent::Reply(to.request, reply.clone());
            ChaosEvent::OfSynchronizer(to.process.instance, event)
        });
    }

    /// Handles an event of a synchronizer's process. Events of an earlier process are void.
    pub(in crate::chaos) fn handle_of_synchronizer(
        &mut self,
        instance: u64,
        event: SynchronizerEvent,
    ) -> Result<(), String> {
        let synchronizer = &mut self.synchronizer;
        if !synchronizer.alive || synchronizer.instance != instance {
            return Ok(());
        }
        if synchronizer.hangs_until > self.now {
            let pause = synchronizer.hangs_until - self.now;
            self.after_for_synchronizer(pause, event);
            return Ok(());
        }
        match event {
            SynchronizerEvent::Looks => {
                let waits = synchronizer.asks_again.is_some_and(|at| at > self.now);
                if synchronizer.orders.is_empty() && !waits {
                    synchronizer.asks_again = Some(self.now + PATIENCE);
                    self.call_of_synchronizer(&SynchronizerRequest::Orders);
                }
                self.after_for_synchronizer(LOOK, SynchronizerEvent::Looks);
            }
            SynchronizerEvent::Takes => self.synchronizer_takes()?,
            SynchronizerEvent::Reports(number) if number == synchronizer.taken => {
                if let Some(taken) = synchronizer.report.clone() {
                    self.call_of_synchronizer(&SynchronizerRequest::Stepped(Box::new(taken)));
                    self.after_for_synchronizer(PATIENCE, SynchronizerEvent::Reports(number));
                }
            }
            SynchronizerEvent::Reply(number, reply) if number == synchronizer.requests => {
                match reply {
                    SynchronizerReply::Orders(orders) => {
                        // A doubled answer has the number of the first.
                        if synchronizer.asks_again.take().is_none() {
                            return Ok(());
                        }
                        synchronizer.orders = orders.into();
                    }
                    SynchronizerReply::Recorded if synchronizer.report.take().is_some() => {
                        synchronizer.orders.pop_front();
                    }
                    SynchronizerReply::Recorded => return Ok(()),
                }
                if !self.synchronizer.orders.is_empty() {
                    let pause = self.between(100, COMPUTATION);
                    self.after_for_synchronizer(pause, SynchronizerEvent::Takes);
                }
            }
            SynchronizerEvent::Reports(_) | SynchronizerEvent::Reply(..) => {}
        }
        Ok(())
    }

    /// The synchronizer takes its first ordered step and puts its objects into the store.
    fn synchronizer_takes(&mut self) -> Result<(), String> {
        let Some(asked) = self.synchronizer.orders.front() else { return Ok(()) };
        match take_step(asked, &mut self.store) {
            Ok(taken) => {
                self.synchronizer.report = Some(taken);
                self.synchronizer.taken += 1;
                let (pause, number) = (self.disk_time(), self.synchronizer.taken);
                self.after_for_synchronizer(pause, SynchronizerEvent::Reports(number));
            }
            Err(why) if self.coordinator.as_ref().is_some_and(|coordinator| coordinator.awaits(asked)) => {
                return Err(why);
            }
            // Somebody else has taken the step meanwhile, and its inputs are deleted.
            Err(_) => self.synchronizer.orders.clear(),
        }
        Ok(())
    }
}
