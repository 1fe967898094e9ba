//! Errors of pretraining the seed.

use thiserror::Error;

use crate::TrainError;
use crate::error::through_train_error;

/// An error of pretraining or adopting a seed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SeedError {
    /// The store of the other run has no finished seed.
    #[error("the other run has no finished seed model: run `dipaco seed` with its configuration first")]
    NoSeed,
    /// The store has a seed of another configuration or data.
    #[error(
        "this run's seed model was trained with another configuration, other text or from another model: use another run directory, or train it anew with `dipaco seed --restart`"
    )]
    OtherSeed,
    /// The store has a seed of another configuration or data, and paths descend from it.
    #[error(
        "this run's seed model was trained with another configuration, other text or from another model, and the paths of this run descend from it: set the configuration and the text back, or use another run directory"
    )]
    OtherSeedInUse,
    /// The seed can't be replaced, because the paths of the run descend from it.
    #[error("the paths of this run descend from its seed model: train another seed in another run directory")]
    SeedInUse,
    /// The settings that identify the seed can't be written.
    #[error("can't write the configuration as JSON")]
    Json {
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

through_train_error!(SeedError);
through_train_error!(SeedError: dipaco_shards::ShardsError);
