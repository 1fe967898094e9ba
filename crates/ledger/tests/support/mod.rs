//! A small run for the tests of the ledger.
#![allow(dead_code, reason = "each test program uses a part")]

use std::time::Duration;

use dipaco_ledger::{
    CountRecord, FragmentRecord, Ledger, LedgerPlan, ModuleRecord, ObjectRef, PathRecord, RunManifest,
    ShardRecord, StoredRun, TrainingRecord, WritePart,
};
use dipaco_sync::{
    FragmentId, Grant, Lease, LeaseLimits, LeaseRequest, LeaseSecret, Numerics, ProcessId, Rescale, Schedule,
    Scheme, Weighting,
};
use dipaco_topology::{LevelConfig, ModuleId, Modules, Topology, TopologyConfig};

/// The time of all calls but those that say otherwise.
pub(crate) const NOW: Duration = Duration::ZERO;
/// The only module.
const MODULE: ModuleId = ModuleId { level: 0, index: 0 };
/// Its only fragment.
pub(crate) const FRAGMENT: FragmentId = FragmentId { module: MODULE, index: 0 };

/// An object of this name and content.
pub(crate) fn object(name: &str) -> ObjectRef {
    ObjectRef::of(name, name.as_bytes())
}

/// Three paths through one module, two rounds of three steps.
pub(crate) fn start() -> RunManifest {
    start_of(3, 1)
}

/// These paths through all modules, one module for each of these levels, two rounds of three steps.
pub(crate) fn start_of(paths: u32, levels: u16) -> RunManifest {
    let fragment = FragmentRecord::first(object("modules/0"));
    let path = PathRecord {
        sent: vec![0; levels.into()],
        adopted: vec![0; levels.into()],
        counted: vec![CountRecord::default(); levels.into()],
        ..PathRecord::default()
    };
    let shard =
        |path: u32| ShardRecord { file: format!("{path}"), hash: "h".into(), documents: 3, tokens: 100 };
    let training = TrainingRecord {
        origin: "origin".into(),
        rounds: 2,
        inner_steps: 3,
        boundaries: Vec::new(),
        phase: 0,
        shards: (0..paths).map(shard).collect(),
        modules: (0..levels)
            .map(|level| ModuleRecord {
                module: ModuleId { level, index: 0 },
                fragments: vec![fragment.clone()],
            })
            .collect(),
        paths: vec![path; paths as usize],
        numerics: None,
        numerics_token: None,
    };
    RunManifest { training: Some(training), ..RunManifest::new("run".into()) }
}

/// The ledger of a manifest.
pub(crate) fn take_over(manifest: RunManifest) -> Ledger {
    take_over_from(manifest, |_| ())
}

/// The ledger of a manifest with another schedule of two rounds.
pub(crate) fn take_over_with(manifest: RunManifest, schedule: Schedule) -> Ledger {
    take_over_from(manifest, |plan| plan.schedule = schedule)
}

/// The ledger of a manifest with a plan that `change` changes.
pub(crate) fn take_over_from(manifest: RunManifest, change: impl FnOnce(&mut LedgerPlan)) -> Ledger {
    take_over_stored(StoredRun { manifest, checkpoints: Vec::new(), names: Vec::new() }, change)
}

/// The plan of a synchronous run of two rounds of three steps, of modules in one fragment.
pub(crate) fn plan() -> LedgerPlan {
    LedgerPlan {
        schedule: Schedule::new(3, 1, 0, vec![6]).unwrap(),
        scheme: Scheme::Synchronous,
        limits: LeaseLimits::of_silence(Duration::from_secs(1)),
        state_every: 9,
        checkpoints: 0,
        sampling: None,
        weighting: Weighting::ShardSize,
        rescale: Rescale::SQRT_PATHS,
        guard: 10.0,
        quarantine_after: 2,
        one_by_one: false,
        compares: false,
        numerics: Numerics::Same,
    }
}

/// The ledger of a stored run with a plan that `change` changes. Each level has the modules of the manifest.
pub(crate) fn take_over_stored(stored: StoredRun, change: impl FnOnce(&mut LedgerPlan)) -> Ledger {
    let training = stored.manifest.training.as_ref().unwrap();
    let levels = training.modules.last().map_or(0, |last| usize::from(last.module.level) + 1);
    let modules = |level: usize| {
        let of_level = training.modules.iter().filter(|module| usize::from(module.module.level) == level);
        u32::try_from(of_level.count()).unwrap()
    };
    let replicas = u32::try_from(training.paths.len()).unwrap() / (0..levels).map(modules).product::<u32>();
    let level = |level: usize| LevelConfig {
        modules: Modules::Count(modules(level)),
        blocks: level.to_string(),
        embedding: level == 0,
        head: level + 1 == levels,
        frozen: false,
    };
    let config = TopologyConfig::grid(replicas, (0..levels).map(level).collect());
    let topology = Topology::new(&config, levels).unwrap();
    let mut plan = plan();
    change(&mut plan);
    Ledger::take_over(stored, topology, plan).unwrap()
}

/// Asks for a lease.
pub(crate) fn ask(ledger: &mut Ledger, worker: &str) -> Grant {
    ask_with(ledger, &ProcessId::local(worker), "")
}

/// Asks for a lease of a device with this fingerprint.
pub(crate) fn ask_with(ledger: &mut Ledger, worker: &ProcessId, numerics: &str) -> Grant {
    ledger.grant(NOW, &LeaseRequest { worker, held: &[], secret: LeaseSecret::default(), numerics })
}

/// The lease that a worker with a token gets.
pub(crate) fn ask_as(ledger: &mut Ledger, token: &str, name: &str) -> Lease {
    let worker = ProcessId { token: token.into(), ..ProcessId::local(name) };
    let Grant::Lease(lease) = ask_with(ledger, &worker, "") else { panic!("no lease for {name}") };
    *lease
}

/// The lease that a worker gets.
pub(crate) fn lease(ledger: &mut Ledger, worker: &str) -> Lease {
    match ask(ledger, worker) {
        Grant::Lease(lease) => *lease,
        other => panic!("no lease for {worker}: {other:?}"),
    }
}

/// The manifest of the next write.
pub(crate) fn written(ledger: &mut Ledger) -> RunManifest {
    let mut parts = ledger.poll_write().unwrap().finish().unwrap();
    let manifest = parts.find_map(|part| match part {
        WritePart::Manifest { manifest, .. } => Some(*manifest),
        WritePart::Checkpoint(_) | WritePart::Deletions(_) => None,
    });
    manifest.unwrap()
}
