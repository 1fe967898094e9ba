//! Errors of outer steps and of the synchronizer's process.

use dipaco_store::StoreError;
use dipaco_sync::FragmentId;
use thiserror::Error;

use crate::TrainError;
use crate::client::ClientError;
use crate::error::through_train_error;
use crate::host::HostError;

/// An error that ends a synchronizer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SynchronizerError {
    /// The coordinator refuses the synchronizer.
    #[error("the coordinator refuses: {reason}")]
    Refused {
        /// The coordinator's reason.
        reason: String,
    },
    /// The coordinator's answer does not fit the request.
    #[error(
        "the coordinator's answer does not fit the request {request}: install the same version on both machines"
    )]
    UnexpectedAnswer {
        /// The request.
        request: &'static str,
    },
    /// An outer step has no finite result, even without its contributions.
    #[error(
        "the outer step of {fragment} has no finite result, even without its contributions: go back to an earlier round"
    )]
    NotFinite {
        /// The fragment.
        fragment: FragmentId,
    },
    /// Contributions can't be merged.
    #[error(transparent)]
    Fold(#[from] dipaco_sync::FoldError),
    /// A connection of a peer can't be served, or a result can't be received.
    #[error(transparent)]
    Host(HostError),
    /// The session with the coordinator.
    #[error(transparent)]
    Client(ClientError),
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(SynchronizerError);

// A shared cause is `Core`, no matter which part of the synchronizer met it.
impl From<HostError> for SynchronizerError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Core(core) => Self::Core(core),
            error => Self::Host(error),
        }
    }
}

impl From<ClientError> for SynchronizerError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { reason } => Self::Refused { reason },
            ClientError::UnexpectedAnswer { request } => Self::UnexpectedAnswer { request },
            ClientError::Core(error) => Self::Core(error),
            error => Self::Client(error),
        }
    }
}

impl SynchronizerError {
    /// True if the session with the coordinator ended because the run is complete.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Client(ClientError::Complete))
    }

    /// True if an object of the store is not there.
    pub(super) fn is_of_a_missing_object(&self) -> bool {
        matches!(self, Self::Core(TrainError::Store(StoreError::Missing { .. })))
    }

    /// True if the session with the coordinator ended because the user asked the synchronizer to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Core(TrainError::Cancelled))
    }
}
