//! Whole runs over loopback: the result does not depend on who worked when.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_codec::Compression;
use dipaco_topology::PathId;
use dipaco_train::{PathData, TrainError, WorkerPlan};
use support::{Run, config, tokens};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_and_four_workers_give_the_same_bits() {
    let one = Run::seeded(config()).await;
    let (summary, workers) = one.train(1).await;
    assert!(summary.finished);
    assert_eq!(summary.rounds, 3);
    assert_eq!(workers[0].rounds, 4 * 3);
    let bits = one.bits().await;
    for count in [2, 4] {
        let run = Run::seeded(config()).await;
        let (_, workers) = run.train(count).await;
        assert_eq!(workers.iter().map(|worker| worker.rounds).sum::<u64>(), 4 * 3);
        assert_eq!(run.bits().await, bits, "{count} workers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_outer_gradients_give_other_weights_and_the_same_for_any_workers() {
    let mut seen = vec![Run::seeded(config()).await];
    seen[0].train(1).await;
    for compression in [Compression::Bf16, Compression::Int8, Compression::E3m0] {
        let mut config = config();
        config.outer.compression = compression;
        let (one, two) = (Run::seeded(config.clone()).await, Run::seeded(config).await);
        one.train(1).await;
        two.train(2).await;
        assert_eq!(one.bits().await, two.bits().await, "{compression:?}");
        for other in &seen {
            assert_ne!(one.bits().await, other.bits().await, "{compression:?}");
        }
        seen.push(one);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_run_keeps_what_is_current_or_some_paths_best() {
    let run = Run::seeded(config()).await;
    run.train(2).await;
    let manifest = run.manifest().await;
    let training = manifest.training.unwrap();
    for path in &training.paths {
        assert!(path.measured && path.contribution.is_none());
        let best = path.best.unwrap();
        assert!(best.loss.is_finite() && best.version <= 3);
    }
    // Nothing but what the manifest names is left in the store.
    let mut named: Vec<String> = training
        .modules
        .iter()
        .flat_map(|module| {
            let kept = module.kept.iter().map(|kept| kept.weights.name.clone());
            kept.chain([module.weights.name.clone(), module.momentum.clone().unwrap().name])
        })
        .chain(training.paths.iter().map(|path| path.state.clone().unwrap().name))
        .collect();
    named.sort();
    let mut stored = Vec::new();
    for prefix in ["modules", "momenta", "paths", "outer-gradients"] {
        stored.extend(run.store.list(prefix).await.unwrap().into_iter().map(|object| object.name));
    }
    stored.sort();
    assert_eq!(stored, named);
}

#[test]
fn a_shard_of_one_document_is_trained_on_with_nothing_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let plan = WorkerPlan::new(&config());
    let one = tokens(&folder.path().join("one.h5"), 0, 1);
    assert!(PathData::open(one, PathId(0), &plan).is_ok());
    let none = tokens(&folder.path().join("none.h5"), 0, 0);
    assert!(matches!(
        PathData::open(none, PathId(3), &plan),
        Err(TrainError::EmptyShard { path: PathId(3) })
    ));
}
