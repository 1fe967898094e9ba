//! Offline jobs for routers: scoring documents with paths, training the transformer router, warnings about small shards.

mod data_per_path;
mod scores;
mod training;

pub use data_per_path::{rising_losses, shard_repeats, small_shards};
pub use scores::{score_header, write_scores};
pub use training::{RouterStep, RouterTraining, TrainedRouter, train_router};
