//! Errors of scoring documents and of training routers.

use dipaco_topology::PathId;
use thiserror::Error;

use crate::TrainError;
use crate::error::through_train_error;

/// An error of scoring the reserved documents or of training the transformer router.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RouterError {
    /// The manifest lacks a module of a path.
    #[error(
        "the manifest lacks {what}: it is damaged or of another run; go back to a copy of the run's store"
    )]
    ManifestLacks {
        /// The missing part.
        what: String,
    },
    /// A score is not finite.
    #[error(
        "path {path} gives token {token} of the reserved documents no finite probability: its weights diverged"
    )]
    ScoreNotFinite {
        /// The path.
        path: PathId,
        /// Position of the token in the token file.
        token: u64,
    },
    /// The header of scores can't be written.
    #[error("the header of the scores can't be written as JSON")]
    ScoreHeader {
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// The seed has another size than its model.
    #[error(
        "the seed holds {found} parameters, the model of this run has {expected}: train the seed with this run's configuration"
    )]
    SeedLength {
        /// Parameters of the model.
        expected: usize,
        /// Parameters of the seed.
        found: usize,
    },
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(RouterError);
through_train_error!(RouterError: dipaco_shards::ShardsError, dipaco_routing::RoutingError, dipaco_files::FileError);
