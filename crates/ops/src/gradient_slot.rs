//! The gradient of a part of a module, summed over backward passes.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::{Buffer, Workspace};

/// The gradient of a flat group of parameters (the embedding, one block, the head), f32. Backward passes write to the slot
/// instead of handing a tensor to candle, which would add it to zeros first. The gradients of several passes add up
/// (gradient accumulation). Clones share the gradient; its memory comes from a workspace and goes back there.
#[derive(Clone, Debug)]
pub struct GradientSlot(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    workspace: Workspace,
    length: usize,
    sum: Mutex<Option<Buffer>>,
}

impl GradientSlot {
    /// A slot for `length` parameters, without a gradient yet.
    #[must_use]
    pub fn new(workspace: &Workspace, length: usize) -> Self {
        Self(Arc::new(Slot { workspace: workspace.clone(), length, sum: Mutex::default() }))
    }

    /// Number of parameters of the group.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.0.length
    }

    /// Takes the gradient out of the slot; `None` when no backward pass has reached the slot.
    #[must_use]
    pub fn take(&self) -> Option<PartGradient> {
        let values = self.lock().take()?;
        Some(PartGradient { values, workspace: self.0.workspace.clone() })
    }

    /// True if both are the same slot.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Adds to the gradient: `f` gets the sum so far, and true if it is arbitrary memory that `f` must overwrite.
    pub(crate) fn add<R>(&self, f: impl FnOnce(&mut [f32], bool) -> R) -> R {
        let mut sum = self.lock();
        let fresh = sum.is_none();
        f(sum.get_or_insert_with(|| self.0.workspace.take(self.0.length)), fresh)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Buffer>> {
        self.0.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(sum) = self.sum.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.workspace.give(sum);
        }
    }
}

/// The finished gradient of a part of a module: one number for each parameter. Dropping it gives its memory back to the
/// workspace.
#[derive(Debug)]
pub struct PartGradient {
    values: Buffer,
    workspace: Workspace,
}

impl Deref for PartGradient {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl Drop for PartGradient {
    fn drop(&mut self) {
        self.workspace.give(std::mem::take(&mut self.values));
    }
}
