//! Access to the memory of a tensor.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor};

use crate::OpsError;

/// The elements of a contiguous f32 tensor, in row-major order.
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

/// [`with_slice`] with candle's error, for candle's operations.
pub(crate) fn read<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> candle_core::Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => Ok(f(elements(cpu, layout)?)),
        _ => candle_core::bail!("the tensor is not on the CPU"),
    }
}

/// candle's view of [`update_in_place`]. candle calls it with a shared reference, so the closure is in a cell.
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

/// Changes the elements of a tensor in place; `f` gets them in row-major order. Every tensor that shares the storage sees
/// the change.
///
/// # Errors
/// When the tensor is not contiguous, not f32 or not on the CPU.
pub fn update_in_place(target: &Tensor, f: impl FnMut(&mut [f32])) -> Result<(), OpsError> {
    Ok(target.inplace_op1(&Update(RefCell::new(f)))?)
}
