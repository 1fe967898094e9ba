//! The check of a path's state that a stranger brings.

use std::collections::BTreeMap;

use dipaco_model::{TensorSpec, WeightStream, parameters, trained_specs};
use dipaco_protocol::WorkerPlan;
use dipaco_topology::{PathId, Topology};

use crate::kept_parts::KeptParts;
use crate::layout::Layout;
use crate::moment_specs::SECOND;
use crate::state_header::StateHeader;
use crate::{MomentSpecs, PathError};

/// Bytes of a tensor's entry in a state's header, at most.
const ENTRY_BYTES: u64 = 512;
/// Bytes of the rest of a state's header, at most.
const REST_BYTES: u64 = 4096;

/// Largest length in bytes of a path's state in a run with this plan and topology: the moments of its optimizer, and the
/// parts of fragments that its scheme may keep.
#[must_use]
pub fn longest_state(plan: &WorkerPlan, topology: &Topology) -> u64 {
    let moments = MomentSpecs::of_plan_over(plan, topology);
    let kept = KeptParts::of_scheme(plan).vectors() * parameters(&trained_specs(&plan.model, topology));
    (moments.values() + kept) as u64 * 4 + header_bytes(plan, topology, &moments)
}

/// Largest length in bytes of a state's header.
fn header_bytes(plan: &WorkerPlan, topology: &Topology, moments: &MomentSpecs) -> u64 {
    let fragments = topology.levels() * plan.sync.fragments as usize;
    let kept = KeptParts::of_scheme(plan).vectors() * fragments;
    (moments.first().len() + moments.second().len() + kept) as u64 * ENTRY_BYTES + REST_BYTES
}

/// Checks a path's state at the end of a lease that ends at `step`: tensors, shapes and values, and the progress that
/// only this lease leaves. A worker trains from the state without a further look, so a state that no training makes
/// would end one honest worker after another.
///
/// The state lies in `pieces`. One of its tensors at a time is copied, and none before the header is that of the lease.
///
/// # Errors
/// When the state differs from every state that the lease can leave.
pub fn check_state<'a>(
    plan: &WorkerPlan,
    layout: &Layout,
    path: PathId,
    step: u64,
    pieces: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<(), PathError> {
    let topology = plan.topology()?;
    let moments = MomentSpecs::of_plan_over(plan, &topology);
    // Bounded before it is read: the time of reading grows with the number of tensors.
    let header = StateHeader::read(pieces.clone(), header_bytes(plan, &topology, &moments))?;
    check_progress(plan, path, step, &header)?;
    check_kept(plan, layout, &topology, (path, step), &header.kept)?;
    check_values(header.specs(&moments), pieces)
}

/// Checks the step and the data position.
fn check_progress(plan: &WorkerPlan, path: PathId, step: u64, header: &StateHeader) -> Result<(), PathError> {
    if header.step != step {
        return Err(other(format!("it is at step {}, the lease ends at step {step}", header.step)));
    }
    let schedule = plan.schedule()?;
    let begin = schedule.begin(schedule.phase_at(step.saturating_sub(1)));
    let position = schedule.trained(path, begin.min(step), step).saturating_mul(plan.train.batch as u64);
    if header.position != position {
        return Err(other(format!("its data position is {}, not {position}", header.position)));
    }
    Ok(())
}

/// Checks that each fragment has the parts that the scheme keeps at the end of this lease, and of its length.
fn check_kept(
    plan: &WorkerPlan,
    layout: &Layout,
    topology: &Topology,
    (path, step): (PathId, u64),
    kept: &BTreeMap<(u16, u32), Vec<(&'static str, usize)>>,
) -> Result<(), PathError> {
    let (levels, fragments) = (layout.levels(), plan.sync.fragments);
    if let Some((level, _)) = kept.keys().find(|(level, _)| usize::from(*level) >= levels) {
        return Err(PathError::NoSuchFragment { what: format!("level {level}") });
    }
    if let Some((level, _)) = kept.keys().find(|(level, _)| !topology.trains((*level).into())) {
        return Err(other(format!("it has a part of level {level}, which is frozen")));
    }
    if let Some((level, index)) = kept.keys().find(|(_, index)| *index >= fragments) {
        return Err(PathError::NoSuchFragment { what: format!("fragment {index} of level {level}") });
    }
    let schedule = plan.schedule()?;
    for level in (0..u16::try_from(levels).unwrap_or(u16::MAX)).filter(|&level| topology.trains(level.into()))
    {
        for index in 0..fragments {
            let parts = kept.get(&(level, index)).map(Vec::as_slice).unwrap_or_default();
            let expected = layout.fragment(level, index)?.values();
            if let Some(&(_, found)) = parts.iter().find(|&&(_, length)| length != expected) {
                return Err(PathError::FragmentStateLength { expected, found });
            }
            let names: Vec<&str> = parts.iter().map(|&(name, _)| name).collect();
            if let Some(violation) = KeptParts::of(plan, &schedule, path, step, index).violation(&names) {
                return Err(other(format!("fragment {index} of level {level} {violation}")));
            }
        }
    }
    Ok(())
}

/// Checks that the file has exactly these tensors, and their values: finite, and second moments of at least 0.
fn check_values<'a>(
    specs: Vec<TensorSpec>,
    pieces: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<(), PathError> {
    let mut stream = WeightStream::new(specs.into(), pieces.clone().map(<[u8]>::len).sum());
    let (mut before, mut wrong) = (0, None);
    for piece in pieces {
        stream.read_values(piece, |spec, first, values| {
            if wrong.is_none() {
                wrong = wrong_value(spec, first, values, before);
            }
            before += values.len();
            Ok(())
        })?;
        if let Some(wrong) = wrong.take() {
            return Err(wrong);
        }
    }
    Ok(stream.finish()?)
}

/// The error of the first wrong value among those of a tensor from its value `first` on. The file has `before` values before them.
fn wrong_value(spec: &TensorSpec, first: usize, values: &[f32], before: usize) -> Option<PathError> {
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Some(PathError::MomentNotFinite { position: before + at });
    }
    let tensor = spec.name.strip_prefix(SECOND)?;
    let at = first + values.iter().position(|moment| *moment < 0.0)?;
    Some(other(format!("second moment {at} of {tensor} is negative")))
}

fn other(problem: String) -> PathError {
    PathError::OtherState { problem }
}

#[cfg(test)]
mod tests;
