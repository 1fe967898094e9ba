//! Bytes of modules and outer gradients: encoding and decoding.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_model::{ModuleWeights, TensorSpec, parameters};
use dipaco_topology::{ModuleId, PathId};

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

/// Decodes a path's outer gradient of a module: one finite value per parameter.
pub fn decode_gradient(
    path: PathId,
    module: ModuleId,
    specs: &[TensorSpec],
    bytes: &[u8],
) -> Result<Vec<f32>, PathError> {
    dipaco_codec::decode(bytes, parameters(specs)).map_err(|why| PathError::OuterGradient {
        module,
        path,
        why,
    })
}
