//! Errors of a peer's connection to the coordinator or to a synchronizer.

use thiserror::Error;

use crate::TrainError;
use crate::error::through_train_error;

/// An error of a session or a transfer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The token names another run than the coordinator at its address.
    #[error(
        "the coordinator at this address serves run {found}, the token is for {expected}: get the token of this run"
    )]
    OtherRun {
        /// Run of the token.
        expected: String,
        /// Run of the coordinator.
        found: String,
    },
    /// The peer refuses the worker or a request of the worker.
    #[error("the coordinator refuses: {reason}")]
    Refused {
        /// The coordinator's reason.
        reason: String,
    },
    /// The lease has ended. The worker drops its results and asks for another lease.
    #[error("the lease is lost: {reason}")]
    LeaseLost {
        /// The coordinator's reason.
        reason: String,
    },
    /// The receiver of a result has no room for it now. [`Transfer::upload`](crate::client::Transfer::upload) sends it again.
    #[error("the result can't be received now: {reason}")]
    NoRoom {
        /// The receiver's reason.
        reason: String,
    },
    /// Only the coordinator can answer the request that a synchronizer got.
    #[error("the synchronizer can't answer, the coordinator must be asked: {reason}")]
    Elsewhere {
        /// The synchronizer's reason.
        reason: String,
    },
    /// The answer has a form that the request does not allow.
    #[error(
        "the answer to the request `{request}` has an unexpected form: install the same version of dipaco on both machines"
    )]
    UnexpectedAnswer {
        /// Name of the request.
        request: &'static str,
    },
    /// The coordinator came back with another configuration.
    #[error("the coordinator came back with another configuration: start the worker again")]
    PlanChanged,
    /// Other workers completed the run while this peer still had a lease or a request.
    #[error("the run is complete")]
    Complete,
    /// An object arrived twice with other content than its reference, and the coordinator's own copy is sound.
    #[error(
        "{name} arrived twice with other content than the coordinator's manifest names: check the memory of this machine, and that both run the same version"
    )]
    OtherObject {
        /// Name of the object.
        name: String,
    },
    /// The machine has no memory for an object.
    #[error(
        "there is no memory for an object of {bytes} bytes: stop other programs, or train smaller modules"
    )]
    Memory {
        /// Length of the object in bytes.
        bytes: u64,
    },
    /// The patience with the coordinator has ended.
    #[error(
        "the coordinator could not be reached for {seconds} s: it may be down or have moved; start this process again later, or give it more --patience"
    )]
    Unreachable {
        /// The patience in seconds.
        seconds: u64,
        /// The last failure.
        #[source]
        source: Box<dipaco_net::NetError>,
    },
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(ClientError);

impl ClientError {
    /// The error of a user who asked to stop.
    pub(crate) fn cancelled() -> Self {
        Self::Core(TrainError::Cancelled)
    }
}
