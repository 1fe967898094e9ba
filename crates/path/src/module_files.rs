//! Bytes of modules: encoding and decoding.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_model::{ModuleWeights, TensorSpec, into_little_endian, safetensors_parts};

use crate::PathError;

/// Decodes a module file; errors call it `name`.
pub fn decode(name: &str, bytes: &[u8], specs: Arc<[TensorSpec]>) -> Result<ModuleWeights, PathError> {
    ModuleWeights::from_safetensors(bytes, specs)
        .map_err(|source| PathError::ModuleFile { name: name.to_owned(), source })
}

/// Encodes a module file.
pub fn encode(module: &ModuleWeights) -> Result<Bytes, PathError> {
    Ok(module.to_safetensors(None)?.into())
}

/// [`encode`] in parts that are the memory of the values. The parts own the module together with the caller.
pub fn encode_parts(module: &Arc<ModuleWeights>) -> Result<Vec<Bytes>, PathError> {
    struct Values(Arc<ModuleWeights>);
    impl AsRef<[f32]> for Values {
        fn as_ref(&self) -> &[f32] {
            &self.0.values
        }
    }
    Ok(safetensors_parts(tensors(&module.specs, Values(module.clone())), None)?)
}

/// The bytes of each tensor, which share the memory of the values.
pub(crate) fn tensors(
    specs: &[TensorSpec],
    values: impl AsRef<[f32]> + Send + 'static,
) -> impl Iterator<Item = (&TensorSpec, Bytes)> {
    let mut rest = into_little_endian(values);
    specs.iter().map(move |spec| {
        let length = spec.parameters().saturating_mul(size_of::<f32>());
        (spec, rest.split_to(length.min(rest.len())))
    })
}
