//! The paper's perplexity protocol (arXiv:2403.10616 §2.4): held-out perplexity, the first tokens of every sequence read
//! but not counted, for dense and for routed models alike.
//!
//! A document is cut into sequences of `sequence_tokens`, each of which starts with an empty context. The first
//! `prefix_tokens` tokens of each are what a router could have read, so no model is scored on them: a sequence of m tokens
//! counts max(0, m - prefix) of them, each predicted from everything before it in the sequence, and a document that is no
//! longer than the prefix counts nothing. The end-of-text token is predicted like any other.
//!
//! Sums are taken in the order of the documents, in f64, so results do not depend on the number of threads. This package
//! routes nothing: a routed model is scored on the shards that `dipaco_routing::assign` wrote, each by its own path.

mod comparison;
mod config;
mod error;
mod evaluate;
mod evaluation;
mod model;
mod sequences;

pub use comparison::Comparison;
pub use config::EvaluationConfig;
pub use error::{EvalError, Source};
pub use evaluate::{EvaluationProgress, ProgressFn, evaluate_dense, evaluate_path, evaluate_routed};
pub use evaluation::{Evaluation, PathEvaluation};
pub use model::LanguageModel;
