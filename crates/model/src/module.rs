//! A module on the device.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};

use crate::{ModelError, ModuleWeights, TensorSpec};

/// A module's parameters on the device as one flat tensor, shared by all paths that use it.
#[derive(Clone, Debug)]
pub struct Module {
    specs: Arc<[TensorSpec]>,
    flat: Tensor,
}

impl Module {
    /// Loads weights for inference: nothing that uses them keeps a graph.
    ///
    /// # Errors
    /// When the weights do not fit their specs, or the device has no room.
    pub fn load(weights: &ModuleWeights, device: &Device) -> Result<Self, ModelError> {
        weights.check()?;
        let flat = Tensor::from_slice(&weights.values, weights.values.len(), device)?;
        Ok(Self { specs: weights.specs.clone(), flat })
    }

    /// Loads weights that [`crate::Path::gradients`] gives gradients for and [`crate::Path::update`] changes.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load_trainable(weights: &ModuleWeights, device: &Device) -> Result<Self, ModelError> {
        weights.check()?;
        let flat = Tensor::from_slice(&weights.values, weights.values.len(), device)?;
        // The tensor's storage becomes the variable's: nothing is copied.
        let flat = Var::from_tensor(&flat)?.into_inner();
        Ok(Self { specs: weights.specs.clone(), flat })
    }

    /// The tensors that the module has.
    #[must_use]
    pub fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    /// All elements, one tensor after the other in the order of the specs.
    pub(crate) fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Reads all elements where they lie, one tensor after the other in the order of the specs.
    ///
    /// # Errors
    /// When the device can't be read.
    pub fn with_values<R>(&self, read: impl FnOnce(&[f32]) -> R) -> Result<R, ModelError> {
        Ok(dipaco_ops::with_slice(&self.flat, read)?)
    }

    /// Copies the weights from the device.
    ///
    /// # Errors
    /// When the device can't be read.
    pub fn weights(&self) -> Result<ModuleWeights, ModelError> {
        ModuleWeights::new(self.specs.clone(), self.with_values(<[f32]>::to_vec)?)
    }
}
