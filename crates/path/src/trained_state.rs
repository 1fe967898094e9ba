//! The check of the state that a lease leaves, before anybody gets it.

use dipaco_model::tensors_of;
use dipaco_protocol::WorkerPlan;
use dipaco_topology::Topology;
use rayon::prelude::*;

use crate::MomentSpecs;
use crate::kept_parts::beyond_largest;
use crate::moment_bounds::{MomentBounds, MomentCheck, MomentKind};
use crate::state::PathState;

/// Values of a block, which one thread checks.
const BLOCK: usize = 1 << 16;

/// Moments of a tensor from its element `begin` on.
struct Block<'a> {
    kind: MomentKind,
    tensor: &'a str,
    begin: usize,
    first: &'a [f32],
    /// Second moments; none beside Muon's momentum.
    second: &'a [f32],
}

impl<'a> Block<'a> {
    /// The blocks of a tensor.
    fn of(
        kind: MomentKind,
        tensor: &'a str,
        first: &'a [f32],
        second: &'a [f32],
    ) -> impl Iterator<Item = Self> {
        let block = move |(number, first): (usize, &'a [f32])| {
            let begin = number * BLOCK;
            let second = second.get(begin..).unwrap_or_default();
            Self { kind, tensor, begin, first, second: &second[..first.len().min(second.len())] }
        };
        first.chunks(BLOCK).enumerate().map(block)
    }

    /// The check of this block alone, and its first problem.
    fn check(&self, bounds: &MomentBounds) -> (MomentCheck, Option<String>) {
        let &Self { kind, tensor, begin, first, second } = self;
        let mut check = MomentCheck::new(bounds.clone());
        let problem = check
            .add(kind, tensor, begin, first)
            .or_else(|| check.add(MomentKind::Second, tensor, begin, second))
            .or_else(|| check.pairs(tensor, begin, first, second));
        (check, problem)
    }
}

/// The first value of a trained state that [`check_state`](crate::check_state) refuses, in words; `None` if training has not
/// diverged. Uses all threads of the current pool.
pub(crate) fn problem_of(plan: &WorkerPlan, topology: &Topology, state: &PathState) -> Option<String> {
    let moments = MomentSpecs::of_plan_over(plan, topology);
    let bounds = MomentBounds::of_plan(plan, state.step);
    let mut seconds = tensors_of(moments.second(), &state.second);
    let blocks: Vec<_> = tensors_of(moments.first(), &state.first)
        .flat_map(|(spec, first)| {
            let kind = moments.kind_of_first(spec);
            let second = if kind == MomentKind::First { seconds.next() } else { None };
            Block::of(kind, &spec.name, first, second.map_or(&[], |(_, second)| second))
        })
        .collect();
    let checks: Vec<_> = blocks.par_iter().map(|block| block.check(&bounds)).collect();
    let mut whole = MomentCheck::new(bounds);
    for (check, problem) in checks {
        if problem.is_some() {
            return problem;
        }
        whole.join(&check);
    }
    let parts =
        state.kept.iter().flat_map(|(place, kept)| kept.parts().into_iter().map(move |part| (place, part)));
    let beyond = parts.into_iter().find_map(|((level, fragment), (name, values))| {
        let (at, value) = beyond_largest(values)?;
        Some(format!("value {at} of {name}/{level}/{fragment} is {value:e}"))
    });
    whole.end().or(beyond)
}
