//! Synchronous training: paths send the gradient of each step, and modules take the steps of AdamW.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_config::RunConfig;
use dipaco_model::ModuleWeights;
use dipaco_optim::{NesterovConfig, OuterOptimizer};
use dipaco_path::{Layout, module_files};
use dipaco_protocol::WorkerPlan;
use dipaco_store::RunManifest;
use dipaco_sync::Rescale;
use dipaco_telemetry::Events;
use dipaco_topology::{ModuleId, TopologyConfig};
use tokio_util::sync::CancellationToken;

use support::{Run, config};

const STEPS: u32 = 12;

/// The configuration with a step of AdamW for each module after every step of its paths.
fn synchronous() -> RunConfig {
    let mut config = config();
    (config.train.rounds, config.train.inner_steps) = (STEPS, 1);
    config.train.schedule.warmup_steps = 3;
    config.train.adamw.learning_rate = 0.003;
    config.outer.optimizer = OuterOptimizer::AdamW;
    config
}

/// The weights of the only module of a run of one path.
async fn weights(run: &Run) -> ModuleWeights {
    let plan = WorkerPlan::new(&run.config);
    let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
    let training = run.manifest().await.training.unwrap();
    let object = &training.modules[0].fragments[0].weights;
    let bytes = run.store.get(object).await.unwrap();
    module_files::decode("the module", &bytes, layout.fragment(0, 0).unwrap().specs.clone()).unwrap()
}

/// One path alone makes the steps that it would make with AdamW of its own: moments, bias correction, schedule, weight decay
/// and clipping are those of the inner optimizer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_path_trains_as_with_an_optimizer_of_its_own() {
    let mut alone = synchronous();
    alone.topology = TopologyConfig::dense(alone.model.blocks);
    let mut own = alone.clone();
    (own.train.rounds, own.train.inner_steps) = (1, u64::from(STEPS));
    own.outer.optimizer = OuterOptimizer::Nesterov;
    own.outer.rescale = Rescale::NONE;
    own.outer.nesterov = NesterovConfig { learning_rate: 1.0, momentum: 0.0 };
    let (alone, own) = (Run::trained(alone, 1).await, Run::trained(own, 1).await);
    let (found, expected) = (weights(&alone).await, weights(&own).await);
    let pairs = || found.values.iter().zip(&expected.values);
    let largest = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Twelve steps of up to 0.003. What differs is the rounding of a gradient that is added to a weight and taken off again;
    // where a gradient is all rounding, AdamW makes a step of it.
    let far = pairs().filter(|(a, b)| (*a - *b).abs() > 1e-4).count();
    assert!(
        far * 1000 <= found.values.len(),
        "{far} of {} weights differ, by up to {largest}",
        found.values.len()
    );
    assert!(largest < 0.04, "{largest}");
}

/// The modules of several paths take steps with the mean of their gradients, whoever computes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_repeats_its_bits_with_other_workers_with_a_synchronizer_and_after_stops() {
    let undisturbed = Run::trained(synchronous(), 1).await;
    let bits = undisturbed.bits().await;
    assert_eq!(Run::trained(synchronous(), 3).await.bits().await, bits);
    let run = Run::seeded(synchronous()).await;
    run.train_with_stops((8..).step_by(40)).await;
    assert_eq!(run.bits().await, bits);

    let helped = Run::seeded(synchronous()).await;
    let (coordinator, token) = helped.coordinator(Events::off(), CancellationToken::new()).await;
    let module = ModuleId { level: 0, index: 0 };
    let synchronizer = helped.spawn_synchronizer(&token, &[module]).await;
    let worker = helped.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    assert!(synchronizer.await.unwrap().unwrap().outer_steps > 0);
    assert_eq!(helped.bits().await, bits);
}

/// A path keeps no moments, and a module keeps two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_moments_are_those_of_the_modules() {
    let mut usual = synchronous();
    usual.outer.optimizer = OuterOptimizer::Nesterov;
    let (run, usual) = (Run::trained(synchronous(), 2).await, Run::trained(usual, 2).await);
    let sizes = |manifest: RunManifest| {
        let training = manifest.training.unwrap();
        let fragment = &training.modules[0].fragments[0];
        let momentum = fragment.momentum.as_ref().unwrap().bytes;
        (fragment.weights.bytes, momentum, training.paths[0].state.as_ref().unwrap().bytes)
    };
    let (weights, moments, state) = sizes(run.manifest().await);
    let (same, momentum, usual_state) = sizes(usual.manifest().await);
    assert_eq!((weights, momentum), (same, same));
    assert!(moments > weights * 9 / 5, "{moments} bytes for {weights} bytes of weights");
    assert!(state < 4096 && usual_state > 2 * weights, "{state} and {usual_state} bytes");
}
