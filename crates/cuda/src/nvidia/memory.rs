//! Memory of a GPU.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result, sys};

use crate::device::Address;
use crate::gpu::driver;
use crate::{CudaError, Gpu};

/// An allocation on the GPU.
pub(crate) struct Memory {
    pub(super) address: Address,
    stream: Arc<CudaStream>,
}

impl Memory {
    /// Allocates `bytes` of the GPU's memory, uninitialised.
    pub(super) fn new(gpu: &Gpu, stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, CudaError> {
        gpu.context().bind_to_thread().map_err(driver("binding the GPU to the thread"))?;
        // SAFETY: the GPU's context is current; only kernels and copies get the memory, and they accept any bytes.
        let address = unsafe { result::malloc_sync(bytes) };
        match address {
            Ok(address) => Ok(Self { address: Address(address), stream: stream.clone() }),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let info = gpu.info()?;
                let [needed, free, total] = [bytes, info.free, info.total].map(|bytes| bytes >> 20);
                let remedy = "lower micro_batch and set activation_checkpointing in [train] or [seed_model]";
                Err(CudaError::Memory { needed, free, total, remedy })
            }
            Err(error) => Err(driver("taking memory")(error)),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A drop can't return an error, so the context reports it at its next use.
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        context.record_err(self.stream.synchronize());
        // SAFETY: the address came from `malloc_sync` and is freed once; the stream has finished all work on it.
        context.record_err(unsafe { result::free_sync(self.address.0) });
    }
}
