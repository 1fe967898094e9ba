//! A synchronizer with a process of its own in a simulated run.
//!
//! It claims modules by asking for their orders, takes each outer step that it is asked for, and reports the step. It dies and
//! starts again, and it hangs: the coordinator takes its modules back, and its report comes late.

use std::collections::VecDeque;
use std::time::Duration;

use dipaco_sync::ProcessId;

use super::outer_step::{AskedStep, TakenStep};

/// The synchronizer's process.
#[derive(Debug, Default)]
pub(crate) struct SimulatedSynchronizer {
    /// Number of the process. A restart increases it.
    pub(super) instance: u64,
    pub(super) alive: bool,
    pub(super) hangs_until: Duration,
    /// Number of the last request. Answers to earlier ones are void.
    pub(super) requests: u64,
    /// When it repeats its open request for orders.
    pub(super) asks_again: Option<Duration>,
    /// Ordered outer steps that are not recorded. The first one is in computation.
    pub(super) orders: VecDeque<AskedStep>,
    /// The taken step that it reports until an answer comes.
    pub(super) report: Option<TakenStep>,
    /// Number of taken steps.
    pub(super) taken: u64,
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
