//! Tests of the check of states.

use dipaco_config::RunConfig;
use dipaco_model::ModelConfig;
use dipaco_optim::Optimizer;
use dipaco_sync::Ahead;
use dipaco_topology::TopologyConfig;

use super::*;
use crate::{FragmentState, PathState};

/// Inner steps at the end of the lease that brings the state.
const STEP: u64 = 4;

/// The plan of a scheme whose leases of four steps take everything over.
fn plan(scheme: impl FnOnce(&mut WorkerPlan)) -> WorkerPlan {
    let model = ModelConfig {
        vocab_size: 500,
        hidden_size: 16,
        blocks: 2,
        heads: 1,
        head_dim: 16,
        ffn_size: 32,
        context: 8,
        ..ModelConfig::default()
    };
    let config = RunConfig { model, topology: TopologyConfig::dense(2), ..RunConfig::default() };
    let mut plan = WorkerPlan::new(&config);
    (plan.train.rounds, plan.train.inner_steps, plan.train.batch) = (3, STEP, 2);
    scheme(&mut plan);
    plan
}

/// A state at the end of the lease, without parts of fragments.
fn state(plan: &WorkerPlan) -> PathState {
    let moments = MomentSpecs::of_plan(plan).unwrap();
    PathState { step: STEP, position: STEP * plan.train.batch as u64, ..PathState::start(&moments) }
}

/// The bytes of a state, and the outcome of their check.
fn checked(plan: &WorkerPlan, state: &PathState) -> (Vec<u8>, Result<(), PathError>) {
    let topology = plan.topology().unwrap();
    let layout = Layout::of_plan(plan, &topology).unwrap();
    let bytes = state.encode(&MomentSpecs::of_plan(plan).unwrap()).unwrap();
    let checked = check_state(plan, &layout, PathId(0), STEP, bytes.chunks(1 << 12));
    (bytes, checked)
}

#[test]
fn a_state_is_no_longer_than_its_scheme_and_optimizer_need() {
    let muon = plan(|plan| plan.train.optimizer = Optimizer::Muon);
    let eager = plan(|plan| {
        (plan.sync.overlap_steps, plan.sync.eager, plan.outer.error_feedback) = (STEP, true, 1.0);
    });
    for plan in [plan(|_| {}), muon, eager] {
        let topology = plan.topology().unwrap();
        let values = Layout::of_plan(&plan, &topology).unwrap().fragment(0, 0).unwrap().values();
        let part = vec![0.5; values];
        let mut state = state(&plan);
        let scheme = KeptParts::of_scheme(&plan);
        let ahead = Ahead { weights: part.clone(), momentum: part.clone(), sent: part.clone() };
        let kept = FragmentState {
            residual: scheme.residual.then(|| part.clone()),
            ahead: scheme.ahead.then_some(ahead),
            ..FragmentState::default()
        };
        state.kept.insert((0, 0), kept);
        let (longest, checked) = checked(&plan, &state);
        checked.unwrap();
        let (bytes, limit) = (longest.len() as u64, longest_state(&plan, &topology));
        assert!(bytes <= limit && limit < bytes + 4 * values as u64, "{bytes} bytes of at most {limit}");
    }
}

#[test]
fn parts_that_the_lease_does_not_leave_are_refused() {
    let plan = plan(|_| {});
    let values = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap().fragment(0, 0).unwrap().values();
    let part = |values| Some(vec![0.5; values]);
    let parts = [
        ("has own weights", (0, 0), FragmentState { weights: part(values), ..FragmentState::default() }),
        ("has a residual", (0, 0), FragmentState { residual: part(values), ..FragmentState::default() }),
        ("holds 3 values", (0, 0), FragmentState { weights: part(3), ..FragmentState::default() }),
        ("level 1", (1, 0), FragmentState { weights: part(values), ..FragmentState::default() }),
        ("fragment 1", (0, 1), FragmentState { weights: part(values), ..FragmentState::default() }),
    ];
    for (why, place, kept) in parts {
        let mut state = state(&plan);
        state.kept.insert(place, kept);
        let error = checked(&plan, &state).1.unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn wrong_values_are_refused_wherever_they_lie() {
    let plan = plan(|_| {});
    let sound = state(&plan);
    checked(&plan, &sound).1.unwrap();
    for at in [0, 1, sound.second.len() / 2, sound.second.len() - 1] {
        for (value, in_first, why) in
            [(f32::NAN, true, "not finite"), (f32::INFINITY, false, "not finite"), (-1.0, false, "negative")]
        {
            let mut state = sound.clone();
            let moments = if in_first { &mut state.first } else { &mut state.second };
            moments[at] = value;
            let error = checked(&plan, &state).1.unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
