//! Errors of computing on a GPU.

use thiserror::Error;

/// Error of opening a GPU or of a step on it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A shared library of CUDA is missing.
    #[error("{library} was not found: {remedy}")]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// Advice for the operator.
        remedy: &'static str,
    },
    /// The GPU does not exist.
    #[error("there is no GPU number {ordinal}: the driver knows {count} (CUDA_VISIBLE_DEVICES limits which)")]
    NoDevice {
        /// Number of the requested GPU, from 0.
        ordinal: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// The GPU lacks instructions of the kernels.
    #[error(
        "GPU {ordinal} has compute capability {major}.{minor}: use one with 8.0 (Ampere) or newer, or the CPU"
    )]
    Capability {
        /// Number of the GPU, from 0.
        ordinal: usize,
        /// Major number of its compute capability.
        major: i32,
        /// Minor number of its compute capability.
        minor: i32,
    },
    /// The path does not fit into the GPU's memory.
    #[error(
        "the path needs {needed} MiB of GPU memory and {free} of {total} MiB are free: {remedy}, or stop other programs that \
         use the GPU"
    )]
    Memory {
        /// Memory of the path, in MiB.
        needed: usize,
        /// Free memory, in MiB.
        free: usize,
        /// Memory of the GPU, in MiB.
        total: usize,
        /// Advice for the operator.
        remedy: &'static str,
    },
    /// The kernels do not compile for this GPU.
    #[error("NVRTC did not compile the kernels for {architecture}; its log:\n{log}")]
    Compile {
        /// Target architecture of the compilation.
        architecture: String,
        /// Log of the compiler.
        log: String,
    },
    /// The driver returned an error.
    #[error("the CUDA driver failed at {what}")]
    Driver {
        /// The attempted action.
        what: &'static str,
        /// The driver's error.
        source: cudarc::driver::DriverError,
    },
    /// cuBLASLt refused a product.
    #[error("cuBLASLt failed at {what}")]
    Product {
        /// The attempted action, with the sizes of the product.
        what: String,
        /// The library's error.
        source: cudarc::cublaslt::result::CublasError,
    },
    /// The kernels do not support the shape of the path.
    #[error("{key} {problem}")]
    Shape {
        /// Key of the configuration.
        key: &'static str,
        /// The problem with its value.
        problem: String,
    },
    /// Arguments that do not fit the path.
    #[error("{what}: {problem}")]
    Argument {
        /// Name of the argument.
        what: &'static str,
        /// The problem.
        problem: String,
    },
}
