//! Runs with Muon.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_config::{Optimizer, RunConfig};
use dipaco_model::{parameters, path_specs};
use dipaco_topology::Part;

use support::{Run, config};

/// The configuration with Muon for the seed and for the paths.
fn muon() -> RunConfig {
    let mut config = config();
    (config.seed_model.optimizer, config.train.optimizer) = (Optimizer::Muon, Optimizer::Muon);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_repeats_its_bits_with_other_workers_and_after_stops() {
    let undisturbed = Run::trained(muon(), 1).await;
    let bits = undisturbed.bits().await;
    assert_eq!(Run::trained(muon(), 3).await.bits().await, bits);
    let run = Run::seeded(muon()).await;
    run.train_with_stops((8..).step_by(12)).await;
    assert_eq!(run.bits().await, bits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_lacks_a_moment_of_each_matrix_and_the_optimizer_is_an_input() {
    let (adamw, mut run) = (Run::trained(config(), 1).await, Run::trained(muon(), 1).await);
    assert_ne!(run.weights().await, adamw.weights().await);
    let state = |run: &Run| {
        let manifest = run.store.clone();
        async move {
            let training =
                manifest.load::<dipaco_store::RunManifest>().await.unwrap().unwrap().manifest.training;
            training.unwrap().paths[0].state.as_ref().unwrap().bytes
        }
    };
    let saved = state(&adamw).await - state(&run).await;
    let specs = path_specs(&run.config.model);
    let matrix =
        |spec: &&dipaco_model::TensorSpec| spec.shape.len() == 2 && matches!(spec.part, Part::Block(_));
    let matrices: Vec<_> = specs.iter().filter(matrix).cloned().collect();
    // Four bytes a moment, and the entries of the header.
    let header = saved.checked_sub(4 * parameters(&matrices) as u64).unwrap();
    assert!(header < 512 * matrices.len() as u64, "{saved}");
    // Workers with more paths than they may keep states of.
    let mut kept = muon();
    (kept.train.state_every, kept.train.held_paths) = (100, 1);
    assert_eq!(Run::trained(kept, 2).await.weights().await, run.weights().await);
    run.config.train.optimizer = Optimizer::AdamW;
    assert!(run.start(true).await.is_err(), "the run does not go on with another optimizer");
}
