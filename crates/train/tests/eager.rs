//! Eager and delayed updates: a path that is alone in its modules trains as if there were no outer steps.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_config::RunConfig;
use dipaco_model::ModuleWeights;
use dipaco_optim::NesterovConfig;
use dipaco_path::{Layout, module_files};
use dipaco_protocol::WorkerPlan;
use dipaco_sync::Rescale;
use dipaco_topology::TopologyConfig;

use support::{Run, config};

const STEPS: u64 = 12;

/// One path, whose outer steps are the mean itself.
fn alone(inner_steps: u64) -> RunConfig {
    let mut config = config();
    config.topology = TopologyConfig::dense(config.model.blocks);
    (config.train.rounds, config.train.inner_steps) = ((STEPS / inner_steps) as u32, inner_steps);
    config.train.schedule.warmup_steps = 3;
    config.train.adamw.learning_rate = 0.003;
    config.outer.rescale = Rescale::NONE;
    config.outer.nesterov = NesterovConfig { learning_rate: 1.0, momentum: 0.0 };
    config
}

/// The tensors of the only module of a run, by name.
async fn tensors(run: &Run) -> Vec<(String, Vec<f32>)> {
    let plan = WorkerPlan::new(&run.config);
    let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
    let training = run.manifest().await.training.unwrap();
    let mut tensors = Vec::new();
    for (index, fragment) in (0u32..).zip(&training.modules[0].fragments) {
        let bytes = run.store.get(&fragment.weights).await.unwrap();
        let specs = layout.fragment(0, index).unwrap().specs.clone();
        let ModuleWeights { specs, values } = module_files::decode("the module", &bytes, specs).unwrap();
        let mut rest = values.as_slice();
        for spec in specs.iter() {
            let (of_tensor, others) = rest.split_at(spec.parameters());
            tensors.push((spec.name.clone(), of_tensor.to_vec()));
            rest = others;
        }
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

/// Asserts that two runs have the same weights, but for one of 1,000 and for differences of up to `rounding`.
fn assert_same(found: &[(String, Vec<f32>)], plain: &[(String, Vec<f32>)], rounding: f32, what: &str) {
    assert!(found.iter().map(|(name, _)| name).eq(plain.iter().map(|(name, _)| name)));
    let pairs = found.iter().zip(plain).flat_map(|((_, a), (_, b))| a.iter().zip(b));
    let distances: Vec<f32> = pairs.map(|(a, b)| (a - b).abs()).collect();
    let far = distances.iter().filter(|distance| **distance > rounding).count();
    let (all, largest) = (distances.len(), distances.iter().copied().fold(0.0, f32::max));
    assert!(far * 1000 <= all, "{what}: {far} of {all} weights differ, by up to {largest}");
}

/// What a path has sent is in its lead or in the global weights, and never in another outer gradient. With three fragments a
/// send moves to the end of the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_alone_trains_as_without_outer_steps() {
    let plain = tensors(&Run::trained(alone(STEPS), 1).await).await;
    for (fragments, inner_steps) in [(1, 4), (2, 4), (3, 6)] {
        let mut eager = alone(inner_steps);
        (eager.sync.fragments, eager.sync.overlap_steps, eager.sync.eager) = (fragments, inner_steps, true);
        let found = tensors(&Run::trained(eager, 1).await).await;
        // Twelve steps of up to 0.003. What differs is the rounding of weights that are taken apart and put together again.
        assert_same(&found, &plain, 1e-4, &format!("{fragments} fragments"));
    }
}

/// The path trains from weights that lack its last round. At a low rate that hardly changes its steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_alone_loses_no_inner_step_with_delayed_updates() {
    let slow = |inner_steps| {
        let mut config = alone(inner_steps);
        config.train.adamw.learning_rate = 1e-5;
        config
    };
    let plain = tensors(&Run::trained(slow(STEPS), 1).await).await;
    for (fragments, inner_steps) in [(1, 4), (2, 4), (3, 6)] {
        let mut delayed = slow(inner_steps);
        (delayed.sync.fragments, delayed.sync.overlap_steps) = (fragments, inner_steps);
        let found = tensors(&Run::trained(delayed, 1).await).await;
        // A step moves a weight by up to 1e-5.
        assert_same(&found, &plain, 1e-6, &format!("{fragments} fragments"));
    }
}
