//! The training step of one path on an NVIDIA GPU.
//!
//! [`Gpu::open`] finds a GPU, or says what is missing: nothing of CUDA is needed to build or to start a program that has
//! this package in it. [`CudaPath`] then holds a path there, a copy of what `dipaco-model` and `dipaco-optim` compute on
//! the CPU: the same parameters in the same order, the same AdamW, one allocation for everything.
//!
//! The kernels (`kernels/*.cu`) are compiled by NVRTC for the GPU and the shape at hand when a path is put there;
//! products are cuBLASLt's. All sums have a fixed order: the same path and batches give the same bits on one kind of
//! GPU with one version of CUDA.
//!
//! This package knows no modules, no data, no schedule, no files and no inference with a KV cache.

mod arena;
mod batch;
mod device;
mod engine;
mod error;
mod gpu;
#[cfg(test)]
mod host;
mod kernels;
mod nvidia;
mod passes;
mod path;
mod shape;
#[cfg(test)]
mod tests;
mod update;

pub use error::CudaError;
pub use gpu::{Gpu, GpuInfo};
pub use path::{AdamW, CudaOptions, CudaPath, KernelTime, PathState, StepReport};
pub use shape::{PathShape, Precision};

/// The target of a position that does not count.
pub const IGNORE: u32 = u32::MAX;
