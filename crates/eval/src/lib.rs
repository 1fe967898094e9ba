//! The paper's perplexity protocol (arXiv:2403.10616 §2.4): held-out perplexity, the first tokens of every sequence read
//! but not counted, for dense and for routed models alike.
//!
//! A document is cut into sequences of `sequence_tokens`, each of which starts with an empty context. The first
//! `prefix_tokens` tokens of each are what a router could have read, so no model is scored on them: a sequence of m tokens
//! counts max(0, m - prefix) of them, each predicted from everything before it in the sequence, and a document that is no
//! longer than the prefix counts nothing. The end-of-text token is predicted like any other.
//!
//! A routed model is scored on the shards that `dipaco_routing::assign` wrote, each by its own path. With a [`Reroute`]
//! the path is chosen anew every W tokens of a sequence (§2.4.3): by the router's scores after the last token of a chunk
//! for the chunk behind it, so that no token has a say in who scores it. A path that takes over reads the sequence from its
//! beginning, so nothing is carried from path to path.
//!
//! Sums are taken path by path in the order of the documents, in f64, so results do not depend on the number of threads
//! nor on how many paths are in memory at the same time.

mod comparison;
mod config;
mod domains;
mod error;
mod evaluate;
mod evaluation;
mod model;
mod reroute;
mod score;
mod sequences;

pub use comparison::Comparison;
pub use config::EvaluationConfig;
pub use domains::{Domains, UNLABELLED};
pub use error::{EvalError, Source};
pub use evaluate::{
    EvaluationProgress, ProgressFn, Protocol, Stage, evaluate_dense, evaluate_path, evaluate_routed,
};
pub use evaluation::{Agreement, DomainEvaluation, Evaluation, PathEvaluation, Rerouted};
pub use model::{LanguageModel, PathSource};
pub use reroute::{Reroute, TokenRouter};
