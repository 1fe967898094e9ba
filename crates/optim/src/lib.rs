//! AdamW, Muon, Nesterov momentum, learning-rate schedules and gradient clipping.
//!
//! Pure functions on f32 slices. The caller owns parameters, gradients and moments; it saves an optimizer by saving its
//! slices. Rayon's threads share long slices in chunks of a fixed size, and sums are added in the order of the chunks,
//! so the number of threads does not change the bits of a result. Muon's products of matrices come from the caller.
//!
//! This package does not know tensors, modules or files.

#![forbid(unsafe_code)]

mod adamw;
mod clip;
mod config_error;
mod delayed_nesterov;
mod muon;
mod nesterov;
mod schedule;
mod vector;

pub use adamw::{AdamWConfig, AdamWMoments, AdamWStep, adamw_step};
pub use clip::{clip_scale, squared_norm};
pub use config_error::OptimConfigError;
pub use delayed_nesterov::{DelayedNesterov, DelayedNesterovConfig, delayed_nesterov_step};
pub use muon::{MUON_MOMENTUM, MuonScratch, MuonStep, Optimizer, ProductShape, Products, muon_step};
pub use nesterov::{NesterovConfig, OuterOptimizer, nesterov_step};
pub use schedule::{ScheduleConfig, learning_rate};

/// Elements of one task. Sums are taken per task first.
const CHUNK: usize = 8192;
