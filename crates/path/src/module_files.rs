//! Bytes of modules, outer gradients and path states: encoding, decoding and checks.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_model::{ModuleWeights, TensorSpec, parameters};
use dipaco_protocol::WorkerPlan;
use dipaco_topology::{ModuleId, PathId};

use crate::kept_parts::KeptParts;
use crate::layout::Layout;
use crate::state::{FRAGMENT_STATE_PARTS, FragmentState, PathState};
use crate::{MomentSpecs, PathError};

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

/// Bytes of a tensor's entry in a state's header, at most.
const HEADER_BYTES: usize = 512;

/// Checks a path's state at the end of a lease that ends at `step`: tensors, shapes and values, and the progress that
/// only this lease leaves. A worker trains from the state without a further look, so a state that no training makes
/// would end one honest worker after another.
///
/// # Errors
/// When the state differs from every state that the lease can leave.
pub fn check_state(
    plan: &WorkerPlan,
    layout: &Layout,
    path: PathId,
    step: u64,
    bytes: &[u8],
) -> Result<(), PathError> {
    let levels = layout.levels();
    let fragments = plan.sync.fragments;
    let other = |problem: String| PathError::OtherState { problem };
    // Before anything is read: the time of reading grows with the number of tensors.
    let topology = plan.topology()?;
    let moments = MomentSpecs::new(&plan.model, &topology, plan.train.optimizer);
    let moment_tensors = moments.first().len() + moments.second().len();
    let tensors = moment_tensors + FRAGMENT_STATE_PARTS * levels * fragments as usize;
    let header = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if header > ((tensors + 8) * HEADER_BYTES) as u64 {
        return Err(other(format!(
            "its header has {header} bytes, and a state has at most {tensors} tensors"
        )));
    }
    let state = PathState::decode(bytes, &moments)?;
    if state.step != step {
        return Err(other(format!("it is at step {}, the lease ends at step {step}", state.step)));
    }
    let schedule = plan.schedule()?;
    let begin = schedule.begin(schedule.phase_at(step.saturating_sub(1)));
    let position = schedule.trained(path, begin.min(step), step).saturating_mul(plan.train.batch as u64);
    if state.position != position {
        return Err(other(format!("its data position is {}, not {position}", state.position)));
    }
    if let Some((level, _)) = state.kept.keys().find(|(level, _)| usize::from(*level) >= levels) {
        return Err(PathError::NoSuchFragment { what: format!("level {level}") });
    }
    if let Some((level, _)) = state.kept.keys().find(|(level, _)| !topology.trains((*level).into())) {
        return Err(other(format!("it has a part of level {level}, which is frozen")));
    }
    let none = FragmentState::default();
    for level in (0..u16::try_from(levels).unwrap_or(u16::MAX)).filter(|&level| topology.trains(level.into()))
    {
        for index in 0..fragments {
            let kept = state.kept.get(&(level, index)).unwrap_or(&none);
            kept.check(layout.fragment(level, index)?.values())?;
            if let Some(violation) = KeptParts::of(plan, &schedule, path, step, index).violation(kept) {
                return Err(other(format!("fragment {index} of level {level} {violation}")));
            }
        }
    }
    if let Some((level, index)) = state.kept.keys().find(|(_, index)| *index >= fragments) {
        return Err(PathError::NoSuchFragment { what: format!("fragment {index} of level {level}") });
    }
    let kept = state.kept.values().flat_map(|kept| kept.parts().into_iter().flat_map(|(_, values)| values));
    if let Some(position) = state.first.iter().chain(&state.second).chain(kept).position(|v| !v.is_finite()) {
        return Err(PathError::MomentNotFinite { position });
    }
    match state.second.iter().position(|moment| *moment < 0.0) {
        Some(position) => Err(other(format!("second moment {position} is negative"))),
        None => Ok(()),
    }
}
