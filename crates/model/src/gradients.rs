//! The gradients of a path's parameters.

use std::sync::Arc;

use dipaco_ops::GradientSlot;

use crate::{ModelError, TensorSpec};

/// The gradient of every parameter of a path. Its memory goes back to the path when it is dropped, and the next step
/// uses it again.
#[derive(Debug)]
pub struct Gradients {
    pub(crate) specs: Arc<[TensorSpec]>,
    /// One per part in the order of the specs, each with the tensors of the part one after the other.
    pub(crate) slots: Vec<GradientSlot>,
}

impl Gradients {
    /// Runs `f` on the gradient of each tensor in turn: the tensor's index in [`crate::path_specs`] and the elements.
    ///
    /// # Errors
    /// When a part of the path has no gradient.
    pub fn for_each(&self, mut f: impl FnMut(usize, &[f32])) -> Result<(), ModelError> {
        let mut index = 0;
        for slot in &self.slots {
            let first = index;
            index = slot.with(|gradient| {
                let Some(mut rest) = gradient else {
                    let tensor = self.specs.get(first).map_or_else(String::new, |spec| spec.name.clone());
                    return Err(ModelError::NoGradient { tensor });
                };
                let mut index = first;
                while let Some(spec) = self.specs.get(index).filter(|_| !rest.is_empty()) {
                    let (tensor, after) = rest.split_at(spec.parameters());
                    f(index, tensor);
                    (rest, index) = (after, index + 1);
                }
                Ok(index)
            })?;
        }
        Ok(())
    }
}

impl Drop for Gradients {
    fn drop(&mut self) {
        for slot in &self.slots {
            slot.clear();
        }
    }
}
