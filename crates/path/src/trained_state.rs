//! The check of the state that a lease leaves, before anybody gets it.

use dipaco_model::tensors_of;
use dipaco_protocol::WorkerPlan;
use dipaco_topology::Topology;

use crate::MomentSpecs;
use crate::kept_parts::beyond_largest;
use crate::moment_bounds::{MomentBounds, MomentCheck, MomentKind};
use crate::state::PathState;

/// The first value of a trained state that [`check_state`](crate::check_state) refuses, in words; `None` if training has not
/// diverged.
pub(crate) fn problem_of(plan: &WorkerPlan, topology: &Topology, state: &PathState) -> Option<String> {
    let moments = MomentSpecs::of_plan_over(plan, topology);
    let mut check = MomentCheck::new(MomentBounds::new(&plan.train.adamw, state.step));
    let mut seconds = tensors_of(moments.second(), &state.second);
    for (spec, first) in tensors_of(moments.first(), &state.first) {
        let kind = moments.kind_of_first(spec);
        let problem = check.add(kind, &spec.name, 0, first);
        if problem.is_some() {
            return problem;
        }
        if kind == MomentKind::First
            && let Some((_, second)) = seconds.next()
        {
            let problem = check.add(MomentKind::Second, &spec.name, 0, second);
            let problem = problem.or_else(|| check.pairs(&spec.name, 0, first, second));
            if problem.is_some() {
                return problem;
            }
        }
    }
    let parts =
        state.kept.iter().flat_map(|(place, kept)| kept.parts().into_iter().map(move |part| (place, part)));
    let beyond = parts.into_iter().find_map(|((level, fragment), (name, values))| {
        let (at, value) = beyond_largest(values)?;
        Some(format!("value {at} of {name}/{level}/{fragment} is {value:e}"))
    });
    check.end().or(beyond)
}
