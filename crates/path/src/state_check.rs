//! The check of a path's state that a stranger brings.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use dipaco_model::{Dtype, TensorSpec, WeightStream, parameters, trained_specs};
use dipaco_protocol::WorkerPlan;
use dipaco_topology::{PathId, Topology};

use crate::kept_parts::{KeptParts, beyond_largest};
use crate::layout::Layout;
use crate::moment_bounds::{MomentBounds, MomentCheck, MomentKind};
use crate::moment_specs::{FIRST, SECOND};
use crate::piece_cursor::PieceCursor;
use crate::pieced_file::PiecedFile;
use crate::state_header::StateHeader;
use crate::{MomentSpecs, PathError};

/// Bytes of a tensor's entry in a state's header, at most.
const ENTRY_BYTES: u64 = 512;
/// Bytes of the rest of a state's header, at most.
const REST_BYTES: u64 = 4096;
/// First moments that are read a second time at once, beside their second moments.
const PAIRS: usize = 1 << 12;

/// Largest length in bytes of a path's state in a run with this plan and topology: the moments of its optimizer, and the
/// parts of fragments that its scheme may keep.
#[must_use]
pub fn longest_state(plan: &WorkerPlan, topology: &Topology) -> u64 {
    let moments = MomentSpecs::of_plan_over(plan, topology);
    let kept = KeptParts::of_scheme(plan).vectors() * parameters(&trained_specs(&plan.model, topology));
    moments.file_bytes() + kept as u64 * 4 + header_bytes(plan, topology, &moments)
}

/// Largest length in bytes of a state's header.
fn header_bytes(plan: &WorkerPlan, topology: &Topology, moments: &MomentSpecs) -> u64 {
    let fragments = topology.levels() * plan.sync.fragments as usize;
    let kept = KeptParts::of_scheme(plan).vectors() * fragments;
    (moments.first().len() + moments.second().len() + kept) as u64 * ENTRY_BYTES + REST_BYTES
}

/// Checks a path's state at the end of a lease that ends at `step`: tensors, shapes, types and values, and the progress that
/// only this lease leaves. A worker trains from the state without a further look, so a state that no training makes
/// would end the training of one honest worker after another. The moments keep the bounds of training, and the other values are at
/// most 10⁶.
///
/// At most two pieces of the state's file are held at a time, and a few values are copied: none before the header is that of
/// the lease. The first moments are read twice, the other values once.
///
/// # Errors
/// When the state differs from every state that the lease can leave. [`PathError::Unread`] when the file can't be read.
pub fn check_state(
    plan: &WorkerPlan,
    layout: &Layout,
    path: PathId,
    step: u64,
    file: &impl PiecedFile,
) -> Result<(), PathError> {
    let topology = plan.topology()?;
    let moments = MomentSpecs::of_plan_over(plan, &topology);
    // Bounded before it is read: the time of reading grows with the number of tensors.
    let header = StateHeader::read(file, header_bytes(plan, &topology, &moments))?;
    check_progress(plan, path, step, &header)?;
    check_kept(plan, layout, &topology, path, step, &header.kept)?;
    check_values(plan, &moments, &header, file)
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
    path: PathId,
    step: u64,
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

/// Checks that the file has exactly the tensors of its header and these moments, in their types, and their values.
fn check_values(
    plan: &WorkerPlan,
    moments: &MomentSpecs,
    header: &StateHeader,
    file: &impl PiecedFile,
) -> Result<(), PathError> {
    let mut stream = WeightStream::new(header.specs(moments).into(), file.length());
    let mut check = ValueCheck {
        moments: MomentCheck::new(MomentBounds::of_plan(plan, header.step)),
        momenta: moments
            .first()
            .iter()
            .filter(|spec| moments.kind_of_first(spec) == MomentKind::Momentum)
            .map(|spec| spec.name.as_str())
            .collect(),
        dtype: moments.dtype(),
        firsts: &header.firsts,
        cursor: PieceCursor::new(file),
        first: Vec::new(),
    };
    let mut place = 0;
    while place < file.length() {
        let piece = file.piece_from(place).map_err(PathError::Unread)?;
        let piece = piece.as_ref();
        if piece.is_empty() {
            break;
        }
        let mut checked = Ok(());
        stream.read_values(piece, |spec, begin, values| {
            if checked.is_ok() {
                checked = check.check(spec, begin, values);
            }
            Ok(())
        })?;
        checked?;
        place += piece.len();
    }
    stream.finish()?;
    check.moments.end().map_or(Ok(()), |problem| Err(other(problem)))
}

/// The check of a file's values, as they come.
struct ValueCheck<'a, F: PiecedFile> {
    moments: MomentCheck,
    /// Tensors that take Muon's steps.
    momenta: HashSet<&'a str>,
    /// Type of the moments in the file.
    dtype: Dtype,
    /// Bytes of the file before the first moments of each tensor.
    firsts: &'a HashMap<String, usize>,
    /// Where the first moments of the current second moments are read again.
    cursor: PieceCursor<'a, F>,
    /// Memory for these first moments.
    first: Vec<f32>,
}

impl<F: PiecedFile> ValueCheck<'_, F> {
    /// Checks the values of a tensor from its value `begin` on. The error is that of the first wrong value.
    fn check(&mut self, spec: &TensorSpec, begin: usize, values: &[f32]) -> Result<(), PathError> {
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(PathError::NotFinite { tensor: spec.name.clone(), position: begin + at });
        }
        let problem = if let Some(tensor) = spec.name.strip_prefix(SECOND) {
            match self.moments.add(MomentKind::Second, tensor, begin, values) {
                None => self.wrong_pair(tensor, begin, values).map_err(PathError::Unread)?,
                problem => problem,
            }
        } else if let Some(tensor) = spec.name.strip_prefix(FIRST) {
            let muon = self.momenta.contains(tensor);
            let kind = if muon { MomentKind::Momentum } else { MomentKind::First };
            self.moments.add(kind, tensor, begin, values)
        } else {
            let beyond = beyond_largest(values);
            beyond.map(|(at, value)| format!("value {} of {} is {value:e}", begin + at, spec.name))
        };
        problem.map_or(Ok(()), |problem| Err(other(problem)))
    }

    /// The first violation among pairs of a tensor's second moments with its first ones, which lie elsewhere in the file.
    fn wrong_pair(&mut self, tensor: &str, begin: usize, second: &[f32]) -> io::Result<Option<String>> {
        let Some(&place) = self.firsts.get(tensor) else {
            return Ok(Some(format!("{tensor} has second moments and no first ones")));
        };
        let mut begin = begin;
        for second in second.chunks(PAIRS) {
            let place = place.saturating_add(self.dtype.bytes() * begin);
            if !self.cursor.read(place, second.len(), self.dtype, &mut self.first)? {
                return Ok(Some(format!("the first moments of {tensor} are cut")));
            }
            let problem = self.moments.pairs(tensor, begin, &self.first, second);
            if problem.is_some() {
                return Ok(problem);
            }
            begin += second.len();
        }
        Ok(None)
    }
}

fn other(problem: String) -> PathError {
    PathError::OtherState { problem }
}

#[cfg(test)]
mod tests;
