//! The manifest: compare-and-swap, damage, pruning.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::PathBuf;

use dipaco_store::{KEPT_MANIFESTS, ManifestSchema, ManifestSequence, RunStore, StoreError};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RoundManifest {
    round: u64,
    coordinator: String,
}

impl ManifestSchema for RoundManifest {
    const SCHEMA: &'static str = "round";
    const VERSION: u32 = 1;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NextVersion {
    round: u64,
}

impl ManifestSchema for NextVersion {
    const SCHEMA: &'static str = "round";
    const VERSION: u32 = 2;
}

fn manifest_of(round: u64) -> RoundManifest {
    RoundManifest { round, coordinator: "first".to_owned() }
}

struct Run {
    directory: tempfile::TempDir,
    store: RunStore,
}

impl Run {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::create(directory.path().to_str().unwrap()).unwrap();
        Self { directory, store }
    }

    /// Replaces the manifest `rounds` times, so `rounds` is the highest sequence.
    async fn with_rounds(rounds: u64) -> Self {
        let run = Self::new();
        for round in 1..=rounds {
            run.store.replace(&manifest_of(round), ManifestSequence(round - 1)).await.unwrap();
        }
        run
    }

    fn manifest(&self, sequence: u64) -> PathBuf {
        self.directory.path().join(format!("manifest/{sequence:020}.json"))
    }
}

#[tokio::test]
async fn a_run_starts_without_a_manifest_and_the_last_one_is_current() {
    let run = Run::new();
    assert_eq!(run.store.load::<RoundManifest>().await.unwrap(), None);
    assert_eq!(
        run.store.replace(&manifest_of(1), ManifestSequence::NONE).await.unwrap(),
        ManifestSequence(1)
    );
    assert_eq!(run.store.replace(&manifest_of(2), ManifestSequence(1)).await.unwrap(), ManifestSequence(2));
    let loaded = run.store.load::<RoundManifest>().await.unwrap().unwrap();
    assert_eq!((loaded.manifest, loaded.sequence), (manifest_of(2), ManifestSequence(2)));
    assert!(loaded.warnings.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_writers_wins_each_time() {
    let run = Run::new();
    for expected in 0..10 {
        let writers = (0..8).map(|writer| {
            let store = run.store.clone();
            let manifest = RoundManifest { round: expected, coordinator: format!("writer {writer}") };
            tokio::spawn(async move {
                store.replace(&manifest, ManifestSequence(expected)).await.map(|_| manifest.coordinator)
            })
        });
        let mut winners = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                Ok(winner) => winners.push(winner),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let current = run.store.load::<RoundManifest>().await.unwrap().unwrap();
        assert_eq!(winners, [current.manifest.coordinator]);
        assert_eq!(current.sequence, ManifestSequence(expected + 1));
    }
}

#[tokio::test]
async fn a_writer_that_lost_its_place_is_refused_however_far_behind_it_is() {
    let run = Run::with_rounds(30).await;
    for stale in [0, 3, 25, 29, 31, u64::MAX] {
        let error = run.store.replace(&manifest_of(99), ManifestSequence(stale)).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict { current: 30, .. }), "{error}");
    }
    assert_eq!(run.store.load::<RoundManifest>().await.unwrap().unwrap().manifest, manifest_of(30));
}

#[tokio::test]
async fn only_the_last_manifests_are_kept() {
    let run = Run::with_rounds(KEPT_MANIFESTS + 5).await;
    assert_eq!(fs::read_dir(run.directory.path().join("manifest")).unwrap().count() as u64, KEPT_MANIFESTS);
    assert!(run.manifest(6).exists() && !run.manifest(5).exists());
    assert!(run.store.list("").await.unwrap().is_empty(), "a manifest is no object");
}

#[tokio::test]
async fn a_manifest_counts_although_old_ones_remain() {
    let run = Run::with_rounds(KEPT_MANIFESTS).await;
    let (failing, load) = run.store.clone().counted();
    load.fail_deletions();
    for round in KEPT_MANIFESTS + 1..=KEPT_MANIFESTS + 3 {
        let replaced = failing.replace(&manifest_of(round), ManifestSequence(round - 1)).await;
        assert_eq!(replaced.unwrap(), ManifestSequence(round));
    }
    assert!(run.manifest(1).exists());
    // The next replacement removes what has remained.
    let newest = KEPT_MANIFESTS + 4;
    run.store.replace(&manifest_of(newest), ManifestSequence(newest - 1)).await.unwrap();
    assert!(run.manifest(5).exists() && (1..5).all(|old| !run.manifest(old).exists()));
}

#[tokio::test]
async fn a_manifest_whose_outcome_the_store_does_not_tell_is_neither_a_success_nor_a_conflict() {
    let run = Run::with_rounds(2).await;
    let (failing, load) = run.store.clone().counted();
    load.fail_lists(1..2);
    let error = failing.replace(&manifest_of(3), ManifestSequence(2)).await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownOutcome { .. }) && !error.may_pass(), "{error}");
    let loaded = failing.load::<RoundManifest>().await.unwrap().unwrap();
    assert_eq!((loaded.manifest, loaded.sequence), (manifest_of(3), ManifestSequence(3)));
}

#[tokio::test]
async fn a_torn_manifest_is_skipped_with_a_warning_and_the_run_continues() {
    let run = Run::with_rounds(3).await;
    let whole = fs::read(run.manifest(3)).unwrap();
    for torn in [&whole[..0], &whole[..whole.len() / 2], &vec![0; whole.len()][..]] {
        fs::write(run.manifest(3), torn).unwrap();
        let loaded = run.store.load::<RoundManifest>().await.unwrap().unwrap();
        assert_eq!((loaded.manifest, loaded.sequence), (manifest_of(2), ManifestSequence(3)));
        assert_eq!(loaded.warnings.len(), 1);
        assert!(
            loaded.warnings[0].contains("00000000000000000003.json` is damaged"),
            "{:?}",
            loaded.warnings
        );
    }
    assert_eq!(run.store.replace(&manifest_of(3), ManifestSequence(3)).await.unwrap(), ManifestSequence(4));
    assert!(run.store.load::<RoundManifest>().await.unwrap().unwrap().warnings.is_empty());
}

#[tokio::test]
async fn a_manifest_under_another_number_does_not_count() {
    let run = Run::with_rounds(2).await;
    fs::copy(run.manifest(1), run.manifest(3)).unwrap();
    let loaded = run.store.load::<RoundManifest>().await.unwrap().unwrap();
    assert_eq!(loaded.manifest, manifest_of(2));
    assert!(loaded.warnings[0].contains("manifest of sequence 1"), "{:?}", loaded.warnings);
}

#[tokio::test]
async fn without_an_intact_manifest_the_run_does_not_start_over() {
    let run = Run::with_rounds(2).await;
    for sequence in [1, 2] {
        fs::write(run.manifest(sequence), "{").unwrap();
    }
    let error = run.store.load::<RoundManifest>().await.unwrap_err();
    assert!(matches!(error, StoreError::ManifestDamaged { .. }));
    assert!(error.to_string().contains("00000000000000000001.json"), "{error}");
}

#[tokio::test]
async fn a_manifest_of_another_version_is_refused_and_not_skipped() {
    let run = Run::with_rounds(2).await;
    run.store.replace(&NextVersion { round: 3 }, ManifestSequence(2)).await.unwrap();
    let error = run.store.load::<RoundManifest>().await.unwrap_err();
    assert!(matches!(error, StoreError::ManifestSchema { version: 1, found_version: 2, .. }), "{error}");
    for format in [1, 3] {
        fs::write(run.manifest(3), format!(r#"{{"format":{format},"anything":0}}"#)).unwrap();
        let error = run.store.load::<RoundManifest>().await.unwrap_err();
        assert!(
            matches!(error, StoreError::ManifestFormat { found, known: 2, .. } if found == format),
            "{error}"
        );
    }
}

#[tokio::test]
async fn other_files_beside_the_manifests_are_ignored() {
    let run = Run::with_rounds(1).await;
    for name in ["00000000000000000002.json#1", "notes.txt", "2.json"] {
        fs::write(run.directory.path().join("manifest").join(name), "x").unwrap();
    }
    assert_eq!(run.store.load::<RoundManifest>().await.unwrap().unwrap().manifest, manifest_of(1));
    assert_eq!(run.store.replace(&manifest_of(2), ManifestSequence(1)).await.unwrap(), ManifestSequence(2));
}
