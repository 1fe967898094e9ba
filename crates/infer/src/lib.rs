//! Inference engine without HTTP: queue, routing, incremental decoding, sampling and log-probabilities.
//!
//! A request holds a prompt of token ids. The engine admits it to a bounded queue and picks its path from the first tokens,
//! unless the caller pins a path. It sends [`GenerationEvent`]s. A caller that drops its [`Submission`] frees its places
//! within one step.
//!
//! Many sequences run at a time. One step of the engine takes rows of all of them through the model, so sequences that share
//! a module read its weights once. Keys and values lie in pages of a pool of fixed size. Sequences that begin alike on the
//! same modules share pages. A sequence gets the same bits alone and among others.
//!
//! Modules need not be in memory before a sequence needs them. A sequence without its modules waits, and the others go on.
//!
//! The engine uses a model through the trait [`RoutedModel`] and a tokenizer through the trait [`TextCodec`]. [`RunModel`]
//! is the model made of a run's modules. The engine knows no HTTP and reads no files.

#![forbid(unsafe_code)]

mod codec;
mod continuation;
mod engine;
mod error;
mod event;
mod job;
mod loads;
mod model;
mod module_cache;
mod moves;
mod observer;
mod params;
mod passes;
mod reroute;
mod route_cache;
mod routes;
mod run_model;
mod runner;
mod running;
mod sampler;
mod scheduler;
mod score;
mod shared;
mod stop;
mod submission;
mod versions;

pub use codec::{TextCodec, TextStream, TokenizerInfo};
pub use dipaco_model::BoxError;
pub use dipaco_model::{Dtype, PAGE_TOKENS, Positions};
pub use engine::{Engine, EngineConfig};
pub use error::EngineError;
pub use event::{FinishReason, Finished, GenerationEvent, SequenceEvent, StopReason};
pub use model::{
    Executor, Generation, Measure, PageCopy, PathVersion, Route, RoutedModel, SequenceRows, ServedPath,
};
pub use module_cache::{MemoryTooSmall, ModuleCache, ModuleKey, ModuleMemory};
pub use observer::{NoObserver, Observer, Outcome, RequestSummary, StepSummary};
pub use params::{GenerateRequest, SamplingParams};
pub use route_cache::most_route_bytes;
pub use run_model::{
    ChunkRouter, LoadModule, PathModules, PrefixRouter, RoutePrefixes, RunModel, RunModelError, RunPaths,
};
pub use sampler::TokenSampler;
pub use scheduler::Load;
pub use score::{LOWEST_LOG_PROB, TokenScore, score};
pub use stop::{Stop, StopMatcher};
pub use submission::Submission;
