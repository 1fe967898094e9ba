//! Measurements of a coordinator that need no training: a load test and a transfer trial.
//!
//! [`load_test`] lets many simulated workers ask a real coordinator for leases. [`serve_trial`] and [`TrialWorker`] move
//! objects and results as a coordinator and a worker do, without a run. Both use the sessions, transfers and uploads of
//! `dipaco-train`, so they measure the code that a run uses.

#![forbid(unsafe_code)]

mod error;
mod load_test;
mod transfer_trial;

pub use error::BenchError;
pub use load_test::{LoadTestOptions, LoadTestReport, load_test};
pub use transfer_trial::{TrialWorker, serve_trial};
