//! A synchronizer with a process of its own in a simulated run.
//!
//! It claims modules by asking for their orders, takes each outer step that it is asked for, and reports the step. It dies and
//! starts again, and it hangs: the coordinator takes its modules back, and its report comes late.

use std::collections::VecDeque;
use std::time::Duration;

use dipaco_sync::ProcessId;

use super::driver::COMPUTATION;
use super::events::ChaosEvent;
use super::outer_step::{AskedStep, TakenStep, take_step};
use super::world::ChaosWorld;

/// Time between two looks whether to ask for orders.
const LOOK: Duration = Duration::from_millis(40);
/// Time without an answer after which it repeats a request, longer than two delays of messages.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// The synchronizer's process.
#[derive(Debug, Default)]
pub(crate) struct SimulatedSynchronizer {
    /// Number of the process. A restart increases it.
    instance: u64,
    pub(super) alive: bool,
    pub(super) hangs_until: Duration,
    /// Number of the last request. Answers to earlier ones are void.
    requests: u64,
    /// When it repeats its open request for orders.
    asks_again: Option<Duration>,
    /// Ordered outer steps that are not recorded. The first one is in computation.
    orders: VecDeque<AskedStep>,
    /// The taken step that it reports until an answer comes.
    report: Option<TakenStep>,
    /// Number of taken steps.
    taken: u64,
}

/// A request of a synchronizer.
#[derive(Clone, Debug)]
pub(crate) enum SynchronizerRequest {
    /// Claims the modules, and asks for their orders.
    Orders,
    Stepped(Box<TakenStep>),
}

/// An answer to a synchronizer.
#[derive(Clone, Debug)]
pub(crate) enum SynchronizerReply {
    Orders(Vec<AskedStep>),
    /// The step counts, or another process has been asked for it.
    Recorded,
}

/// The sender of a synchronizer's request.
#[derive(Clone, Debug)]
pub(crate) struct SynchronizerCaller {
    pub(super) process: ProcessId,
    /// Number of the request at the process.
    pub(super) request: u64,
}

/// An event of a synchronizer's process.
#[derive(Debug)]
pub(crate) enum SynchronizerEvent {
    /// It asks for orders if it has none.
    Looks,
    /// The first ordered step is computed.
    Takes,
    /// The taken step of this number is in the store, or its report has no answer.
    Reports(u64),
    /// An answer to the request of this number.
    Reply(u64, SynchronizerReply),
}

impl ChaosWorld<'_> {
    /// The identity of the synchronizer's process.
    pub(super) fn synchronizer_process(&self) -> ProcessId {
        let name = "synchronizer".to_owned();
        ProcessId { token: name.clone(), name, instance: self.synchronizer.instance }
    }

    fn after_for_synchronizer(&mut self, pause: Duration, event: SynchronizerEvent) {
        self.after(pause, ChaosEvent::OfSynchronizer(self.synchronizer.instance, event));
    }

    /// A process of the synchronizer starts.
    pub(super) fn synchronizer_starts(&mut self) {
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
    pub(super) fn send_to_synchronizer(&mut self, to: &SynchronizerCaller, reply: &SynchronizerReply) {
        self.transmit(None, || {
            let event = SynchronizerEvent::Reply(to.request, reply.clone());
            ChaosEvent::OfSynchronizer(to.process.instance, event)
        });
    }

    /// Handles an event of a synchronizer's process. Events of an earlier process are void.
    pub(super) fn handle_of_synchronizer(
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
