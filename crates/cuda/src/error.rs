//! What can go wrong on the way to a GPU and on it.

use thiserror::Error;

/// Why a path can't be trained on a GPU, or a step failed there.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A shared library of CUDA is missing.
    #[error("{library} was not found: {remedy}")]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// There is no such GPU.
    #[error("there is no GPU number {ordinal}: the driver knows {count} (CUDA_VISIBLE_DEVICES limits which)")]
    NoDevice {
        /// The number asked for, from 0.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The path does not fit into the GPU's memory.
    #[error(
        "the path needs {needed} MiB of GPU memory and {free} of {total} MiB are free: lower train.micro_batch, set \
         train.activation_checkpointing, or end what else uses the GPU"
    )]
    Memory {
        /// What the path needs, in MiB.
        needed: usize,
        /// What is free, in MiB.
        free: usize,
        /// What the GPU has, in MiB.
        total: usize,
    },
    /// The kernels do not compile for this GPU.
    #[error("NVRTC did not compile the kernels for {architecture}; its log:\n{log}")]
    Compile {
        /// The architecture that they were compiled for.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
    /// The driver refused.
    #[error("the CUDA driver failed at {what}")]
    Driver {
        /// What was attempted.
        what: &'static str,
        /// The driver's error.
        source: cudarc::driver::DriverError,
    },
    /// cuBLASLt refused a product.
    #[error("cuBLASLt failed at {what}")]
    Product {
        /// What was attempted, with the sizes of the product.
        what: String,
        /// The library's error.
        source: cudarc::cublaslt::result::CublasError,
    },
    /// A shape that the kernels do not take.
    #[error("{key} {problem}")]
    Shape {
        /// The key of the configuration.
        key: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// Arguments that do not fit the path.
    #[error("{what}: {problem}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}
