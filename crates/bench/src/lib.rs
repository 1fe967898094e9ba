//! Measurements of a coordinator, of a worker's leases and of a server: load tests and trials.
//!
//! [`serve_load`] sends completions to a server over HTTP. [`load_test`] lets many simulated workers ask a real coordinator for leases. [`serve_trial`] and [`TrialWorker`] move
//! objects and results as a coordinator and a worker do, without a run. [`lease_trial`] carries out leases with
//! the code of a worker and measures each part of them. All but the first use the sessions, transfers and uploads of
//! `dipaco-train`, so they measure the code that a run uses.

#![forbid(unsafe_code)]

mod error;
mod lease_trial;
mod load_test;
mod percentiles;
mod serve_load;
mod transfer_trial;

pub use error::BenchError;
pub use lease_trial::{
    LeaseCost, LeaseTrialOptions, MovedBytes, ProcessMeter, ProcessUse, StageCost, lease_trial,
};
pub use load_test::{LoadTestOptions, LoadTestReport, load_test};
pub use percentiles::{Percentiles, percentile};
pub use serve_load::{
    Arrivals, Goodput, LatencyBounds, Prompts, ServeLoadOptions, ServeLoadReport, Workload, serve_load,
};
pub use transfer_trial::{TrialWorker, serve_trial};
