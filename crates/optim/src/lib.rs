//! AdamW, Nesterov momentum, learning-rate schedules and gradient clipping.
//!
//! Pure functions on f32 slices: the caller owns parameters, gradients and moments, so saving an optimizer is saving
//! its slices. Long slices are worked on by rayon's threads in chunks of a fixed size, and sums are added in the order
//! of the chunks: the result's bits do not depend on the number of threads.
//!
//! This package does not know tensors, modules or files.

mod adamw;
mod clip;
mod config_error;
mod delayed_nesterov;
mod nesterov;
mod schedule;
mod vector;

pub use adamw::{AdamWConfig, adamw_step};
pub use clip::{clip_scale, squared_norm};
pub use config_error::OptimConfigError;
pub use delayed_nesterov::{DelayedNesterov, DelayedNesterovConfig, delayed_nesterov_step};
pub use nesterov::{NesterovConfig, nesterov_step};
pub use schedule::{ScheduleConfig, learning_rate};

/// Elements of one task, and the unit in which sums are taken.
const CHUNK: usize = 8192;
