//! The HTTP server of a run, in the form of OpenAI's completions.
//!
//! [`serve`] answers on a listener until a token tells it to stop: completions (plain and as server-sent events), the
//! run and its paths as models, the route of a text, the tokenizer, health and metrics. What computes is the engine of
//! `dipaco-infer`; this package reads requests, bounds them, and writes answers. It knows no training, opens no run and
//! reads no file but the one with the API keys.

mod auth;
mod blocking;
mod body;
mod completions;
mod config;
mod error;
mod fields;
mod histogram;
mod info;
mod metrics;
mod models;
mod random;
mod route;
mod router;
mod serve;
mod state;
mod tokenize;

pub use auth::ApiKeys;
pub use config::{ServeConfig, ServeConfigError};
pub use metrics::Metrics;
pub use serve::serve;
pub use state::{ServedRun, ServerError, State};
