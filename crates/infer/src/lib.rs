//! The inference engine without HTTP: queueing, routing, incremental decoding, sampling and log-probabilities.
//!
//! A request names a prompt of token ids. The engine admits it to a bounded queue, picks its path by the first tokens
//! (or takes the path that the caller pinned), runs that one path with a KV cache, and sends [`Event`]s. Several
//! requests run at a time, one per *slot*, and each is computed by itself: what a request gets does not depend on what
//! else runs. A caller that drops its [`Generation`] frees the slot within one decode step.
//!
//! The engine knows a model by the trait [`RoutedModel`], of which [`RunModel`] is the one over a run's modules, and
//! text by the trait [`TextCodec`]; it knows no HTTP, reads no files and does not batch several sequences into one
//! product.

mod codec;
mod engine;
mod error;
mod job;
mod model;
mod observer;
mod params;
mod queue;
mod run_model;
mod sampler;
mod score;
mod stop;

pub use codec::{TextCodec, TextStream, TokenizerInfo};
pub use engine::{Engine, EngineConfig, Generation};
pub use error::{BoxError, EngineError};
pub use job::{Event, FinishReason, Finished, StopReason};
pub use model::{Route, RoutedModel, Sequence};
pub use observer::{NoObserver, Observer, Outcome, Summary};
pub use params::{GenerateRequest, Sampling};
pub use queue::Load;
pub use run_model::{LoadPath, PrefixRouter, RunModel, RunModelError};
pub use sampler::Sampler;
pub use score::{LOWEST_LOG_PROB, TokenScore, score};
pub use stop::{Stop, StopMatcher};
