//! A small run whose coordinator answers requests, for tests. Nobody trains: results are said to be in the store.

use std::sync::Arc;
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_model::{ModuleWeights, parameters, path_specs};
use dipaco_net::Clock;
use dipaco_path::module_files;
use dipaco_protocol::{ContentDigest, GrantedLease, LeaseReport, LeaseResult, Response};
use dipaco_store::{ManifestSequence, RunManifest, RunStore, SeedRecord, ShardRecord};
use dipaco_sync::ProcessId;
use dipaco_telemetry::{Events, Progress};
use dipaco_topology::{LevelConfig, Modules, TopologyConfig};

use super::CoordinatorRequests;
use crate::coordinator::{CoordinatorError, CoordinatorOptions, RunningCoordinator, start_training};
use crate::host::{Answer, Peer, Revocations, Role};

/// A wait that no test comes to the end of.
pub(in crate::coordinator) const WAIT: Duration = Duration::from_secs(20);
/// The fingerprint of all devices.
pub(in crate::coordinator) const NUMERICS: &str = "bits";

/// The coordinator of a run of two paths that share a module of each of these levels, before its first lease. Each level has
/// one block. `change` changes the configuration.
pub(in crate::coordinator) async fn two_paths(
    levels: u16,
    change: impl FnOnce(&mut RunConfig),
) -> RunningCoordinator {
    let mut config = RunConfig::default();
    config.model.vocab_size = 11;
    (config.model.hidden_size, config.model.ffn_size, config.model.blocks) = (8, 8, usize::from(levels));
    (config.model.heads, config.model.head_dim) = (1, 8);
    let shared = |level: u16| LevelConfig {
        modules: Modules::Count(1),
        blocks: level.to_string(),
        embedding: level == 0,
        head: level + 1 == levels,
        frozen: false,
    };
    config.topology = TopologyConfig::grid(2, (0..levels).map(shared).collect());
    (config.train.state_every, config.train.held_paths) = (1, 0);
    change(&mut config);
    let store = RunStore::in_memory();
    let specs = path_specs(&config.model);
    let weights = ModuleWeights { values: vec![0.0; parameters(&specs)], specs: specs.into() };
    let weights = store.put("seed/weights", module_files::encode(&weights).unwrap()).await.unwrap();
    let seed = SeedRecord {
        origin: String::new(),
        step: 1,
        steps: 1,
        weights,
        state: None,
        validation_loss: None,
        imported: None,
    };
    let manifest = RunManifest { seed: Some(seed), ..RunManifest::new("run".to_owned()) };
    store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
    let shard =
        |path| ShardRecord { file: format!("{path}.h5"), hash: "0".repeat(64), documents: 9, tokens: 99 };
    let shards = (0..2).map(shard).collect();
    let mut started = start_training(&store, &config, shards, false).await.unwrap();
    // The first contribution of a run sets the fingerprint, and wakes everybody.
    started.manifest.training.as_mut().unwrap().numerics = Some(NUMERICS.to_owned());
    let options = CoordinatorOptions {
        config,
        store,
        started,
        shards: std::env::temp_dir(),
        reroute: None,
        revocations: Revocations::told(),
        renew: None,
        clock: Clock::system(),
        events: Events::off(),
        progress: Progress::hidden(),
        observe: None,
    };
    RunningCoordinator::take_over(options).await.unwrap()
}

/// A worker of this name.
pub(in crate::coordinator) fn worker(name: &str) -> Peer {
    Peer { process: ProcessId::local(name), role: Role::Worker, numerics: NUMERICS.to_owned() }
}

/// The lease in an answer.
pub(in crate::coordinator) fn granted(answer: Result<Answer, CoordinatorError>) -> GrantedLease {
    match answer.unwrap() {
        (Response::Lease(lease), None) => *lease,
        (other, _) => panic!("no lease but {other:?}"),
    }
}

/// Lets this time pass. Meanwhile the coordinator runs, or it is stopped.
pub(in crate::coordinator) fn pass(requests: &mut Arc<CoordinatorRequests>, time: Duration, runs: bool) {
    let looks = if runs { 100 } else { 1 };
    for _ in 0..looks {
        Arc::get_mut(requests).unwrap().started -= time / looks;
        if runs {
            requests.look_at_clock(&mut requests.ledger());
        }
    }
}

/// Says that the results of a lease are in the store.
pub(in crate::coordinator) async fn record(
    requests: &CoordinatorRequests,
    peer: &Peer,
    lease: &GrantedLease,
) {
    let claim = peer.claim(lease.key());
    let sent = lease.sends.iter().map(|send| {
        (LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 }, send.step)
    });
    let state = lease.uploads_state.then_some((LeaseResult::State, lease.to));
    for (item, to) in sent.chain(state) {
        let digest = ContentDigest::of(b"result");
        let recorded = requests.record_remote_result(&claim, item, to, digest, 1.0).await.unwrap();
        assert_eq!(recorded, Response::Done);
    }
}

/// Completes a lease, whose results are said to be in the store.
pub(in crate::coordinator) async fn complete(
    requests: &CoordinatorRequests,
    peer: &Peer,
    lease: &GrantedLease,
) {
    record(requests, peer, lease).await;
    let claim = peer.claim(lease.key());
    let (completed, _) = requests.complete_lease(&claim, LeaseReport::default()).await.unwrap();
    assert_eq!(completed, Response::Done);
}
