//! Deletions beside the writes.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use bytes::Bytes;
use dipaco_config::RunConfig;
use dipaco_ledger::{
    CountRecord, FragmentRecord, ModuleRecord, ObjectRef, PathRecord, RunManifest, ShardRecord, StoredRun,
    TrainingRecord, names,
};
use dipaco_protocol::WorkerPlan;
use dipaco_store::{Patience, StoreError};
use dipaco_topology::{ModuleId, PathId};
use tempfile::TempDir;

use super::*;
use crate::TrainError;
use crate::coordinator::take_over::ledger_plan;

/// An upper bound; no test waits for its end.
const LONG: Duration = Duration::from_secs(60);
/// The token whose worker set the fingerprint of the run.
const TOKEN: &str = "token";

/// Names of outer gradients that a killed coordinator left in the store.
fn left_behind(number: u64) -> Vec<String> {
    let module = ModuleId { level: 0, index: 0 };
    (0..number).map(|fence| names::outer_gradient(module, 0, 1, PathId(0), fence)).collect()
}

/// The writer of a run before its first lease. Its first write drops the objects that were left behind.
fn writer(store: RunStore, left_behind: Vec<String>) -> ManifestWriter {
    let config = RunConfig::default();
    let plan = WorkerPlan::new(&config);
    let topology = plan.topology().unwrap();
    let fragments = topology.levels() * config.sync.fragments as usize;
    let fragment = FragmentRecord::first(ObjectRef::of("modules", b"weights"));
    let module = |module| ModuleRecord { module, fragments: vec![fragment.clone()] };
    let path = PathRecord {
        sent: vec![0; fragments],
        adopted: vec![0; fragments],
        counted: vec![CountRecord::default(); fragments],
        ..PathRecord::default()
    };
    let shard =
        |path| ShardRecord { file: format!("{path}.h5"), hash: "0".repeat(64), documents: 9, tokens: 99 };
    let training = TrainingRecord {
        origin: String::new(),
        rounds: config.train.rounds,
        inner_steps: config.train.inner_steps,
        boundaries: plan.boundaries.clone(),
        phase: 0,
        shards: topology.path_ids().map(shard).collect(),
        modules: topology.module_ids().map(module).collect(),
        paths: topology.path_ids().map(|_| path.clone()).collect(),
        numerics: Some("bits".to_owned()),
        numerics_token: Some(TOKEN.to_owned()),
    };
    let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".to_owned()) };
    let stored = StoredRun { manifest, checkpoints: Vec::new(), names: left_behind };
    let ledger = Ledger::take_over(stored, topology, ledger_plan(&plan).unwrap()).unwrap();
    ManifestWriter {
        ledger: Arc::new(Mutex::new(ledger)),
        store,
        sequence: ManifestSequence::NONE,
        changed: Arc::default(),
        written: Arc::default(),
        dropped: Vec::new(),
        clock: Clock::system(),
    }
}

/// The writer of a run in a folder in which no outer gradient can be deleted.
fn writer_without_deletions(patience: Patience) -> (ManifestWriter, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(&folder.path().to_string_lossy()).unwrap().with_patience(patience);
    // A link to itself can't be opened, also not by root, and it is not absent.
    let place = folder.path().join(names::OUTER_GRADIENTS);
    symlink(&place, &place).unwrap();
    (writer(store, left_behind(1)), folder)
}

#[tokio::test]
async fn dropped_objects_are_deleted_many_at_a_time() {
    let (store, load) = RunStore::in_memory().counted();
    let left_behind = left_behind(64);
    store.put_replacing_each(left_behind.clone(), &Bytes::from_static(b"gradient")).await.unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    writer(store.clone(), left_behind).run(stop).await.unwrap();
    assert!(store.list(names::OUTER_GRADIENTS).await.unwrap().is_empty(), "deleted before the end");
    let most = load.most_deletions();
    assert!((2..=32).contains(&most), "{most} deletions at a time");
}

#[tokio::test]
async fn an_answer_waits_for_no_deletion() {
    let failed = Arc::<Notify>::default();
    let told = failed.clone();
    let patience = Patience::new(Duration::ZERO, LONG, move |_| {
        told.notify_one();
        true
    });
    let (writer, _folder) = writer_without_deletions(patience);
    let (ledger, changed, written) = (writer.ledger.clone(), writer.changed.clone(), writer.written.clone());
    let answer = async {
        failed.notified().await;
        let change = {
            let mut ledger = ledger.lock().unwrap();
            assert!(ledger.forget_numerics(&BTreeSet::from([TOKEN.to_owned()])).is_some());
            ledger.changes()
        };
        changed.notify_one();
        written.wait_for(change).await
    };
    tokio::select! {
        ended = writer.run(CancellationToken::new()) => panic!("{ended:?}"),
        answered = answer => answered.unwrap(),
    }
}

#[tokio::test]
async fn a_deletion_that_fails_ends_the_writer() {
    let (writer, _folder) = writer_without_deletions(Patience::default());
    let store = writer.store.clone();
    let failure = writer.run(CancellationToken::new()).await.unwrap_err();
    assert!(
        matches!(&failure, CoordinatorError::Core(TrainError::Store(StoreError::Io { what: "delete", .. }))),
        "{failure:?}"
    );
    assert!(store.load::<RunManifest>().await.unwrap().is_some(), "written before the deletion");
}
