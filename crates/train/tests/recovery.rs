//! Damaged disks: a run goes back to an undamaged checkpoint and ends in the same bits.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use dipaco_store::{
    ManifestSequence, ObjectRef, Patience, RollbackRecord, RunManifest, RunStore, StoreError, TrainingRecord,
};
use dipaco_telemetry::{Events, Progress};
use dipaco_train::{CoordinatorError, TrainError, recover};
use tokio_util::sync::CancellationToken;

use support::{Run, config};

/// A run that was stopped after its second round had begun, and the bits of an undisturbed run.
async fn interrupted() -> (Run, Vec<String>) {
    let (calm, run) = (Run::seeded(config()).await, Run::seeded(config()).await);
    calm.train(2).await;
    let reached = CancellationToken::new();
    // Four paths join, are completed and step four modules in each round.
    let events = run.events_until(15, &reached);
    let (coordinator, token) = run.coordinator(events, reached.clone()).await;
    let worker = run.spawn_worker(&token, "worker");
    assert!(!coordinator.await.unwrap().unwrap().finished);
    worker.abort();
    (run, calm.bits().await)
}

fn file(run: &Run, object: &ObjectRef) -> PathBuf {
    run.folder.path().join("store").join(&object.name)
}

fn flip(run: &Run, object: &ObjectRef) {
    let mut content = std::fs::read(file(run, object)).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(file(run, object), content).unwrap();
}

async fn finish(run: &Run) -> Vec<String> {
    let (summary, _) = run.train(2).await;
    assert!(summary.finished);
    run.bits().await
}

/// The recovery of a run that nobody interrupts.
async fn recovered(store: &RunStore) -> Result<Option<RollbackRecord>, CoordinatorError> {
    recover(store, &Progress::hidden(), &CancellationToken::new()).await
}

/// The objects of a checkpoint.
async fn objects(run: &Run, manifest: &RunManifest, checkpoint: usize) -> BTreeSet<ObjectRef> {
    let content = run.store.get(&manifest.checkpoints[checkpoint].object).await.unwrap();
    let training: TrainingRecord = serde_json::from_slice(&content).unwrap();
    training.objects().cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_objects_are_found_and_the_run_goes_back_to_the_same_bits() {
    let (run, undisturbed) = interrupted().await;
    let manifest = run.manifest().await;
    let rounds: Vec<_> = manifest.checkpoints.iter().map(|checkpoint| checkpoint.round).collect();
    assert_eq!(rounds, [0, 1]);
    assert_eq!(recovered(&run.store).await.unwrap(), None);
    // One bit of weights and the end of momenta that are newer than the checkpoints.
    let (oldest, newest) = (objects(&run, &manifest, 0).await, objects(&run, &manifest, 1).await);
    let current: BTreeSet<_> = manifest.training.as_ref().unwrap().objects().cloned().collect();
    let newer = |prefix: &str| {
        current.iter().find(|object| object.name.starts_with(prefix) && !newest.contains(object)).unwrap()
    };
    flip(&run, newer("modules/"));
    let momenta = file(&run, newer("momenta/"));
    let content = std::fs::read(&momenta).unwrap();
    std::fs::write(&momenta, &content[..content.len() - 1]).unwrap();
    let back = recovered(&run.store).await.unwrap();
    assert_eq!(
        back,
        Some(RollbackRecord { from: 1, to: 1, undone: Vec::new() }),
        "the begun round is undone"
    );
    // A state of the newest checkpoint that is not in the oldest.
    let state = newest.iter().find(|object| object.name.starts_with("paths/") && !oldest.contains(object));
    std::fs::remove_file(file(&run, state.unwrap())).unwrap();
    let back = recovered(&run.store).await.unwrap();
    let last = RollbackRecord { from: 1, to: 0, undone: vec![1] };
    assert_eq!(back.as_ref(), Some(&last));
    assert_eq!(run.manifest().await.rollbacks.last(), Some(&last));
    // Damaged objects are made again in the same bits. A complete run keeps no checkpoint.
    assert_eq!(finish(&run).await, undisturbed);
    let manifest = run.manifest().await;
    assert!(manifest.checkpoints.is_empty());
    let mut left: BTreeSet<_> =
        manifest.training.as_ref().unwrap().objects().map(|o| o.name.clone()).collect();
    for prefix in ["modules", "momenta", "paths", "checkpoints", "outer-gradients"] {
        for object in run.store.list(prefix).await.unwrap() {
            assert!(left.remove(&object.name), "{} is left over", object.name);
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_ends_at_a_damaged_object_and_its_successor_goes_back() {
    let (run, undisturbed) = interrupted().await;
    let training = run.manifest().await.training.unwrap();
    let weights =
        &training.modules.iter().find(|module| module.fragments[0].version > 0).unwrap().fragments[0];
    flip(&run, &weights.weights);
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let worker = run.spawn_worker(&token, "worker");
    let error = coordinator.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, CoordinatorError::Core(TrainError::Store(StoreError::Damaged { .. }))),
        "{error}"
    );
    assert!(error.to_string().contains("--resume"), "{error}");
    worker.abort();
    assert!(recovered(&run.store).await.unwrap().is_some());
    assert_eq!(finish(&run).await, undisturbed);
}

#[tokio::test]
async fn an_object_that_a_running_coordinator_deletes_meanwhile_is_no_damage() {
    let run = Run::seeded(config()).await;
    let started = run.start(false).await.unwrap();
    let (mut named, next) = (started.manifest.clone(), started.manifest);
    let superseded = ObjectRef::of("paths/0/4-1", b"state");
    named.training.as_mut().unwrap().paths[0].state = Some(superseded.clone());
    let sequence = run.store.replace(&named, started.sequence).await.unwrap();
    let ManifestSequence(newest) = run.store.replace(&next, sequence).await.unwrap();
    // The running coordinator has not written its next manifest yet, which does not name the object.
    let folder = run.folder.path();
    let (manifest, kept) = (folder.join(format!("store/manifest/{newest:020}.json")), folder.join("kept"));
    std::fs::rename(&manifest, &kept).unwrap();
    // A link to itself can't be opened, also not by root, and it is not absent.
    let place = file(&run, &superseded);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&place, &place).unwrap();
    // Called when the object is read: the coordinator writes the manifest and deletes the object.
    let patience = Patience::new(Duration::ZERO, Duration::from_secs(3600), move |_| {
        std::fs::rename(&kept, &manifest).is_ok() && std::fs::remove_file(&place).is_ok()
    });
    let store = run.store.clone().with_patience(patience);
    assert_eq!(recovered(&store).await.unwrap(), None);
    assert_eq!(run.manifest().await, next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_undamaged_checkpoint_the_error_names_the_damaged_object() {
    let (run, _) = interrupted().await;
    let manifest = run.manifest().await;
    for checkpoint in &manifest.checkpoints {
        flip(&run, &checkpoint.object);
    }
    let damaged = manifest.training.as_ref().unwrap().objects().next().unwrap();
    flip(&run, damaged);
    let error = recovered(&run.store).await.unwrap_err();
    assert!(
        matches!(&error, CoordinatorError::DamagedRun { source } if source.to_string().contains(&damaged.name)),
        "{error}"
    );
}

#[tokio::test]
async fn an_interrupted_verification_leaves_the_run_as_it_is() {
    let run = Run::seeded(config()).await;
    let manifest = run.start(false).await.unwrap().manifest;
    // The training's only damage is that the store fails at this object, as a link to itself does.
    let place = file(&run, manifest.training.as_ref().unwrap().objects().next().unwrap());
    std::fs::remove_file(&place).unwrap();
    std::os::unix::fs::symlink(&place, &place).unwrap();
    for goes_on in [true, false] {
        let cancel = CancellationToken::new();
        let asked = cancel.clone();
        // Called when the object is read: the user asks to stop, whether or not the store is tried again.
        let patience = Patience::new(Duration::ZERO, Duration::from_secs(3600), move |_| {
            asked.cancel();
            goes_on
        });
        let store = run.store.clone().with_patience(patience);
        let error = recover(&store, &Progress::hidden(), &cancel).await.unwrap_err();
        assert!(matches!(error, CoordinatorError::Interrupted), "{error}");
        assert_eq!(run.manifest().await, manifest);
    }
}
