//! Fused tensor operations of a path with their gradients.
//!
//! candle's own `rms_norm`, `rope` and `softmax` have no backward pass, so gradients through them vanish; these have
//! one. Every operation works on contiguous `f32` tensors on the CPU and gives the same bits for any number of
//! threads: work is cut into chunks of a fixed size and partial sums are added in the order of the chunks.
//!
//! The tensor functions ([`linear`], [`rms_norm`], [`rope`], [`attention`], [`swiglu`], [`embedding`], [`add`],
//! [`cross_entropy`]) record gradients. [`kernel`] has the same computations on plain slices, without a graph, for
//! incremental decoding. [`with_slice`] and [`update_in_place`] reach a tensor's memory.
//!
//! This package knows no model: it holds no weights, draws no random numbers and does no I/O.

mod add;
mod attention;
mod cross_entropy;
mod embedding;
mod error;
mod exp;
mod linear;
mod matmul;
mod memory;
mod rms_norm;
mod rope;
mod swiglu;

pub mod kernel;

#[cfg(test)]
mod test_support;

pub use add::add;
pub use attention::attention;
pub use cross_entropy::{CrossEntropy, cross_entropy, token_log_probs};
pub use embedding::embedding;
pub use error::OpsError;
pub use linear::linear;
pub use memory::{update_in_place, with_slice};
pub use rms_norm::rms_norm;
pub use rope::{RopeTable, rope};
pub use swiglu::swiglu;

/// The target of a position that is not counted in the loss.
pub const IGNORE: u32 = u32::MAX;
