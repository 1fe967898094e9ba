//! HTTP server of a run, with the API of OpenAI's completions.
//!
//! [`while_loading`] answers on a listener while the run is loaded, and
//! [`serve()`] then answers until the shutdown token is cancelled: completions (plain and as server-sent events),
//! the run and its paths as models, the route of a text, the tokenizer, health and metrics. [`serve_metrics`] answers on a
//! listener for metrics only. The engine of `dipaco-infer` computes; this package reads requests, limits them, and writes
//! answers. It knows nothing of training and opens no run. It reads one file, the API keys, and follows its changes.

#![forbid(unsafe_code)]

mod admission;
mod auth;
mod blocking;
mod body;
mod chat_template;
mod client_text;
mod completions;
mod cors;
mod deadline;
mod error;
mod fields;
mod info;
mod key_file;
mod loading;
mod metrics;
mod models;
mod openapi;
mod random;
mod request_id;
mod route;
mod router;
mod sampling_defaults;
mod serve;
mod settings;
mod state;
mod tokenize;
mod unread;
mod write_limit;

pub use auth::ApiKeys;
pub use body::body_bytes;
pub use chat_template::{ChatTemplate, EncodeChat, TemplateTokens};
pub use dipaco_settings::{KvType, Preload, RerouteBy, ServeConfig, WeightType};
pub use loading::{LoadProgress, while_loading};
pub use metrics::{EngineState, Metrics};
pub use sampling_defaults::SamplingDefaults;
pub use serve::{serve, serve_metrics};
pub use settings::engine_config;
pub use state::{ServedRun, ServerError, ServerState, start_engine};
