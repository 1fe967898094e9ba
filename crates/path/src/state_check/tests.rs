//! Tests of the check of states.

use dipaco_config::{PathsPerRound, RunConfig};
use dipaco_model::ModelConfig;
use dipaco_optim::Optimizer;
use dipaco_sync::Ahead;
use dipaco_topology::TopologyConfig;

use super::*;
use crate::pieced_file::Cut;
use crate::trained_state::problem_of;
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
    let checked = check_state(plan, &layout, PathId(0), STEP, &Cut(&bytes, 1 << 12));
    (bytes, checked)
}

/// Over all leases of a run of two phases in which half of the paths rest in each round.
#[test]
fn a_path_that_rests_has_the_position_that_its_check_expects() {
    let plan = plan(|plan| {
        plan.topology.replicas = 4;
        (plan.train.rounds, plan.boundaries) = (8, vec![4]);
        plan.train.paths_per_round = PathsPerRound::Always(2);
    });
    let start = PathState::start(&MomentSpecs::of_plan(&plan).unwrap());
    let mut rested_into_phase = 0;
    for seed in 0..20 {
        let schedule = WorkerPlan { seed, ..plan.clone() }.schedule().unwrap();
        for path in (0..4).map(PathId) {
            let mut state = start.clone();
            loop {
                let from = schedule.rests_until(path, state.step);
                if from >= schedule.total() {
                    break;
                }
                let phase_step = schedule.begin(schedule.phase_at(from));
                rested_into_phase +=
                    u32::from(state.step == phase_step && from > phase_step && phase_step > 0);
                state.rest(&schedule, path, from, phase_step);
                // As a lease trains.
                if state.step == phase_step {
                    state.position = 0;
                }
                let to = schedule.next_stop(from);
                (state.step, state.position) = (to, state.position + (to - from) * plan.train.batch as u64);
                let PathState { step, position, .. } = state;
                let header = StateHeader { step, position, kept: BTreeMap::new(), firsts: HashMap::new() };
                check_progress(&WorkerPlan { seed, ..plan.clone() }, path, to, &header).unwrap();
            }
        }
    }
    assert!(rested_into_phase > 0, "no path trained just before a phase and rested at its beginning");
}

#[test]
fn a_state_is_no_longer_than_its_scheme_and_optimizer_need() {
    let muon = plan(|plan| plan.train.optimizer = Optimizer::Muon);
    let eager = plan(|plan| {
        (plan.sync.overlap_steps, plan.sync.eager, plan.outer.error_feedback) = (STEP, true, 1.0);
    });
    let bf16 = plan(|plan| plan.train.state_dtype = Dtype::Bf16);
    let bf16_muon = plan(|plan| {
        (plan.train.state_dtype, plan.train.optimizer) = (Dtype::Bf16, Optimizer::Muon);
        plan.outer.error_feedback = 1.0;
    });
    for plan in [plan(|_| {}), muon, eager, bf16, bf16_muon] {
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
        assert!(bytes <= limit && limit < bytes + 2 * values as u64, "{bytes} bytes of at most {limit}");
    }
}

#[test]
fn a_state_whose_moments_have_another_type_is_refused() {
    for (here, there) in [(Dtype::F32, Dtype::Bf16), (Dtype::Bf16, Dtype::F32)] {
        let plan = plan(|plan| plan.train.state_dtype = here);
        let sound = state(&plan);
        checked(&plan, &sound).1.unwrap();
        let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
        let moments = MomentSpecs::of_plan(&plan).unwrap().stored_as(there);
        let bytes = sound.encode(&moments).unwrap();
        let error = check_state(&plan, &layout, PathId(0), STEP, &Cut(&bytes, 1 << 12)).unwrap_err();
        let name = |dtype: Dtype| dtype.name().to_uppercase();
        let says = format!("is {} in the file: only {} is read", name(there), name(here));
        assert!(error.to_string().contains(&says), "{error}");
    }
}

#[test]
fn a_state_with_one_tensor_of_another_type_is_refused() {
    let plan = plan(|plan| plan.train.state_dtype = Dtype::Bf16);
    let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
    let (bytes, _) = checked(&plan, &state(&plan));
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
    let types: Vec<usize> = header.match_indices("\"BF16\"").map(|(at, _)| at).collect();
    assert_eq!(types.len(), 2 * MomentSpecs::of_plan(&plan).unwrap().first().len());
    for at in types {
        // A type of the same length, so that nothing else is wrong.
        let mut header = header.to_owned();
        header.replace_range(at..at + 6, "\"F16\" ");
        let bytes = [&bytes[..8], header.as_bytes(), &bytes[8 + length..]].concat();
        let error = check_state(&plan, &layout, PathId(0), STEP, &Cut(&bytes, 1 << 12)).unwrap_err();
        assert!(error.to_string().contains("is F16 in the file: only BF16 is read"), "{error}");
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

#[test]
fn a_value_that_is_not_finite_is_named_with_its_tensor() {
    // With a blend, a path keeps weights of its own.
    let plan = plan(|plan| plan.sync.blend = 0.5);
    let values = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap().fragment(0, 0).unwrap().values();
    let mut sound = state(&plan);
    let kept = FragmentState { weights: Some(vec![0.5; values]), ..FragmentState::default() };
    sound.kept.insert((0, 0), kept);
    checked(&plan, &sound).1.unwrap();
    for at in [1, values - 1] {
        let mut state = sound.clone();
        let kept = state.kept.get_mut(&(0, 0)).unwrap();
        kept.weights.as_mut().unwrap()[at] = f32::NAN;
        let error = checked(&plan, &state).1.unwrap_err().to_string();
        assert!(
            error.contains(&format!("value {at} of own/0/0 in the path's state is not finite")),
            "{error}"
        );
    }
}

/// Asserts that a state is refused for this reason, by the coordinator and by the worker that has trained it.
fn is_refused(plan: &WorkerPlan, state: &PathState, why: &str) {
    let topology = plan.topology().unwrap();
    let layout = Layout::of_plan(plan, &topology).unwrap();
    let bytes = state.encode(&MomentSpecs::of_plan(plan).unwrap()).unwrap();
    for size in [1 << 12, 1001] {
        let error = check_state(plan, &layout, PathId(0), STEP, &Cut(&bytes, size)).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let problem = problem_of(plan, &topology, state).unwrap();
    assert!(problem.contains(why), "{why}: {problem}");
}

#[test]
fn moments_that_throw_a_weight_out_of_the_numbers_or_freeze_it_are_refused() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        throws_or_freezes(&plan(|plan| plan.train.state_dtype = dtype));
    }
}

fn throws_or_freezes(plan: &WorkerPlan) {
    let sound = state(plan);
    let last = sound.second.len() - 1;
    for at in [0, 1, 1023, 1024, last / 2, last] {
        for (first, second, why) in [
            (3e38, 0.0, "first moment"),
            (0.1, 0.0, "with a second moment of 0"),
            (1e-6, 0.0, "with a second moment of 0"),
            (0.0, 1e38, "second moment"),
            (0.0, 0.5, "second moment"),
        ] {
            let mut state = sound.clone();
            (state.first[at], state.second[at]) = (first, second);
            is_refused(plan, &state, why);
        }
    }
}

#[test]
fn moments_that_are_possible_for_one_weight_and_not_for_all_are_refused() {
    let plan = plan(|_| {});
    let mut state = state(&plan);
    state.second.fill(1e-3);
    is_refused(&plan, &state, "the sum of its second moments");
    let values = state.second.len() as f32;
    state.second.fill(1e-3 / values);
    checked(&plan, &state).1.unwrap();
    assert_eq!(problem_of(&plan, &plan.topology().unwrap(), &state), None);
}

#[test]
fn the_momentum_of_muon_is_bounded_without_second_moments() {
    let plan = plan(|plan| plan.train.optimizer = Optimizer::Muon);
    let moments = MomentSpecs::of_plan(&plan).unwrap();
    let is_muons = |spec: &&TensorSpec| moments.kind_of_first(spec) == MomentKind::Momentum;
    let muons = moments.first().iter().position(|spec| is_muons(&spec)).unwrap();
    let begin = parameters(&moments.first()[..muons]);
    let sound = state(&plan);
    let mut momentum = sound.clone();
    momentum.first[begin] = 0.9;
    checked(&plan, &momentum).1.unwrap();
    assert_eq!(problem_of(&plan, &plan.topology().unwrap(), &momentum), None);
    momentum.first[begin] = 3e38;
    is_refused(&plan, &momentum, "momentum 0 of");
    momentum.first[begin..begin + 4].fill(0.9);
    is_refused(&plan, &momentum, "the sum of its squares of the momentum");
    // AdamW's tensors beside it keep their own bounds.
    let mut pair = sound;
    pair.first[0] = 0.1;
    is_refused(&plan, &pair, "with a second moment of 0");
}

#[test]
fn parts_of_fragments_beyond_the_weights_of_any_model_are_refused() {
    let plan = plan(|plan| {
        (plan.sync.overlap_steps, plan.sync.eager, plan.outer.error_feedback) = (STEP, true, 1.0);
    });
    let values = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap().fragment(0, 0).unwrap().values();
    let part = |value: f32| [&[0.5, value][..], &vec![0.5; values - 2]].concat();
    let lead = |weights, momentum, sent| {
        let [weights, momentum, sent] = [weights, momentum, sent].map(part);
        let ahead = Some(Ahead { weights, momentum, sent });
        FragmentState { ahead, ..FragmentState::default() }
    };
    let residual = FragmentState { residual: Some(part(-3e38)), ..FragmentState::default() };
    for (kept, why) in [
        (residual, "value 1 of residual/0/0"),
        (lead(2e6, 0.0, 0.0), "value 1 of ahead/0/0"),
        (lead(0.0, -2e6, 0.0), "value 1 of ahead-momentum/0/0"),
        (lead(0.0, 0.0, 2e6), "value 1 of ahead-sent/0/0"),
    ] {
        let mut state = state(&plan);
        state.kept.insert((0, 0), kept);
        is_refused(&plan, &state, why);
    }
}
