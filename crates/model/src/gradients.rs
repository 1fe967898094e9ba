//! Gradients of the parameters of a path.

use std::sync::Arc;

use dipaco_ops::GradientSlot;

use crate::{ModelError, TensorSpec};

/// Gradients of all parameters of a path. Dropping them returns their memory to the path for the next step.
#[derive(Debug)]
pub struct Gradients {
    pub(crate) specs: Arc<[TensorSpec]>,
    /// One slot per part in the order of the specs. A slot holds the tensors of its part one after the other.
    pub(crate) slots: Vec<GradientSlot>,
}

impl Gradients {
    /// Runs `f` for each tensor in order, with its index in [`crate::path_specs`] and the elements of its gradient.
    ///
    /// # Errors
    /// A part of the path has no gradient.
    pub fn for_each(&self, mut f: impl FnMut(usize, &[f32])) -> Result<(), ModelError> {
        // The specs are in the order of the parts, so one index runs through all of them.
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
