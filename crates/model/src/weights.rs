//! Weights of a module outside of any device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, SafeTensors, View};

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

/// [`ModuleWeights`] that lie elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct ModuleView<'a> {
    /// The tensors.
    pub specs: &'a Arc<[TensorSpec]>,
    /// The elements, one tensor after the other in the order of `specs`, each row-major.
    pub values: &'a [f32],
}

impl ModuleView<'_> {
    /// A copy of the weights.
    #[must_use]
    pub fn to_weights(self) -> ModuleWeights {
        ModuleWeights { specs: self.specs.clone(), values: self.values.to_vec() }
    }

    /// Checks that the number of values is the number of elements of the specs.
    pub(crate) fn check(self) -> Result<(), ModelError> {
        let (expected, found) = (parameters(self.specs), self.values.len());
        if found == expected {
            return Ok(());
        }
        let tensor = self.specs.first().map_or_else(String::new, |spec| spec.name.clone());
        let problem =
            format!("the module that starts here has {expected} parameters, but {found} values were given");
        Err(ModelError::Weights { tensor, problem })
    }
}

impl ModuleWeights {
    /// Joins specs and values.
    ///
    /// # Errors
    /// The number of values differs from the number of elements of the specs.
    pub fn new(specs: Arc<[TensorSpec]>, values: Vec<f32>) -> Result<Self, ModelError> {
        let weights = Self { specs, values };
        weights.view().check()?;
        Ok(weights)
    }

    /// The weights where they lie.
    #[must_use]
    pub fn view(&self) -> ModuleView<'_> {
        ModuleView { specs: &self.specs, values: &self.values }
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
        self.view().check()?;
        safetensors_of(self.tensors(), metadata)
    }

    /// Reads a safetensors file with exactly these tensors, in any order, as f32.
    ///
    /// # Errors
    /// The bytes are damaged, or a tensor is missing, unknown, of another shape or not f32.
    pub fn from_safetensors(bytes: &[u8], specs: Arc<[TensorSpec]>) -> Result<Self, ModelError> {
        let (header, metadata) = SafeTensors::read_metadata(bytes)?;
        check_tensors(&metadata, &specs)?;
        let data = bytes.get(size_of::<u64>() + header..).unwrap_or_default();
        // The sizes in the file may be wrong, so its length bounds the capacity.
        let mut values = Vec::with_capacity(bytes.len() / 4);
        for info in specs.iter().filter_map(|spec| metadata.info(&spec.name)) {
            let (start, end) = info.data_offsets;
            let (numbers, _) = data.get(start..end).unwrap_or_default().as_chunks::<4>();
            values.extend(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        Self::new(specs, values)
    }
}

/// Checks that a file has exactly these tensors, of their shapes and f32. Returns their indices in the order of the file.
///
/// # Errors
/// A tensor is missing, unknown, of another shape or not f32.
pub(crate) fn check_tensors(metadata: &Metadata, specs: &[TensorSpec]) -> Result<Vec<usize>, ModelError> {
    let wrong = |tensor: &str, problem: String| ModelError::Weights { tensor: tensor.to_owned(), problem };
    // A map, because a file of a stranger may have any number of names.
    let known: HashMap<&str, usize> =
        specs.iter().enumerate().map(|(index, spec)| (spec.name.as_str(), index)).collect();
    let mut order = Vec::with_capacity(specs.len());
    for name in metadata.offset_keys() {
        let unknown = || wrong(&name, "the file has it, but a module of this shape does not".into());
        order.push(*known.get(name.as_str()).ok_or_else(unknown)?);
    }
    for spec in specs {
        let Some(info) = metadata.info(&spec.name) else {
            return Err(wrong(&spec.name, "is missing from the file".into()));
        };
        if info.dtype != Dtype::F32 {
            let problem = format!("is {:?} in the file: only F32 is read", info.dtype);
            return Err(wrong(&spec.name, problem));
        }
        if info.shape != spec.shape {
            let problem = format!("is {:?} in the file, but the model has {:?}", info.shape, spec.shape);
            return Err(wrong(&spec.name, problem));
        }
    }
    Ok(order)
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
