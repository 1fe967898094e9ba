//! Measurements of a coordinator that need no training, and of a server: load tests and a transfer trial.
//!
//! [`serve_load`] sends completions to a server over HTTP. [`load_test`] lets many simulated workers ask a real coordinator for leases. [`serve_trial`] and [`TrialWorker`] move
//! objects and results as a coordinator and a worker do, without a run. The last two use the sessions, transfers and uploads of
//! `dipaco-train`, so they measure the code that a run uses.

#![forbid(unsafe_code)]

mod error;
mod load_test;
mod percentiles;
mod serve_load;
mod transfer_trial;

pub use error::BenchError;
pub use load_test::{LoadTestOptions, LoadTestReport, load_test};
pub use percentiles::{Percentiles, percentile};
pub use serve_load::{
    Arrivals, Goodput, LatencyBounds, Prompts, ServeLoadOptions, ServeLoadReport, Workload, serve_load,
};
pub use transfer_trial::{TrialWorker, serve_trial};
