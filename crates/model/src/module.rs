//! A module on the device.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};

use crate::{ModelError, ModuleView, ModuleWeights, TensorSpec};

/// Parameters of a module on the device as one flat tensor, shared by all paths through the module.
#[derive(Clone, Debug)]
pub struct Module {
    specs: Arc<[TensorSpec]>,
    flat: Tensor,
}

impl Module {
    /// Loads weights for inference, or of a frozen level of a path in training. They have no gradients.
    ///
    /// # Errors
    /// The weights do not fit their specs, or the device has no room.
    pub fn load(weights: &ModuleWeights, device: &Device) -> Result<Self, ModelError> {
        Self::load_view(weights.view(), false, device)
    }

    /// Loads weights for training with [`crate::Path::gradients`] and [`crate::Path::update`].
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load_trainable(weights: &ModuleWeights, device: &Device) -> Result<Self, ModelError> {
        Self::load_view(weights.view(), true, device)
    }

    /// Loads weights that lie elsewhere: as [`Module::load`] does, or as [`Module::load_trainable`] if it trains.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load_view(weights: ModuleView<'_>, trains: bool, device: &Device) -> Result<Self, ModelError> {
        weights.check()?;
        let mut flat = Tensor::from_slice(weights.values, weights.values.len(), device)?;
        if trains {
            // The variable takes the storage of the tensor, without a copy.
            flat = Var::from_tensor(&flat)?.into_inner();
        }
        Ok(Self { specs: weights.specs.clone(), flat })
    }

    /// Replaces the weights where they lie, without new memory. Every path through the module sees the change.
    ///
    /// # Errors
    /// The weights are of a module of another shape, or the device can't be written.
    pub fn overwrite(&self, weights: ModuleView<'_>) -> Result<(), ModelError> {
        weights.check()?;
        if *weights.specs != self.specs {
            let problem = "they are of a module of another shape".to_owned();
            return Err(ModelError::Batch { what: "weights", problem });
        }
        Ok(dipaco_ops::update_in_place(&self.flat, |values| values.copy_from_slice(weights.values))?)
    }

    /// True if the module was loaded with [`Module::load_trainable`].
    #[must_use]
    pub fn trains(&self) -> bool {
        self.flat.is_variable()
    }

    /// Returns the tensors of the module.
    #[must_use]
    pub fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    /// Returns all elements, one tensor after the other in the order of the specs.
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
    /// The device can't be read.
    pub fn weights(&self) -> Result<ModuleWeights, ModelError> {
        ModuleWeights::new(self.specs.clone(), self.with_values(<[f32]>::to_vec)?)
    }
}
