//! A module's weights outside of any device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensors, View};

use crate::{ModelError, TensorSpec, parameters};

/// A module's weights as flat numbers: what is stored, sent and averaged. A whole path's weights have the same form.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleWeights {
    /// The tensors.
    pub specs: Arc<[TensorSpec]>,
    /// Their elements, one tensor after the other in the order of `specs`, each row-major.
    pub values: Vec<f32>,
}

impl ModuleWeights {
    /// Puts specs and values together.
    ///
    /// # Errors
    /// When there are more or fewer values than the specs hold.
    pub fn new(specs: Arc<[TensorSpec]>, values: Vec<f32>) -> Result<Self, ModelError> {
        let weights = Self { specs, values };
        weights.check()?;
        Ok(weights)
    }

    /// Checks that there are as many values as the specs hold.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let (expected, found) = (parameters(&self.specs), self.values.len());
        if found == expected {
            return Ok(());
        }
        let tensor = self.specs.first().map_or_else(String::new, |spec| spec.name.clone());
        let problem = format!("a module of {expected} parameters that starts here was given {found}");
        Err(ModelError::Weights { tensor, problem })
    }

    /// Each tensor with its elements, in the order of `specs`.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        let mut rest = self.values.as_slice();
        self.specs.iter().map(move |spec| {
            let (tensor, after) = rest.split_at(spec.parameters().min(rest.len()));
            rest = after;
            (spec, tensor)
        })
    }

    /// Writes a safetensors file: f32, with this entry as its `__metadata__`. One at most: the format's writer puts
    /// several in no fixed order, and equal weights are to be equal bytes.
    ///
    /// # Errors
    /// When the number of values does not fit the specs.
    pub fn to_safetensors(&self, metadata: Option<(&str, &str)>) -> Result<Vec<u8>, ModelError> {
        self.check()?;
        let views =
            self.tensors().map(|(spec, values)| (spec.name.as_str(), Floats { shape: &spec.shape, values }));
        let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_owned(), value.to_owned())]));
        Ok(safetensors::serialize(views, metadata)?)
    }

    /// Reads a safetensors file that holds exactly these tensors, in any order, as f32.
    ///
    /// # Errors
    /// When the bytes are damaged, or a tensor is missing, unknown, of another shape or not f32.
    pub fn from_safetensors(bytes: &[u8], specs: Arc<[TensorSpec]>) -> Result<Self, ModelError> {
        let file = SafeTensors::deserialize(bytes)?;
        let wrong =
            |tensor: &str, problem: String| ModelError::Weights { tensor: tensor.to_owned(), problem };
        for name in file.names() {
            if !specs.iter().any(|spec| spec.name == name) {
                return Err(wrong(name, "the file has it, but a module of this shape does not".into()));
            }
        }
        // Each tensor's size is checked against the file before its elements are copied, so nothing is reserved ahead.
        let mut values = Vec::new();
        for spec in specs.iter() {
            let Ok(view) = file.tensor(&spec.name) else {
                return Err(wrong(&spec.name, "is missing from the file".into()));
            };
            if view.dtype() != Dtype::F32 {
                return Err(wrong(
                    &spec.name,
                    format!("is {:?} in the file: only F32 is read", view.dtype()),
                ));
            }
            if view.shape() != spec.shape {
                let problem =
                    format!("is {:?} in the file, but the model has {:?}", view.shape(), spec.shape);
                return Err(wrong(&spec.name, problem));
            }
            let (numbers, _) = view.data().as_chunks::<4>();
            values.extend(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        Self::new(specs, values)
    }
}

struct Floats<'a> {
    shape: &'a [usize],
    values: &'a [f32],
}

impl View for Floats<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}
