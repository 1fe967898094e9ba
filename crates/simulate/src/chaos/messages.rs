//! The messages of a simulated run.

use dipaco_ledger::{GrantedLease, LeaseReport, LeaseResult};
use dipaco_sync::{LeaseKey, ProcessId};
use dipaco_topology::PathId;

use super::object_store::Content;
use super::synchronizer::{SynchronizerCaller, SynchronizerReply};
use super::toy::{InputWeights, ToyPathState};

/// A request of a worker.
#[derive(Clone, Debug)]
pub(crate) enum ChaosRequest {
    Ask {
        held: Vec<PathId>,
    },
    Follow {
        lease: LeaseKey,
    },
    Heartbeat {
        lease: LeaseKey,
        /// Inner steps that the worker has taken in the lease.
        taken: u64,
        /// Inner steps of earlier leases that it has repeated.
        repeated: u64,
    },
    /// Uploads a result.
    Upload {
        lease: LeaseKey,
        item: LeaseResult,
        content: Content,
    },
    Complete {
        lease: LeaseKey,
        report: LeaseReport,
    },
    /// The training of a lease diverged after this inner step.
    Diverged {
        lease: LeaseKey,
        step: u64,
    },
}

/// An answer of the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum ChaosReply {
    Lease(Box<ChaosLease>),
    Wait,
    Finished,
    Done,
    Lost,
    Refused(String),
}

/// A lease with its inputs.
#[derive(Clone, Debug)]
pub(crate) struct ChaosLease {
    pub(crate) lease: GrantedLease,
    pub(crate) weights: Vec<InputWeights>,
    /// The path's last stored state; the state before the first step if there is none.
    pub(crate) stored: ToyPathState,
    /// Weights of the leases to replay.
    pub(crate) replay: Vec<Vec<InputWeights>>,
}

/// Sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    /// Number of the peer: workers come first, then liars.
    pub(crate) worker: usize,
    pub(crate) incarnation: u32,
    /// Identity of the process, which its certificate and its hello prove.
    pub(crate) process: ProcessId,
    /// Number of the request at the worker.
    pub(crate) request: u64,
}

/// An answer with its recipient.
#[derive(Clone, Debug)]
pub(crate) enum ChaosAnswer {
    ToPeer(Requester, ChaosReply),
    ToSynchronizer(SynchronizerCaller, SynchronizerReply),
}
