//! Weights of a module outside of any device.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensors, View};

use crate::{ModelError, TensorSpec, parameters};

/// Weights of a module as flat numbers, the form in which they are stored, sent and averaged. The weights of a whole
/// path have the same form.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleWeights {
    /// The tensors.
    pub specs: Arc<[TensorSpec]>,
    /// The elements, one tensor after the other in the order of `specs`, each row-major.
    pub values: Vec<f32>,
}

impl ModuleWeights {
    /// Joins specs and values.
    ///
    /// # Errors
    /// The number of values differs from the number of elements of the specs.
    pub fn new(specs: Arc<[TensorSpec]>, values: Vec<f32>) -> Result<Self, ModelError> {
        let weights = Self { specs, values };
        weights.check()?;
        Ok(weights)
    }

    /// Checks that the number of values is the number of elements of the specs.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let (expected, found) = (parameters(&self.specs), self.values.len());
        if found == expected {
            return Ok(());
        }
        let tensor = self.specs.first().map_or_else(String::new, |spec| spec.name.clone());
        let problem =
            format!("the module that starts here has {expected} parameters, but {found} values were given");
        Err(ModelError::Weights { tensor, problem })
    }

    /// Returns each tensor with its elements, in the order of `specs`.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[f32])> {
        let mut rest = self.values.as_slice();
        self.specs.iter().map(move |spec| {
            let (tensor, after) = rest.split_at(spec.parameters().min(rest.len()));
            rest = after;
            (spec, tensor)
        })
    }

    /// Writes a safetensors file of f32 values with this entry as its `__metadata__`.
    ///
    /// Equal weights give equal bytes. That is why there is at most one entry: the writer of the format has no fixed
    /// order for several.
    ///
    /// # Errors
    /// The number of values does not fit the specs.
    pub fn to_safetensors(&self, metadata: Option<(&str, &str)>) -> Result<Vec<u8>, ModelError> {
        self.check()?;
        safetensors_of(self.tensors(), metadata)
    }

    /// Reads a safetensors file with exactly these tensors, in any order, as f32.
    ///
    /// # Errors
    /// The bytes are damaged, or a tensor is missing, unknown, of another shape or not f32.
    pub fn from_safetensors(bytes: &[u8], specs: Arc<[TensorSpec]>) -> Result<Self, ModelError> {
        let file = SafeTensors::deserialize(bytes)?;
        let wrong =
            |tensor: &str, problem: String| ModelError::Weights { tensor: tensor.to_owned(), problem };
        // A set, because a file of a stranger may have any number of names.
        let known: HashSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        for name in file.names() {
            if !known.contains(name) {
                return Err(wrong(name, "the file has it, but a module of this shape does not".into()));
            }
        }
        // The sizes in the file may be wrong, so its length bounds the capacity.
        let mut values = Vec::with_capacity(bytes.len() / 4);
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

/// Writes a safetensors file of f32 tensors, which may lie anywhere, with this entry as its `__metadata__`: see
/// [`ModuleWeights::to_safetensors`].
///
/// # Errors
/// The number of values of a tensor does not fit its spec.
pub fn safetensors_of<'a>(
    tensors: impl IntoIterator<Item = (&'a TensorSpec, &'a [f32])>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<u8>, ModelError> {
    let views =
        tensors.into_iter().map(|(spec, values)| (spec.name.as_str(), Floats { shape: &spec.shape, values }));
    let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_owned(), value.to_owned())]));
    Ok(safetensors::serialize(views, metadata)?)
}

/// A tensor for the safetensors writer.
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
        // The format is little-endian. On such a processor the values in memory are the bytes of the file.
        if cfg!(target_endian = "little") {
            Cow::Borrowed(bytemuck::cast_slice(self.values))
        } else {
            Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
    }

    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}
