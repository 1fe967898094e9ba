//! Access to the memory behind a tensor.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor};

use crate::OpsError;

/// The contiguous elements of a CPU tensor's storage.
pub(crate) fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("the tensor is not contiguous: call contiguous() first");
    };
    match storage.as_slice::<f32>()?.get(start..end) {
        Some(elements) => Ok(elements),
        None => candle_core::bail!("the tensor's layout does not fit its storage"),
    }
}

/// Runs `f` on the elements of a contiguous f32 CPU tensor, in row-major order, without copying them.
///
/// # Errors
/// When the tensor is not contiguous, not f32 or not on the CPU.
pub fn with_slice<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R, OpsError> {
    Ok(read(tensor, f)?)
}

/// [`with_slice`] for use inside an operation, where errors are candle's.
pub(crate) fn read<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> candle_core::Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => Ok(f(elements(cpu, layout)?)),
        _ => candle_core::bail!("the tensor is not on the CPU"),
    }
}

/// A scalar f32 tensor's value.
pub(crate) fn scalar(tensor: &Tensor) -> candle_core::Result<f32> {
    tensor.to_scalar::<f32>()
}

struct Update<F>(RefCell<F>);

impl<F: FnMut(&mut [f32])> InplaceOp1 for Update<F> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, target: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(target), Some((start, end))) = (target, layout.contiguous_offsets()) else {
            candle_core::bail!("only a contiguous f32 tensor can be updated in place");
        };
        let Some(target) = target.get_mut(start..end) else {
            candle_core::bail!("the tensor's layout does not fit its storage");
        };
        (self.0.borrow_mut())(target);
        Ok(())
    }
}

/// Changes a tensor's elements in place: `f` gets them in row-major order. Every tensor that shares the storage sees the
/// change.
///
/// # Errors
/// When the tensor is not contiguous, not f32 or not on the CPU.
pub fn update_in_place(target: &Tensor, f: impl FnMut(&mut [f32])) -> Result<(), OpsError> {
    Ok(target.inplace_op1(&Update(RefCell::new(f)))?)
}

/// Asks the C library to keep freed memory for the next allocation instead of giving it back to the kernel, for the rest
/// of the process. The tensors between a step's operations are allocated and freed in each step, and a page that is new
/// to the process costs more than the arithmetic on it. Does nothing where the C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt has no preconditions; a value that it refuses changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}
