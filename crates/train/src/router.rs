//! Offline jobs of routing: scores of documents, training of the transformer router, and warnings about small shards.

mod data_per_path;
mod error;
mod scores;
mod training;

pub use data_per_path::{rising_losses, shard_repeats, small_shards};
pub use error::RouterError;
pub use scores::{score_header, write_scores};
pub use training::{RouterStep, RouterTraining, TrainedRouter, train_router};
