//! The training step of one path on an NVIDIA GPU, and its forward pass for routing.
//!
//! [`Gpu::open`] opens a GPU or returns an error that names the missing library. Building this package and starting a
//! program that contains it need nothing of CUDA. [`CudaPath`] holds a path on the GPU, in one allocation. It computes
//! the same step as `dipaco-model` and `dipaco-optim` on the CPU, with the same parameters in the same order.
//! [`CudaReader`] holds a path for forward passes only: features for routing, and scores.
//!
//! NVRTC compiles the kernels (`kernels/*.cu`) for the GPU and the shape of the path when the path is created. cuBLASLt
//! computes the matrix products. All sums have a fixed order: the same path and batches give the same bits on one kind
//! of GPU with one version of CUDA.
//!
//! This package has no modules, no data, no schedule, no files and no inference with a KV cache.

mod arena;
mod batch;
mod device;
mod engine;
mod error;
mod gpu;
#[cfg(test)]
mod host;
mod kernels;
mod layout;
mod nvidia;
mod operands;
mod pass;
mod passes;
mod path;
mod projection;
mod reader;
mod step_numbers;
#[cfg(test)]
mod tests;
mod trained;
mod update;

pub use error::CudaError;
pub use gpu::{Gpu, GpuInfo};
pub use path::{CudaOptions, CudaPath, CudaStep, KernelTime, PathUpload};
pub use reader::CudaReader;
pub use trained::Trained;
