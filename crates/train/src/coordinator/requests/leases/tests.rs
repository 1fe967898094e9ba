//! The end of a lease wakes the requests that it may answer, and no others. A result counts only if the ledger is whole.

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dipaco_config::RunConfig;
use dipaco_model::{ModuleWeights, parameters, path_specs};
use dipaco_net::Clock;
use dipaco_path::module_files;
use dipaco_protocol::{ContentDigest, GrantedLease, LeaseReport, LeaseResult};
use dipaco_store::{ManifestSequence, RunManifest, RunStore, SeedRecord, ShardRecord};
use dipaco_telemetry::{Events, Progress};
use dipaco_topology::{LevelConfig, Modules, TopologyConfig};

use super::*;
use crate::coordinator::{CoordinatorOptions, RunningCoordinator, start_training};
use crate::host::{HostError, Revocations, Role};

const WAIT: Duration = Duration::from_secs(20);
/// The fingerprint of all devices.
const NUMERICS: &str = "bits";

/// The coordinator of a run of two paths that share a module, before its first lease. Outer steps wait for `quorum` paths, and
/// with 0 the paths wait for outer steps too.
async fn two_paths(quorum: u32) -> RunningCoordinator {
    let mut config = RunConfig::default();
    config.model.vocab_size = 11;
    (config.model.hidden_size, config.model.ffn_size, config.model.blocks) = (8, 8, 1);
    (config.model.heads, config.model.head_dim) = (1, 8);
    let shared = LevelConfig {
        modules: Modules::Count(1),
        blocks: "0".to_owned(),
        embedding: true,
        head: true,
        frozen: false,
    };
    config.topology = TopologyConfig::grid(2, vec![shared]);
    (config.sync.quorum, config.train.state_every, config.train.held_paths) = (quorum, 1, 0);
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

fn worker(name: &str) -> Peer {
    Peer { process: ProcessId::local(name), role: Role::Worker, numerics: NUMERICS.to_owned() }
}

fn granted(answer: Result<Answer, CoordinatorError>) -> GrantedLease {
    match answer.unwrap() {
        (Response::Lease(lease), None) => *lease,
        (other, _) => panic!("no lease but {other:?}"),
    }
}

/// Says that the results of a lease are in the store.
async fn record(requests: &CoordinatorRequests, peer: &Peer, lease: &GrantedLease) {
    let claim = peer.claim(lease.key());
    let sent = lease.sends.iter().map(|send| {
        (LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 }, send.step)
    });
    for (item, to) in sent.chain([(LeaseResult::State, lease.to)]) {
        let digest = ContentDigest::of(b"result");
        let recorded = requests.record_remote_result(&claim, item, to, digest, 1.0).await.unwrap();
        assert_eq!(recorded, Response::Done);
    }
}

/// Completes a lease, whose results are said to be in the store.
async fn complete(requests: &CoordinatorRequests, peer: &Peer, lease: &GrantedLease) {
    record(requests, peer, lease).await;
    let claim = peer.claim(lease.key());
    let (completed, _) = requests.complete_lease(&claim, LeaseReport::default()).await.unwrap();
    assert_eq!(completed, Response::Done);
}

/// True if `wait` is over without any further event.
async fn is_over(wait: impl Future<Output = ()>) -> bool {
    tokio::select! {
        biased;
        () = wait => true,
        () = ready(()) => false,
    }
}

#[tokio::test]
async fn a_worker_that_waits_gets_a_path_as_soon_as_its_lease_ends() {
    let RunningCoordinator { requests, writer: _writer, .. } = two_paths(2).await;
    let [a, b, waiting] = ["a", "b", "waiting"].map(worker);
    let first = granted(requests.lease(&a, &[], WAIT).await);
    granted(requests.lease(&b, &[], WAIT).await);
    let asking = requests.lease(&waiting, &[], WAIT);
    tokio::pin!(asking);
    let mut look = async || {
        tokio::select! {
            biased;
            answer = &mut asking => Some(granted(answer)),
            () = ready(()) => None,
        }
    };
    assert!(look().await.is_none(), "both paths are leased");
    complete(&requests, &a, &first).await;
    // The second contribution of the quorum is not there, so no outer step wakes anybody.
    let freed = look().await.expect("the path is free, and its lease is granted at once");
    assert_eq!((freed.path, freed.from), (first.path, first.to));
}

#[tokio::test]
async fn the_end_of_a_lease_that_frees_no_path_wakes_its_own_worker_alone() {
    let RunningCoordinator { requests, writer: _writer, .. } = two_paths(0).await;
    let [a, b, waiting] = ["a", "b", "waiting"].map(worker);
    let first = granted(requests.lease(&a, &[], WAIT).await);
    granted(requests.lease(&b, &[], WAIT).await);
    // Registered before, as requests that wait do.
    let everybody = requests.changed.notified();
    tokio::pin!(everybody);
    everybody.as_mut().enable();
    let of_process = [&a, &waiting].map(|peer| requests.waiting.begin(&peer.process, None));
    complete(&requests, &a, &first).await;
    assert!(!requests.ledger().state().has_free_path(), "the path waits for the other contribution");
    assert!(!is_over(everybody).await);
    let [own, other] = of_process;
    assert!(is_over(own.changed()).await);
    assert!(!is_over(other.changed()).await);
}

#[tokio::test]
async fn a_ledger_that_a_panic_has_left_half_changed_is_not_written() {
    let RunningCoordinator { requests, writer, .. } = two_paths(2).await;
    let peer = worker("a");
    let lease = granted(requests.lease(&peer, &[], WAIT).await);
    record(&requests, &peer, &lease).await;
    let written = || async { requests.intake.store.load::<RunManifest>().await.unwrap() };
    let before = written().await;
    let stopped = catch_unwind(AssertUnwindSafe(|| requests.change(|_| panic!("the bug of this test"))));
    assert!(stopped.is_err());
    let completed = requests.complete_lease(&peer.claim(lease.key()), LeaseReport::default()).await;
    assert!(matches!(completed, Err(CoordinatorError::Stopped)));
    assert!(matches!(writer.stop().await, Err(CoordinatorError::Host(HostError::Broken))));
    assert_eq!(written().await, before);
}
