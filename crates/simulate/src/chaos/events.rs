//! The events of a simulated run.

use dipaco_sync::ProcessId;

use super::messages::{ChaosReply, ChaosRequest, Requester};
use super::outer_step::TakenStep;
use super::storing_result::StoringResult;
use super::synchronizer::{SynchronizerCaller, SynchronizerEvent, SynchronizerRequest};

/// A kind of fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    WorkerDies,
    WorkerPauses,
    Partition,
    CoordinatorDies,
    SynchronizerDies,
    SynchronizerHangs,
}

#[derive(Debug)]
pub(super) enum ChaosEvent {
    /// A request arrives at the coordinator.
    ToCoordinator(Requester, ChaosRequest),
    /// A request of a synchronizer arrives at the coordinator.
    FromSynchronizer(SynchronizerCaller, SynchronizerRequest),
    /// An event of a synchronizer's process of this instance.
    OfSynchronizer(u64, SynchronizerEvent),
    SynchronizerStarts,
    /// An event of a worker's process.
    OfWorker {
        worker: usize,
        incarnation: u32,
        event: WorkerEvent,
    },
    /// An event of the coordinator of this incarnation.
    OfCoordinator(u32, CoordinatorEvent),
    Fault(Fault),
    /// The connection of a killed process ends.
    ConnectionEnds(ProcessId),
    /// The reader of the store pins what the manifest refers to, in place of what it has pinned before.
    ReaderPins,
    /// A liar sends a message.
    Lie(usize),
    WorkerStarts(usize),
    CoordinatorStarts,
}

/// An event of a coordinator's process.
#[derive(Debug)]
pub(super) enum CoordinatorEvent {
    /// A result is in the store.
    Stored(Box<StoringResult>),
    /// The next part of the write under way is on the disk.
    Written,
    /// The first ordered outer step is computed.
    TakesStep,
    /// The objects of an outer step are in the store.
    TookStep(Box<TakenStep>),
    /// The text is divided for the next phase.
    Rerouted,
    /// A deadline has passed.
    Timer,
}

/// An event of a worker's process. Requests and leases have numbers at their worker.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    Reply(u64, ChaosReply),
    Resend(u64),
    Ask,
    Trained(u64),
    Beat(u64),
    Follow(u64),
}
