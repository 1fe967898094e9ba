//! Going back while the store fails.

use dipaco_store::{CheckpointRecord, ManifestSequence, StoreError, StoreLoad, TrainingRecord};

use super::*;
use crate::coordinator::take_over::take_over;
use crate::open_run::OpenRun;

/// A store whose run has a checkpoint of round 1, and its load.
async fn trained() -> (RunStore, std::sync::Arc<StoreLoad>) {
    let (store, load) = RunStore::in_memory().counted();
    let training = TrainingRecord {
        origin: "origin".to_owned(),
        rounds: 3,
        inner_steps: 1,
        boundaries: Vec::new(),
        phase: 0,
        shards: Vec::new(),
        modules: Vec::new(),
        paths: Vec::new(),
        numerics: None,
        numerics_token: None,
    };
    let content = serde_json::to_vec(&training).unwrap();
    let object = store.put("checkpoints/1", content.into()).await.unwrap();
    let manifest = RunManifest {
        training: Some(training),
        checkpoints: vec![CheckpointRecord { round: 1, object }],
        ..RunManifest::new("run".to_owned())
    };
    store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
    (store, load)
}

async fn manifest(store: &RunStore) -> RunManifest {
    store.load::<RunManifest>().await.unwrap().unwrap().manifest
}

#[tokio::test]
async fn a_rollback_that_counts_is_none_that_failed() {
    let (store, load) = trained().await;
    // Those of the first manifest, of the write, and of the look at its outcome.
    load.fail_lists(2..3);
    let rollback = roll_back(&store, 1, &Progress::hidden()).await.unwrap();
    assert_eq!(manifest(&store).await.rollbacks, [rollback]);
}

#[tokio::test]
async fn a_rollback_of_which_the_store_tells_nothing_may_count() {
    let (store, load) = trained().await;
    load.fail_lists(2..4);
    let error = roll_back(&store, 1, &Progress::hidden()).await.unwrap_err();
    assert!(matches!(error, CoordinatorError::UnknownRollback { .. }), "{error}");
    assert_eq!(manifest(&store).await.rollbacks.len(), 1);
    // A write that has not begun leaves the run unchanged, and says so.
    load.fail_lists(1..2);
    let error = roll_back(&store, 1, &Progress::hidden()).await.unwrap_err();
    assert!(!matches!(error, CoordinatorError::UnknownRollback { .. }), "{error}");
    assert_eq!(manifest(&store).await.rollbacks.len(), 1);
}

#[tokio::test]
async fn a_take_over_goes_on_after_an_unknown_outcome() {
    let (store, load) = trained().await;
    let (before, sequence) = (manifest(&store).await, ManifestSequence(1));
    load.fail_lists(1..2);
    let taken = take_over(&store, OpenRun { manifest: before.clone(), sequence }).await.unwrap();
    assert_eq!((taken.sequence, &taken.manifest), (ManifestSequence(3), &before));
    let error = store.replace(&before, sequence).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { current: 3, .. }), "{error}");
}
