//! Runs with a frozen level.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_codec::Compression;
use dipaco_config::RunConfig;
use dipaco_model::{ModuleWeights, level_specs, path_specs, split};
use dipaco_store::TrainingRecord;
use dipaco_telemetry::Events;
use dipaco_topology::{ModuleId, Topology};
use tokio_util::sync::CancellationToken;

use support::{Run, config};

/// The configuration with the first level frozen: the embedding and the lower blocks.
fn frozen(mut config: RunConfig) -> RunConfig {
    config.topology.levels[0].frozen = true;
    config
}

/// A run after its training, with the bytes on the wire.
async fn trained(config: &RunConfig, workers: usize) -> (Run, TrainingRecord, u64) {
    let run = Run::seeded(config.clone()).await;
    let (summary, _) = run.train(workers).await;
    assert!(summary.finished);
    let training = run.manifest().await.training.unwrap();
    (run, training, summary.bytes_sent + summary.bytes_received)
}

/// Asserts that the modules of the first level are those of the seed, and that the others are not.
async fn only_the_upper_level_moved(run: &Run, training: &TrainingRecord) {
    let model = &run.config.model;
    let topology = Topology::new(&run.config.topology, model.blocks).unwrap();
    let seed = run.manifest().await.seed.unwrap().weights;
    let seed =
        ModuleWeights::from_safetensors(&run.store.get(&seed).await.unwrap(), path_specs(model).into());
    let levels = split(model, &topology, &seed.unwrap()).unwrap();
    for record in &training.modules {
        let level = usize::from(record.module.level);
        for fragment in &record.fragments {
            assert_eq!((fragment.version > 0, fragment.momentum.is_some()), (level == 1, level == 1));
        }
        if let [whole] = record.fragments.as_slice() {
            let bytes = run.store.get(&whole.weights).await.unwrap();
            let specs = level_specs(model, &topology, level).into();
            let module = ModuleWeights::from_safetensors(&bytes, specs).unwrap();
            assert_eq!(module == levels[level], level == 0, "module {}", record.module);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_level_stays_the_seeds_and_costs_no_state_and_no_wire() {
    let (whole, whole_training, whole_bytes) = trained(&config(), 2).await;
    let (run, training, bytes) = trained(&frozen(config()), 2).await;
    only_the_upper_level_moved(&run, &training).await;
    // The seed trains all of its parameters.
    assert_eq!(run.manifest().await.seed, whole.manifest().await.seed);
    let topology = Topology::new(&run.config.topology, run.config.model.blocks).unwrap();
    let values = |level| dipaco_model::parameters(&level_specs(&run.config.model, &topology, level)) as u64;
    let state = |training: &TrainingRecord| training.paths[0].state.as_ref().unwrap().bytes;
    let saved = state(&whole_training) - state(&training);
    // Two moments of four bytes, and the entries of the header.
    let header = saved.checked_sub(8 * values(0)).unwrap();
    assert!(header < 512 * 2 * 20, "{saved}");
    assert!(bytes + 4 * 3 * 2 * 4 * values(0) < whole_bytes, "{bytes} of {whole_bytes}");
    for path in &training.paths {
        // Early stopping measures and remembers the weights of the whole path.
        assert_eq!(path.best.as_ref().unwrap().versions[0], 0);
        assert_eq!(path.last.as_ref().unwrap().versions, [0, 3]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scheme_gives_the_bits_of_one_worker() {
    let streaming = |mut config: RunConfig| {
        (config.sync.fragments, config.sync.overlap_steps, config.sync.blend) = (2, 1, 0.5);
        config
    };
    let eager = |mut config: RunConfig| {
        (config.sync.overlap_steps, config.sync.eager) = (4, true);
        (config.outer.compression, config.outer.error_feedback) = (Compression::TopK, 0.95);
        config
    };
    let kept = |mut config: RunConfig| {
        (config.train.state_every, config.train.held_paths) = (100, 1);
        config.sync.drop_rate = 0.4;
        config
    };
    for config in [config(), streaming(config()), eager(config()), kept(streaming(config()))] {
        let config = frozen(config);
        let (one, training, _) = trained(&config, 1).await;
        only_the_upper_level_moved(&one, &training).await;
        let (three, ..) = trained(&config, 3).await;
        assert_eq!(three.weights().await, one.weights().await, "{:?}", config.sync);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_does_not_wait_for_a_frozen_level() {
    let mut config = frozen(config());
    (config.sync.quorum, config.sync.dynamic_steps) = (1, true);
    let (run, training, _) = trained(&config, 2).await;
    only_the_upper_level_moved(&run, &training).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_after_stops_to_the_same_bits() {
    let (undisturbed, ..) = trained(&frozen(config()), 1).await;
    let run = Run::seeded(frozen(config())).await;
    run.train_with_stops((8..).step_by(12)).await;
    assert_eq!(run.bits().await, undisturbed.bits().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronizer_may_own_a_module_that_takes_no_outer_steps() {
    let (undisturbed, ..) = trained(&frozen(config()), 1).await;
    let run = Run::seeded(frozen(config())).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let modules = [ModuleId { level: 0, index: 0 }, ModuleId { level: 1, index: 0 }];
    let synchronizer = run.spawn_synchronizer(&token, &modules).await;
    let worker = run.spawn_worker(&token, "w");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    synchronizer.await.unwrap().unwrap();
    assert_eq!(run.bits().await, undisturbed.bits().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_not_continued_with_another_choice() {
    let mut run = Run::seeded(config()).await;
    run.start(false).await.unwrap();
    run.config = frozen(config());
    assert!(run.start(true).await.is_err());
}
