//! Measurements of a coordinator that need no model: a load test and a trial of transfers.
//!
//! [`load_test`] lets many simulated workers ask a real coordinator for leases. [`serve_trial`] and [`TrialWorker`] move
//! objects and results as a coordinator and a worker do, without a run.

mod load_test;
mod transfer_trial;

pub use load_test::{LoadTestOptions, LoadTestReport, load_test};
pub use transfer_trial::{TrialWorker, serve_trial};
