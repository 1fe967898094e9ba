//! The manifest's record of a training is read and written without a loss.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use dipaco_ledger::{
    ChangeRecord, CompletedLeaseRecord, ContributorRecord, CountRecord, EarlyStoppingBest, FragmentRecord,
    GradientRecord, KeptVersion, Ledger, LedgerError, LedgerPlan, ModuleRecord, PathRecord, RunManifest,
    ShardRecord, StoredRun, TrainingRecord, WritePart,
};
use dipaco_sync::Schedule;
use dipaco_topology::{ModuleId, PathId, Topology, TopologyConfig};
use support::object;

fn topology() -> Topology {
    Topology::new(&TopologyConfig { replicas: 2, ..TopologyConfig::dense(1) }, 1).unwrap()
}

fn plan() -> LedgerPlan {
    LedgerPlan { schedule: Schedule::new(3, 1, 0, vec![6, 12]).unwrap(), state_every: 2, ..support::plan() }
}

/// A training in which every list has an entry: path 0 has contributed to version 2, path 1 has not.
fn training() -> TrainingRecord {
    let module = ModuleId { level: 0, index: 0 };
    let best = EarlyStoppingBest { round: 0, versions: vec![0], loss: 2.5 };
    let path = |steps: u64, sent: u32| PathRecord {
        steps,
        sent: vec![sent],
        adopted: vec![sent - 1],
        counted: vec![CountRecord { steps, tokens: 10 * steps }],
        state: Some(object("state")),
        fence: Some(77),
        completed_by: Some("token".into()),
        replay: vec![CompletedLeaseRecord { from: 0, to: 3, versions: vec![0], received: vec![true] }],
        best: Some(best.clone()),
        last: Some(best.clone()),
        contributors: BTreeMap::from([(
            "token".into(),
            ContributorRecord {
                gradients: 1,
                first_step: 3,
                last_step: 6,
                tokens: 30,
                by_fragment: vec![1],
                numerics: ["device".to_owned()].into(),
            },
        )]),
        ..PathRecord::default()
    };
    let gradient = GradientRecord {
        module,
        fragment: 0,
        number: 2,
        base: 1,
        steps: 3,
        tokens: 30,
        norm: 1.5,
        token: "token".into(),
        object: object("gradient"),
    };
    let fragment = FragmentRecord {
        version: 1,
        weights: object("weights"),
        momentum: Some(object("momentum")),
        changes: vec![ChangeRecord { from: "hash".into(), version: 1, object: object("change") }],
        kept: vec![KeptVersion { version: 0, weights: object("kept") }],
        norms: vec![1.0, 2.0],
        norm_paths: vec![PathId(0), PathId(1)],
    };
    let shard = |path: u32| ShardRecord {
        file: format!("{path}"),
        hash: format!("hash {path}"),
        documents: 3,
        tokens: 100,
    };
    TrainingRecord {
        origin: "origin".into(),
        rounds: 4,
        inner_steps: 3,
        boundaries: vec![2],
        phase: 0,
        shards: vec![shard(0), shard(1)],
        modules: vec![ModuleRecord { module, fragments: vec![fragment] }],
        paths: vec![PathRecord { gradients: vec![gradient], ..path(6, 2) }, path(3, 1)],
        numerics: Some("device".into()),
        numerics_token: Some("token".into()),
    }
}

fn take_over(training: TrainingRecord, names: Vec<String>) -> Result<Ledger, LedgerError> {
    let manifest = RunManifest { training: Some(training), incarnation: 4, ..RunManifest::new("run".into()) };
    Ledger::take_over(StoredRun { manifest, checkpoints: Vec::new(), names }, topology(), plan())
}

#[test]
fn a_coordinator_that_takes_over_writes_the_same_record_under_a_new_incarnation() {
    let names = ["gradient", "kept", "left behind", "state"].map(str::to_owned).to_vec();
    let mut ledger = take_over(training(), names).unwrap();
    let parts: Vec<_> = ledger.poll_write().unwrap().finish().unwrap().collect();
    let [WritePart::Manifest { manifest, change }, WritePart::Deletions(obsolete)] = &parts[..] else {
        panic!("{parts:?}")
    };
    assert_eq!(*change, ledger.changes());
    assert_eq!((manifest.run.as_str(), manifest.incarnation), ("run", 5));
    assert_eq!(manifest.training, Some(training()));
    assert_eq!(*obsolete, ["left behind"]);
    assert!(ledger.poll_write().is_none(), "nothing has changed since");
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let mut lost = training();
    lost.paths[0].gradients.clear();
    assert!(matches!(take_over(lost, Vec::new()), Err(LedgerError::Progress(_))));
    let mut foreign = training();
    foreign.paths[0].gradients[0].fragment = 9;
    assert!(matches!(take_over(foreign, Vec::new()), Err(LedgerError::Lacks { .. })));
}
