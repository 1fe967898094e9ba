//! A module on the device.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};

use crate::{ModelError, ModuleWeights, TensorSpec};

/// A module's tensors on the device, shared by all paths that use it.
#[derive(Clone, Debug)]
pub struct Module {
    specs: Arc<[TensorSpec]>,
    tensors: Vec<Tensor>,
}

impl Module {
    /// Loads weights for inference: nothing that uses them keeps a graph.
    ///
    /// # Errors
    /// When the weights do not fit their specs, or the device has no room.
    pub fn load(weights: &ModuleWeights, device: &Device) -> Result<Self, ModelError> {
        weights.check()?;
        let tensor = |(spec, values): (&TensorSpec, &[f32])| Tensor::from_slice(values, spec.shape.as_slice(), device);
        let tensors = weights.tensors().map(tensor).collect::<Result<_, _>>()?;
        Ok(Self { specs: weights.specs.clone(), tensors })
    }

    /// Loads weights that [`crate::Path::backward`] gives gradients for and [`crate::Path::update`] changes.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load_trainable(weights: &ModuleWeights, device: &Device) -> Result<Self, ModelError> {
        let mut module = Self::load(weights, device)?;
        for tensor in &mut module.tensors {
            *tensor = Var::from_tensor(tensor)?.as_tensor().clone();
        }
        Ok(module)
    }

    /// The tensors that the module has.
    #[must_use]
    pub fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    /// The tensors, in the order of the specs.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Copies the weights from the device.
    ///
    /// # Errors
    /// When the device can't be read.
    pub fn weights(&self) -> Result<ModuleWeights, ModelError> {
        let mut values = Vec::with_capacity(crate::parameters(&self.specs));
        for tensor in &self.tensors {
            dipaco_ops::with_slice(tensor, |elements| values.extend_from_slice(elements))?;
        }
        ModuleWeights::new(self.specs.clone(), values)
    }
}
