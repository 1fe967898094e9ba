//! Weights of a module outside of any device.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use safetensors::tensor::{Dtype as FileDtype, Metadata, SafeTensorError, SafeTensors, TensorInfo};

use crate::file_values::{append_file_values, file_bytes};
use crate::{Dtype, ModelError, TensorSpec, parameters};

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

    /// Writes a safetensors file with this entry as its `__metadata__`.
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

    /// Reads a safetensors file with exactly these tensors, in any order.
    ///
    /// # Errors
    /// The bytes are damaged, or a tensor is missing, unknown, or of another shape or type.
    pub fn from_safetensors(bytes: &[u8], specs: Arc<[TensorSpec]>) -> Result<Self, ModelError> {
        let (header, metadata) = SafeTensors::read_metadata(bytes)?;
        check_tensors(&metadata, &specs)?;
        let data = bytes.get(size_of::<u64>() + header..).unwrap_or_default();
        // The sizes in the file may be wrong, so its length bounds the capacity.
        let mut values = Vec::with_capacity(bytes.len() / 4);
        for (spec, info) in specs.iter().filter_map(|spec| Some((spec, metadata.info(&spec.name)?))) {
            let (start, end) = info.data_offsets;
            append_file_values(&mut values, data.get(start..end).unwrap_or_default(), spec.file_dtype);
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

/// The name of a type in a file.
fn name_in_file(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::F32 => FileDtype::F32,
        Dtype::Bf16 => FileDtype::BF16,
    }
}

/// Checks that a file has exactly these tensors, of their shapes and types. Returns their indices in the order of the file.
///
/// # Errors
/// A tensor is missing, unknown, or of another shape or type.
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
        let expected = name_in_file(spec.file_dtype);
        if info.dtype != expected {
            let problem = format!("is {:?} in the file: only {expected:?} is read", info.dtype);
            return Err(wrong(&spec.name, problem));
        }
        if info.shape != spec.shape {
            let problem = format!("is {:?} in the file, but the model has {:?}", info.shape, spec.shape);
            return Err(wrong(&spec.name, problem));
        }
    }
    Ok(order)
}

/// Writes a safetensors file of tensors, which may lie anywhere: see [`ModuleWeights::to_safetensors`].
fn safetensors_of<'a>(
    tensors: impl IntoIterator<Item = (&'a TensorSpec, &'a [f32])>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<u8>, ModelError> {
    let tensors = tensors.into_iter().map(|(spec, values)| (spec, file_bytes(values, spec.file_dtype)));
    Ok(safetensors_parts(tensors, metadata)?.concat())
}

/// The parts of a safetensors file, in order: its header, with this entry as its `__metadata__`, and the bytes of each tensor.
/// They are those of [`file_bytes`] or parts of [`into_little_endian`](crate::into_little_endian), so a writer to a disk needs
/// no copy of f32. The package `safetensors` writes to memory, or to a file with a name.
///
/// # Errors
/// The number of values of a tensor does not fit its spec.
pub fn safetensors_parts<'a, P: AsRef<[u8]> + From<Vec<u8>>>(
    tensors: impl IntoIterator<Item = (&'a TensorSpec, P)>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<P>, ModelError> {
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by(|(left, _), (right, _)| file_order(left, right));
    let lengths = tensors.iter().map(|(spec, bytes)| (*spec, bytes.as_ref().len()));
    let header = safetensors_header(lengths, metadata)?;
    let parts = tensors.into_iter().map(|(_, bytes)| bytes);
    Ok(std::iter::once(P::from(header)).chain(parts).collect())
}

/// The order of tensors in a safetensors file, that of the package `safetensors`: by name, and longer numbers first, so that
/// each lies at a multiple of its length.
#[must_use]
pub fn file_order(left: &TensorSpec, right: &TensorSpec) -> Ordering {
    let key = |spec: &TensorSpec| Reverse(spec.file_dtype.bytes());
    key(left).cmp(&key(right)).then_with(|| left.name.cmp(&right.name))
}

/// The header of a safetensors file of these tensors of so many bytes, in [`file_order`].
///
/// # Errors
/// The bytes of a tensor do not fit its spec.
pub fn safetensors_header<'a>(
    tensors: impl IntoIterator<Item = (&'a TensorSpec, usize)>,
    metadata: Option<(&str, &str)>,
) -> Result<Vec<u8>, ModelError> {
    let (mut infos, mut end) = (Vec::new(), 0);
    for (spec, bytes) in tensors {
        let begin = end;
        end += bytes;
        let dtype = name_in_file(spec.file_dtype);
        let info = TensorInfo { dtype, shape: spec.shape.clone(), data_offsets: (begin, end) };
        infos.push((spec.name.clone(), info));
    }
    let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_owned(), value.to_owned())]));
    let mut header = serde_json::to_vec(&Metadata::new(metadata, infos)?).map_err(SafeTensorError::from)?;
    // The values begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    Ok([&length[..], &header].concat())
}

#[cfg(test)]
mod tests {
    use dipaco_topology::Part;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn a_file_has_the_bytes_of_the_library() {
        let spec = |name: &str, shape: &[usize], file_dtype| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            part: Part::Block(0),
            decay: false,
            file_dtype,
        };
        let specs = |b: Dtype| {
            [
                spec("w.10", &[2, 3], Dtype::F32),
                spec("w.2", &[1], b),
                spec("a", &[0, 4], Dtype::F32),
                spec("w.1", &[5], b),
            ]
        };
        let values: [&[f32]; 4] = [&[1.5, -2.0, 0.1, 3e9, f32::MIN, 7.0], &[0.25], &[], &[1.0; 5]];
        for (dtype, metadata) in
            [(Dtype::F32, None), (Dtype::F32, Some(("key", "a \"value\""))), (Dtype::Bf16, None)]
        {
            let specs = specs(dtype);
            let ours = safetensors_of(specs.iter().zip(values), metadata).unwrap();
            let bytes: Vec<_> =
                specs.iter().zip(values).map(|(spec, values)| file_bytes(values, spec.file_dtype)).collect();
            let views = specs.iter().zip(&bytes).map(|(spec, bytes)| {
                let view = TensorView::new(name_in_file(spec.file_dtype), spec.shape.clone(), bytes).unwrap();
                (spec.name.as_str(), view)
            });
            let metadata = metadata.map(|(key, value)| HashMap::from([(key.to_owned(), value.to_owned())]));
            assert_eq!(ours, safetensors::serialize(views, metadata).unwrap());
            let all = ModuleWeights::from_safetensors(&ours, specs.to_vec().into()).unwrap();
            // No bf16 of these values is rounded.
            assert_eq!(all.values, values.concat());
        }
        let [first, ..] = specs(Dtype::F32);
        let other = safetensors_of([(&first, values[1])], None);
        assert!(matches!(other, Err(ModelError::Safetensors(_))), "{other:?}");
    }
}
