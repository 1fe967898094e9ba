//! Inference engine without HTTP: queue, routing, incremental decoding, sampling and log-probabilities.
//!
//! A request holds a prompt of token ids. The engine admits it to a bounded queue and picks its path from the first tokens,
//! unless the caller pins a path. It runs that one path with a KV cache and sends [`Event`]s. Several requests run at a
//! time, one per *slot*. Each is computed by itself, so its result does not depend on other requests. A caller that
//! drops its [`Submission`] frees the slots within one decode step.
//!
//! The engine uses a model through the trait [`RoutedModel`] and a tokenizer through the trait [`TextCodec`]. [`RunModel`]
//! is the model made of a run's modules. The engine knows no HTTP, reads no files, and does not batch several sequences
//! into one matrix product.

#![forbid(unsafe_code)]

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
pub use engine::{Engine, EngineConfig, Submission};
pub use error::{BoxError, EngineError};
pub use job::{Event, FinishReason, Finished, SequenceEvent, StopReason};
pub use model::{Route, RoutedModel, Sequence};
pub use observer::{NoObserver, Observer, Outcome, RequestSummary};
pub use params::{GenerateRequest, SamplingParams};
pub use queue::Load;
pub use run_model::{LoadPath, PrefixRouter, RoutePrefix, RunModel, RunModelError};
pub use sampler::TokenSampler;
pub use score::{LOWEST_LOG_PROB, TokenScore, score};
pub use stop::{Stop, StopMatcher};
