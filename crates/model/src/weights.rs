//! Weights of a module outside of any device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo};

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
        tensors_of(&self.specs, &self.values)
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

/// Each tensor with its values, which lie one after the other. A tensor without enough of them gets those that are left.
pub fn tensors_of<'a, 'v>(
    specs: &'a [TensorSpec],
    mut values: &'v [f32],
) -> impl Iterator<Item = (&'a TensorSpec, &'v [f32])> {
    specs.iter().map(move |spec| {
        let (tensor, rest) = values.split_at(spec.parameters().min(values.len()));
        values = rest;
        (spec, tensor)
    })
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

/// Writes a safetensors file of f32 tensors, which may lie anywhere: see [`ModuleWeights::to_safetensors`].
fn safetensors_of<'a>(
    tensors: impl IntoIterator<Item = (&'a TensorSpec, &'a [f32])>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<u8>, ModelError> {
    let tensors = tensors.into_iter().map(|(spec, values)| (spec, little_endian(values)));
    Ok(safetensors_parts(tensors, metadata)?.concat())
}

/// The parts of a safetensors file of f32 tensors, in order: its header, with this entry as its `__metadata__`, and the bytes of
/// each tensor. They are those of [`little_endian`] or parts of [`into_little_endian`], so a writer to a disk needs no copy of
/// the values. The package `safetensors` writes to memory, or to a file with a name.
///
/// # Errors
/// The number of values of a tensor does not fit its spec.
pub fn safetensors_parts<'a, P: AsRef<[u8]> + From<Vec<u8>>>(
    tensors: impl IntoIterator<Item = (&'a TensorSpec, P)>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<P>, ModelError> {
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by(|(left, _), (right, _)| left.name.cmp(&right.name));
    let (mut infos, mut parts, mut end) = (Vec::new(), Vec::new(), 0);
    for (spec, bytes) in tensors {
        let begin = end;
        end += bytes.as_ref().len();
        let info = TensorInfo { dtype: Dtype::F32, shape: spec.shape.clone(), data_offsets: (begin, end) };
        infos.push((spec.name.clone(), info));
        parts.push(bytes);
    }
    let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_owned(), value.to_owned())]));
    let mut header = serde_json::to_vec(&Metadata::new(metadata, infos)?).map_err(SafeTensorError::from)?;
    // The values begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    let header = P::from([&length[..], &header].concat());
    Ok(std::iter::once(header).chain(parts).collect())
}

/// The bytes of values in a file. Where numbers lie in memory as in the file, as on most processors, they are not copied.
#[must_use]
pub fn little_endian(values: &[f32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(values))
    } else {
        Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// [`little_endian`] of values that the bytes own.
#[must_use]
pub fn into_little_endian(values: Vec<f32>) -> Bytes {
    struct Floats(Vec<f32>);
    impl AsRef<[u8]> for Floats {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    if cfg!(target_endian = "little") {
        Bytes::from_owner(Floats(values))
    } else {
        little_endian(&values).into_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::Part;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn a_file_has_the_bytes_of_the_library() {
        let spec = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            part: Part::Block(0),
            decay: false,
        };
        let specs = [spec("w.10", &[2, 3]), spec("w.2", &[1]), spec("a", &[0, 4]), spec("w.1", &[5])];
        let values: [&[f32]; 4] = [&[1.5, -2.0, 0.1, 3e9, f32::MIN, 7.0], &[0.25], &[], &[1.0; 5]];
        let bytes = values.map(bytemuck::cast_slice::<f32, u8>);
        for metadata in [None, Some(("key", "a \"value\""))] {
            let ours = safetensors_of(specs.iter().zip(values), metadata).unwrap();
            let views = specs.iter().zip(bytes).map(|(spec, bytes)| {
                let view = TensorView::new(Dtype::F32, spec.shape.clone(), bytes).unwrap();
                (spec.name.as_str(), view)
            });
            let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_owned(), value.to_owned())]));
            assert_eq!(ours, safetensors::serialize(views, metadata).unwrap());
        }
        let other = safetensors_of([(&specs[0], values[1])], None);
        assert!(matches!(other, Err(ModelError::Safetensors(_))), "{other:?}");
    }
}
