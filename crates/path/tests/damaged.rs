//! Damaged states of paths, through the check that the coordinator makes.
#![allow(clippy::unwrap_used)]

use dipaco_config::RunConfig;
use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::{ModelConfig, parameters, path_specs};
use dipaco_protocol::WorkerPlan;
use dipaco_sync::Ahead;
use dipaco_topology::{PathId, TopologyConfig};

use dipaco_path::module_files::check_state;
use dipaco_path::{FragmentState, Layout, MomentSpecs, PathError, PathState};

/// Inner steps at the end of the lease that brings the state.
const STEP: u64 = 4;

/// A scheme whose paths keep a rounding error, and a lead over the global weights.
fn plan() -> WorkerPlan {
    let model = ModelConfig {
        vocab_size: 5,
        hidden_size: 4,
        blocks: 1,
        heads: 1,
        head_dim: 4,
        ffn_size: 4,
        context: 8,
        ..ModelConfig::default()
    };
    let mut config = RunConfig { model, topology: TopologyConfig::dense(1), ..RunConfig::default() };
    (config.train.rounds, config.train.inner_steps, config.train.batch) = (3, STEP, 2);
    (config.sync.overlap_steps, config.sync.eager) = (STEP, true);
    config.outer.error_feedback = 1.0;
    WorkerPlan::new(&config)
}

fn valid(rng: &mut CaseRng, plan: &WorkerPlan) -> Vec<u8> {
    let values = parameters(&path_specs(&plan.model));
    let mut numbers = |least: f32| (0..values).map(|_| rng.random_range(least..1.0)).collect::<Vec<f32>>();
    let (first, second) = (numbers(-1.0), numbers(0.0));
    // The next lease takes over global weights, so the state keeps none of the path's own.
    let residual = Some(numbers(-1.0));
    let ahead = Ahead { weights: numbers(-1.0), momentum: numbers(-1.0), sent: numbers(-1.0) };
    let mut kept = FragmentState { weights: None, base: None, residual, ahead: None };
    if rng.random() {
        kept.ahead = Some(ahead);
    }
    let position = STEP * plan.train.batch as u64;
    let state = PathState { step: STEP, position, first, second, kept: [((0, 0), kept)].into() };
    state.encode(&MomentSpecs::of_plan(plan).unwrap()).unwrap()
}

#[test]
fn damaged_states_are_refused_or_read() {
    let plan = plan();
    let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
    let reached = |bytes: &[u8]| match check_state(&plan, &layout, PathId(0), STEP, bytes) {
        Ok(()) => {
            let state = PathState::decode(bytes, &MomentSpecs::of_plan(&plan).unwrap()).unwrap();
            assert!(state.step == STEP && state.second.iter().all(|moment| *moment >= 0.0));
            Reached::Accepted
        }
        Err(PathError::StateFormat { .. }) => Reached::Outside,
        Err(PathError::OtherState { problem }) if problem.starts_with("its header has") => Reached::Outside,
        Err(_) => Reached::Inside,
    };
    Campaign::new("path-state").past(0.05).memory(1 << 20).play(|rng| valid(rng, &plan), reached);
}
