//! Routers: document prefix to path (arXiv:2403.10616 §2.4).
//!
//! A document's *features* are the mean of the seed model's last block over its first tokens. [`fit()`] learns from the
//! features of a sample which of them belong together, [`fit_discriminative`] which path is best for them, [`assign()`]
//! divides a whole token file into one shard per path, and [`Router::route`] says at inference which path an input
//! belongs to.
//!
//! Routing is hard, offline and by document. This package trains no model and knows nothing of text: documents are
//! token ids, and the model is anything that implements [`FeatureExtractor`].

mod assign;
mod calibrate;
mod classifier;
mod config;
mod decisions;
mod error;
mod features;
mod fit;
mod inputs;
mod kmeans;
mod model;
mod part_file;
mod phase;
mod progress;
mod quality;
mod reserve;
mod router;
mod sample_features;
mod shard_set;
mod statistics;
#[cfg(test)]
mod testing;
mod transformer;

pub use assign::{Assigned, Assignment, assign};
pub use classifier::{Discriminative, document_features, fit_discriminative, targets_of};
pub use config::{ClassifierConfig, RouterConfig, RouterKind};
pub use error::{RoutingError, Source};
pub use features::{FeatureExtractor, silent};
pub use fit::{Fit, Origin, fit, fit_points};
pub use inputs::Likelihoods;
pub use kmeans::{Clustering, kmeans, kmeans_from};
pub use phase::{PhaseConfig, PhaseKind};
pub use progress::{Progress, ProgressFn};
pub use quality::Contingency;
pub use reserve::is_router_document;
pub use router::{FittedOn, Route, Router, TargetsFrom};
pub use sample_features::SampleFeatures;
pub use shard_set::{Example, Reserved, Shard, ShardManifest, ShardSet, shard_file_name};
pub use statistics::{ShardExample, ShardStatistics, ShardStatisticsRow, inspect};
pub use transformer::{TransformerFittedOn, TransformerRouter};
