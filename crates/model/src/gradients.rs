//! The gradients of a path's parameters.

use candle_core::Tensor;

use crate::ModelError;

/// One gradient per tensor of a path, in the order of [`crate::path_specs`].
#[derive(Debug)]
pub struct Gradients {
    tensors: Vec<Tensor>,
}

impl Gradients {
    pub(crate) fn new(tensors: Vec<Tensor>) -> Self {
        Self { tensors }
    }

    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// How many tensors have a gradient: all of the path's.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the path has no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Runs `f` on the gradient of each tensor in turn: the tensor's index in [`crate::path_specs`] and the elements.
    ///
    /// # Errors
    /// When the device can't be read.
    pub fn for_each(&self, mut f: impl FnMut(usize, &[f32])) -> Result<(), ModelError> {
        for (index, tensor) in self.tensors.iter().enumerate() {
            dipaco_ops::with_slice(tensor, |elements| f(index, elements))?;
        }
        Ok(())
    }
}
