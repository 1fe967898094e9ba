//! Held-out perplexity by the paper's protocol (arXiv:2403.10616 §2.4), the same for dense and for routed models.
//!
//! A document is cut into sequences of `sequence_tokens`. Each sequence starts with an empty context. A router may read
//! the first `prefix_tokens` tokens of a sequence, so no model is scored on them. A sequence of m tokens counts
//! max(0, m - prefix) tokens, each predicted from all earlier tokens of the sequence. A document no longer than the prefix
//! counts nothing. The end-of-text token is predicted like any other token.
//!
//! A routed model is scored on the shards written by `dipaco_routing::assign`, each shard by its own path. With a
//! [`ChunkRouting`] a router chooses the path of every chunk of W tokens (§2.4.3), from its scores after the last token
//! of the chunk before. So no token influences the choice of the path that scores it. A newly chosen path reads the
//! sequence from its beginning; nothing is carried from path to path.
//!
//! The token files of shards are opened when they are read, and not all stay open: a run may have more of them than a process
//! may map.
//!
//! Sums are taken in f64, path by path and in the order of the documents. So the result depends neither on the number of
//! threads nor on the number of paths in memory.

#![forbid(unsafe_code)]

mod comparison;
mod domains;
mod error;
mod evaluate;
mod evaluation;
mod mixture;
mod model;
mod paired;
mod ranking;
mod reroute;
mod score;
mod sequences;
mod texts;
mod windows;

pub use comparison::Comparison;
pub use dipaco_model::BoxError;
pub use dipaco_settings::{EvaluationConfig, RerouteBy, RouteUnit};
pub use domains::{Domains, UNLABELLED};
pub use error::EvalError;
pub use evaluate::{
    Choice, EvaluationProgress, EvaluationProgressFn, Protocol, Stage, evaluate_dense, evaluate_path,
    evaluate_routed,
};
pub use evaluation::{Agreement, DocumentLoss, DomainEvaluation, Evaluation, PathEvaluation, Rerouted};
pub use mixture::{Mixture, MixtureRouter, Tempered, evaluate_mixture};
pub use model::{LanguageModel, PathSource};
pub use paired::PairedDifference;
pub use ranking::{CONTINUATION, Ranking, check_ranking, rank_dense, rank_routed};
pub use reroute::{ChunkRouting, TokenRouter};
pub use texts::evaluated_documents;
pub use windows::WindowRouter;
