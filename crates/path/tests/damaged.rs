//! Damaged states of paths, through the check that the coordinator makes.
#![allow(clippy::unwrap_used)]

use std::io;

use dipaco_config::RunConfig;
use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::{Dtype, ModelConfig, parameters, path_specs};
use dipaco_optim::{AdamWMoments, AdamWStep, adamw_step};
use dipaco_protocol::WorkerPlan;
use dipaco_sync::Ahead;
use dipaco_topology::{PathId, TopologyConfig};

use dipaco_path::{FragmentState, Layout, MomentSpecs, PathError, PathState, PiecedFile, check_state};

/// Inner steps at the end of the lease that brings the state.
const STEP: u64 = 4;

/// Learning rate of the step after it.
const LEARNING_RATE: f32 = 1e-3;

/// Bytes of the pieces in which the state lies: less than its header has, and no multiple of a value.
const PIECE: usize = 1001;

/// A scheme whose paths keep a rounding error, and a lead over the global weights, with moments of this type.
fn plan(blocks: usize, width: usize, dtype: Dtype) -> WorkerPlan {
    let model = ModelConfig {
        vocab_size: 5,
        hidden_size: width,
        blocks,
        heads: 1,
        head_dim: width,
        ffn_size: width,
        context: 8,
        ..ModelConfig::default()
    };
    let mut config = RunConfig { model, topology: TopologyConfig::dense(blocks), ..RunConfig::default() };
    (config.train.rounds, config.train.inner_steps, config.train.batch) = (3, STEP, 2);
    (config.sync.overlap_steps, config.sync.eager) = (STEP, true);
    (config.outer.error_feedback, config.train.state_dtype) = (1.0, dtype);
    WorkerPlan::new(&config)
}

/// A file in memory, in pieces of some bytes.
struct Cut<'a>(&'a [u8], usize);

impl<'a> PiecedFile for Cut<'a> {
    type Piece = &'a [u8];

    fn length(&self) -> usize {
        self.0.len()
    }

    fn piece_from(&self, place: usize) -> io::Result<&'a [u8]> {
        let end = (place / self.1).saturating_add(1).saturating_mul(self.1).min(self.0.len());
        Ok(self.0.get(place..end).unwrap_or_default())
    }
}

fn valid(rng: &mut CaseRng, plan: &WorkerPlan) -> Vec<u8> {
    let values = parameters(&path_specs(&plan.model));
    let mut numbers = |least: f32| (0..values).map(|_| rng.random_range(least..1.0)).collect::<Vec<f32>>();
    // Second moments whose sum is that of gradients of a norm of 0.4 after the first step, and first moments that fit them.
    let second: Vec<f32> = numbers(0.0).iter().map(|moment| 0.01 * moment / values as f32).collect();
    let first = numbers(-1.0).iter().zip(&second).map(|(part, second)| 0.5 * part * second.sqrt()).collect();
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

/// The largest change of a weight in the next step, without a gradient.
fn furthest(plan: &WorkerPlan, mut state: PathState) -> f32 {
    let gradient = vec![0.0; state.first.len()];
    let mut weights = gradient.clone();
    let learning_rate = f64::from(LEARNING_RATE);
    let step = AdamWStep { number: STEP + 1, learning_rate, gradient_scale: 1.0, decay: false };
    let moments = AdamWMoments { first: &mut state.first, second: &mut state.second };
    adamw_step(&mut weights, &gradient, moments, &step, &plan.train.adamw);
    weights.into_iter().map(f32::abs).fold(0.0, f32::max)
}

#[test]
fn damaged_states_are_refused_or_read() {
    play(Campaign::new("path-state"), Dtype::F32);
}

#[test]
fn damaged_states_of_bf16_are_refused_or_read() {
    play(Campaign::new("path-state-bf16"), Dtype::Bf16);
}

fn play(campaign: Campaign, dtype: Dtype) {
    let plan = plan(1, 4, dtype);
    let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
    let reached = |bytes: &[u8]| match check_state(&plan, &layout, PathId(0), STEP, &Cut(bytes, PIECE)) {
        Ok(()) => {
            let state = PathState::decode(bytes, &MomentSpecs::of_plan(&plan).unwrap()).unwrap();
            assert!(state.step == STEP && state.second.iter().all(|moment| *moment >= 0.0));
            assert!(furthest(&plan, state) < 3.0 * LEARNING_RATE);
            Reached::Accepted
        }
        Err(PathError::StateFormat { .. }) => Reached::Outside,
        Err(PathError::OtherState { problem }) if problem.starts_with("its header has") => Reached::Outside,
        Err(_) => Reached::Inside,
    };
    campaign.past(0.05).memory(1 << 20).play(|rng| valid(rng, &plan), reached);
}

#[test]
fn the_check_copies_a_few_values_at_a_time() {
    copies_a_few_values(Campaign::new("path-state-memory"), &plan(8, 64, Dtype::F32));
}

#[test]
fn the_check_copies_a_few_values_of_bf16_at_a_time() {
    copies_a_few_values(Campaign::new("path-state-bf16-memory"), &plan(8, 64, Dtype::Bf16));
}

fn copies_a_few_values(campaign: Campaign, plan: &WorkerPlan) {
    let layout = Layout::of_plan(plan, &plan.topology().unwrap()).unwrap();
    // The largest tensor is the rounding error of the whole module. The moments are twice as long, and as long in bf16.
    let tensor = 4 * parameters(&path_specs(&plan.model)) as u64;
    let moments = MomentSpecs::of_plan(plan).unwrap().file_bytes();
    let reached = |bytes: &[u8]| match check_state(plan, &layout, PathId(0), STEP, &Cut(bytes, PIECE << 8)) {
        Ok(()) => {
            assert!(bytes.len() as u64 > tensor + moments);
            Reached::Accepted
        }
        Err(_) => Reached::Inside,
    };
    // Less than a copy of this tensor.
    campaign.cases(20).memory(tensor).play(|rng| valid(rng, plan), reached);
}
