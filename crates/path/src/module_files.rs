//! Bytes of modules, outer gradients and path states: encoding, decoding and checks.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_model::{ModelConfig, ModuleWeights, TensorSpec, parameters};
use dipaco_topology::{ModuleId, PathId, Topology};

use crate::PathError;
use crate::layout::Layout;
use crate::state::PathState;

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

/// Checks a path's state: tensors, shapes, and that every moment is finite.
pub fn check_state(
    model: &ModelConfig,
    topology: &Topology,
    layout: &Layout,
    bytes: &[u8],
) -> Result<(), PathError> {
    let state = PathState::decode(bytes, model)?;
    let levels = u16::try_from(topology.levels()).unwrap_or(u16::MAX);
    for (&(level, fragment), kept) in &state.kept {
        let expected = if level < levels { layout.fragment(level, fragment)?.values() } else { 0 };
        kept.check(expected)?;
    }
    let kept = state.kept.values().flat_map(|kept| kept.parts().into_iter().flat_map(|(_, values)| values));
    match state.first.iter().chain(&state.second).chain(kept).position(|value| !value.is_finite()) {
        Some(position) => Err(PathError::MomentNotFinite { position }),
        None => Ok(()),
    }
}
