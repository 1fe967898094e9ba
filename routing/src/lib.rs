//! Routers: document prefix to path (arXiv:2403.10616 §2.4).
//!
//! A document's *features* come from latent semantic analysis of its first tokens ([`TokenVectors`]) or from a block of the
//! seed model ([`RouterFeatures`]). [`fit()`] fits a router by clustering the features of a sample, [`fit_discriminative`] by learning the best path of each document from the
//! [scores of the paths](PathScores). [`assign()`] divides a token file into one shard per path. At inference,
//! [`Router::route`] chooses the path of an input.
//!
//! Routing is hard (one path per document), offline and by document. This package trains no model and knows no text:
//! documents are token ids, and the model is any [`FeatureExtractor`].

#![forbid(unsafe_code)]

mod advice;
mod arrange;
mod assign;
mod calibrate;
mod classifier;
mod config;
#[cfg(test)]
mod damaged;
mod decisions;
mod error;
mod extend;
mod feature_map;
mod features;
mod fit;
mod inputs;
mod kmeans;
mod labels;
mod model;
mod part_file;
mod phase;
mod progress;
mod quality;
mod recent_router;
mod reserve;
mod router;
mod router_targets;
mod sample_features;
mod scores;
mod shard_set;
mod statistics;
#[cfg(test)]
mod testing;
mod text_router;
mod token_gain;
mod token_vectors;
mod transformer;

pub use assign::{Assigned, Assignment, assign};
pub use classifier::{Discriminative, ScoredDocuments, fit_discriminative, raise_targets, targets_of};
pub use config::{ClassifierConfig, FeatureKind, RouterConfig, RouterKind};
pub use dipaco_model::BoxError;
pub use error::RoutingError;
pub use extend::fit_added;
pub use features::{FeatureExtractor, SeedFeatures, silent};
pub use fit::{Fit, FitOrigin, fit, fit_points};
pub use inputs::Likelihoods;
pub use kmeans::{Clustering, kmeans, kmeans_from};
pub use labels::PrefixLabels;
pub use model::RouterFeatures;
pub use phase::{PhaseConfig, PhaseKind};
pub use progress::{ProgressFn, RoutingProgress};
pub use quality::Contingency;
pub use recent_router::RecentRouter;
pub use reserve::is_router_document;
pub use router::{DocumentRoute, FittedOn, ROUTER_FORMAT_VERSION, Router, TargetsFrom};
pub use router_targets::router_targets;
pub use sample_features::{FeaturePoints, SampleFeatures};
pub use scores::{
    PATH_SCORES_FORMAT, PathScores, ScoreFiles, ScoreHeader, remove_unfinished_scores, scores_are_there,
};
pub use shard_set::{
    Example, Reserved, SHARD_SET_FORMAT_VERSION, Shard, ShardManifest, ShardSet, shard_file_name,
};
pub use statistics::{ShardExample, ShardStatistics, ShardStatisticsRow, inspect};
pub use text_router::TextRouter;
pub use token_gain::{token_gain, token_gain_warning};
pub use token_vectors::TokenVectors;
pub use transformer::{TRANSFORMER_ROUTER_FORMAT_VERSION, TransformerFittedOn, TransformerRouter};
