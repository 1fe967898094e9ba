//! The memory of a process while it verifies a run. This file has one test, so that nothing else is in its memory.
#![allow(clippy::unwrap_used)]

use std::fs;

use dipaco_store::{ManifestSequence, ObjectRef, PathRecord, RunManifest, RunStore, TrainingRecord};
use dipaco_telemetry::Progress;
use dipaco_train::recover;
use tokio_util::sync::CancellationToken;

/// Bytes of an object.
const OBJECT: u64 = 64 << 20;

/// Most memory that this process has had so far, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_run_is_verified_without_an_object_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
    let mut hasher = blake3::Hasher::new();
    let zeros = vec![0_u8; 1 << 20];
    while hasher.count() < OBJECT {
        hasher.update(&zeros);
    }
    let hash = hasher.finalize().to_hex().to_string();
    // Files of zeros take no disk.
    let path = |number: u32| {
        let name = format!("paths/{number}/state");
        let file = folder.path().join(&name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::File::create(file).unwrap().set_len(OBJECT).unwrap();
        let state = ObjectRef { name, hash: hash.clone(), bytes: OBJECT };
        PathRecord { state: Some(state), ..PathRecord::default() }
    };
    let training = TrainingRecord { paths: (0..6).map(path).collect(), ..TrainingRecord::default() };
    let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".to_owned()) };
    store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
    let begin = peak();

    assert_eq!(recover(&store, &Progress::hidden(), &CancellationToken::new()).await.unwrap(), None);
    let taken = peak() - begin;
    assert!(taken < OBJECT, "{taken} bytes for objects of {OBJECT} bytes");
}
