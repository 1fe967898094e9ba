//! Gradients of the parameters of a path, and the update of the parameters.

use std::sync::Arc;

use dipaco_ops::PartGradient;

use crate::{ModelError, Path, TensorSpec};

/// Gradients of the parameters of a path that train. Dropping them returns their memory to the path for the next step.
#[derive(Debug)]
pub struct Gradients {
    pub(crate) specs: Arc<[TensorSpec]>,
    /// The gradient of each part that trains in the order of the specs: of its tensors, one after the other.
    pub(crate) parts: Vec<PartGradient>,
}

impl Gradients {
    /// Each tensor of [`Path::trained_specs`] in order, with the elements of its gradient.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        by_part(&self.specs).zip(&self.parts).flat_map(|(specs, gradient)| {
            let mut rest: &[f32] = gradient;
            specs.iter().map(move |spec| {
                let (tensor, after) = rest.split_at(spec.parameters());
                rest = after;
                (spec, tensor)
            })
        })
    }
}

/// The specs of each part of a path: of the embedding, of each block and of the head.
pub(crate) fn by_part(specs: &[TensorSpec]) -> impl Iterator<Item = &[TensorSpec]> {
    specs.chunk_by(|a, b| a.part == b.part)
}

impl Path {
    /// Changes the parameters in place, without a copy. `f` gets, for each tensor of [`Path::trained_specs`] in order,
    /// its spec, its elements and the elements of its gradient. Every path through a module sees the change.
    ///
    /// # Errors
    /// The device can't be written, or the gradients are of a path of another shape.
    pub fn update(
        &self,
        gradients: &Gradients,
        mut f: impl FnMut(&TensorSpec, &mut [f32], &[f32]),
    ) -> Result<(), ModelError> {
        if gradients.specs != *self.trained_specs() {
            let problem = "they are of a path of another shape".to_owned();
            return Err(ModelError::Batch { what: "gradients", problem });
        }
        let trained = self.parts().iter().filter(|place| place.trains());
        for ((place, specs), gradient) in trained.zip(by_part(self.trained_specs())).zip(&gradients.parts) {
            dipaco_ops::update_in_place(&place.flat, |all| {
                let mut values = &mut all[place.at..place.at + place.parameters];
                let mut gradient: &[f32] = gradient;
                for spec in specs {
                    let (own_values, other_values) =
                        std::mem::take(&mut values).split_at_mut(spec.parameters());
                    let (own_gradient, other_gradients) = gradient.split_at(spec.parameters());
                    f(spec, own_values, own_gradient);
                    (values, gradient) = (other_values, other_gradients);
                }
            })?;
        }
        Ok(())
    }
}
