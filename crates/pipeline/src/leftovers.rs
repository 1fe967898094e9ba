//! Objects that a complete run does not need any more, and unfinished files of processes that are gone.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::time::SystemTime;

use dipaco_config::RunConfig;
use dipaco_files::LEFTOVER;
use dipaco_routing::remove_unfinished_scores;
use dipaco_store::{RunManifest, RunStore, TrainingRecord, names};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;
use crate::store::manifest_in;

/// Deletes the objects of a complete training to which the run does not refer, except for those that a reader has pinned, and
/// the unfinished writes of processes that are gone.
/// Only a coordinator deletes otherwise, and a complete run gets no other one. Its last one may have ended before its
/// deletions, or readers had pins until then. Changes nothing in the store of an incomplete run. The run needs none of
/// this, so a failure is only told.
pub(crate) async fn delete_leftovers(store: &RunStore) {
    if let Err(error) = delete(store).await {
        tracing::warn!(%error, source = ?error.source(), "objects that the run does not need any more stay in the store: repeat `dipaco train --resume` to delete them");
    }
}

async fn delete(store: &RunStore) -> Result<(), PipelineError> {
    let Some(RunManifest { training: Some(training), checkpoints, .. }) = manifest_in(store).await? else {
        return Ok(());
    };
    if !training.finished() {
        return Ok(());
    }
    let swept = store.sweep(SystemTime::now() - LEFTOVER).await;
    if checkpoints.is_empty() {
        delete_unneeded(store, &training).await?;
    }
    swept?;
    Ok(())
}

async fn delete_unneeded(store: &RunStore, training: &TrainingRecord) -> Result<(), PipelineError> {
    let needed: BTreeSet<&String> = training.objects().map(|object| &object.name).collect();
    // After the manifest: a reader that found its objects in an earlier one has written its pin by now, or looks again.
    let pinned = store.pinned(SystemTime::now()).await?;
    for prefix in names::OF_TRAINING {
        let stored = store.list(prefix).await?.into_iter().map(|object| object.name);
        let unneeded: Vec<String> =
            stored.filter(|name| !needed.contains(name) && !pinned.contains(name)).collect();
        store.delete_each(unneeded).await?;
    }
    Ok(())
}

/// Removes the unfinished scores of processes that are gone, in all phases of routing. Nothing reads them, so a failure is only
/// told.
pub(crate) fn remove_old_unfinished_scores(run: &RunDirectory, config: &RunConfig) {
    let before = SystemTime::now() - LEFTOVER;
    for phase in 0..=config.routing.phases.len() as u32 {
        match remove_unfinished_scores(&run.routing(phase).scores(), before) {
            Ok(0) => {}
            Ok(leftovers) => {
                tracing::info!(leftovers, phase, "unfinished scores of earlier processes were removed");
            }
            Err(error) => {
                tracing::warn!(%error, source = ?error.source(), "unfinished scores of earlier processes stay");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::time::Duration;

    use dipaco_path::DeviceChoice;
    use dipaco_routing::PhaseConfig;
    use dipaco_store::{
        CheckpointRecord, FragmentRecord, ManifestSequence, ModuleRecord, ObjectRef, PathRecord, SeedRecord,
    };
    use dipaco_telemetry::Progress;
    use dipaco_topology::{ModuleId, PathId};
    use dipaco_train::training_origin;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::store::open_store;
    use crate::train::{TrainOptions, train};

    const MODULE: ModuleId = ModuleId { level: 0, index: 0 };

    /// The training of a run of one path and one module, at these weights.
    fn training(weights: String, measured: bool) -> TrainingRecord {
        let fragment = FragmentRecord::first(ObjectRef::of(weights, b"weights"));
        TrainingRecord {
            modules: vec![ModuleRecord { module: MODULE, fragments: vec![fragment] }],
            paths: vec![PathRecord { measured, ..PathRecord::default() }],
            ..TrainingRecord::default()
        }
    }

    /// The names of all objects of the training in the store.
    async fn stored(store: &RunStore) -> BTreeSet<String> {
        let mut stored = BTreeSet::new();
        for prefix in names::OF_TRAINING {
            stored.extend(store.list(prefix).await.unwrap().into_iter().map(|object| object.name));
        }
        stored
    }

    #[tokio::test]
    async fn a_complete_run_keeps_no_weights_but_its_own_and_those_of_readers() {
        let store = RunStore::in_memory();
        let name = |version| names::weights(MODULE, 0, version, 0);
        for version in 1..4 {
            store.put(&name(version), "weights".into()).await.unwrap();
        }
        let end = SystemTime::now() + Duration::from_secs(60);
        store.pin("another", BTreeSet::from([name(2)]), end).await.unwrap();
        let mut sequence = ManifestSequence::NONE;
        // The next coordinator of an incomplete run deletes what it does not need.
        for (complete, kept) in [(false, vec![1, 2, 3]), (true, vec![2, 3])] {
            let training = Some(training(name(3), complete));
            let manifest = RunManifest { training, ..RunManifest::new("run".to_owned()) };
            sequence = store.replace(&manifest, sequence).await.unwrap();
            delete(&store).await.unwrap();
            let kept: BTreeSet<_> = kept.into_iter().map(name).collect();
            assert_eq!(stored(&store).await, kept);
        }
    }

    /// Writes an unfinished file of a process that has been gone for a while.
    fn leave(file: PathBuf) -> PathBuf {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "half").unwrap();
        File::open(&file).unwrap().set_modified(SystemTime::now() - 2 * LEFTOVER).unwrap();
        file
    }

    #[tokio::test]
    async fn a_complete_run_keeps_no_old_unfinished_write_also_beside_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
        let (old, new) = (leave(folder.path().join("old#1")), folder.path().join("new#1"));
        fs::write(&new, "half").unwrap();
        let object = ObjectRef::of(names::checkpoint(1, 1), b"checkpoint");
        let mut sequence = ManifestSequence::NONE;
        for (complete, stays) in [(false, true), (true, false)] {
            let manifest = RunManifest {
                training: Some(training(names::weights(MODULE, 0, 1, 0), complete)),
                checkpoints: vec![CheckpointRecord { round: 1, object: object.clone() }],
                ..RunManifest::new("run".to_owned())
            };
            sequence = store.replace(&manifest, sequence).await.unwrap();
            delete(&store).await.unwrap();
            assert_eq!((old.exists(), new.exists()), (stays, true), "complete: {complete}");
        }
    }

    #[test]
    fn old_unfinished_scores_of_all_phases_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (run, mut config) = (RunDirectory::new(folder.path()), RunConfig::default());
        config.routing.phases.push(PhaseConfig::default());
        let left = [0, 1].map(|phase| leave(run.routing(phase).scores().join(".path-000.f32a1B2c3.tmp")));
        remove_old_unfinished_scores(&run, &config);
        assert!(left.iter().all(|file| !file.exists()));
    }

    #[tokio::test]
    async fn a_complete_run_that_is_resumed_deletes_what_its_last_coordinator_left() {
        let folder = tempfile::tempdir().unwrap();
        let (run, config) = (RunDirectory::new(folder.path()), RunConfig::default());
        let store = open_store(&run).await.unwrap();
        let left = [
            names::weights(MODULE, 0, 1, 0),
            names::momentum(MODULE, 0, 1, 0),
            names::change(MODULE, 0, 1, 0),
            names::path_state(PathId(0), 8, 1),
            names::outer_gradient(MODULE, 0, 1, PathId(0), 1),
            names::checkpoint(2, 1),
        ];
        let own = [names::weights(MODULE, 0, 2, 0), names::path_state(PathId(0), 16, 2)];
        for name in left.iter().chain(&own) {
            store.put(name, "weights".into()).await.unwrap();
        }
        let seed = SeedRecord {
            origin: String::new(),
            step: 1,
            steps: 1,
            weights: ObjectRef::of("seed/1/weights", b"weights"),
            state: None,
            validation_loss: None,
            imported: None,
        };
        let [weights, state] = own.clone();
        let mut training = training(weights, true);
        training.paths[0].state = Some(ObjectRef::of(state, b"weights"));
        let mut manifest = RunManifest { seed: Some(seed), ..RunManifest::new("run".to_owned()) };
        training.origin = training_origin(&config, &manifest.start_hash().unwrap()).unwrap();
        manifest.training = Some(training);
        store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
        let options = TrainOptions {
            workers: 0,
            program: PathBuf::new(),
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: Vec::new(),
            resume: true,
            stop_at_phase: false,
            device: DeviceChoice::Cpu,
            http: None,
            tensorboard: None,
        };
        let (progress, cancel) = (Progress::hidden(), CancellationToken::new());
        let summary = train(&run, &config, &options, &progress, cancel, || Ok(())).await.unwrap();
        assert!(summary.finished);
        assert_eq!(stored(&store).await, own.into());
    }
}
