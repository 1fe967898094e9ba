//! A tiny run with real sockets, a real store and real training, all in one process.

// Every test file compiles these helpers and uses some of them.
#![allow(dead_code, unused_imports)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use dipaco_config::{RunConfig, Sources};
use dipaco_model::{level_specs, parameters};
use dipaco_net::{JoinToken, Limits, NetError, RunAuthority, Server};
use dipaco_path::TrainDevice;
use dipaco_protocol::SYNCHRONIZER;
use dipaco_shards::{TokenFileInfo, TokenFileWriter, TokenSet};
use dipaco_store::{RunManifest, RunStore, ShardRecord};
use dipaco_sync::FragmentId;
use dipaco_telemetry::{Event, EventRecord, Events, Progress, RunClock, read_events};
use dipaco_topology::{ModuleId, Topology};
use dipaco_train::{
    CoordinatorError, CoordinatorOptions, CoordinatorSummary, OpenRun, Revocations, SeedOptions,
    SynchronizerError, SynchronizerOptions, SynchronizerSummary, WorkerError, WorkerOptions, WorkerSummary,
    coordinate, open_run, start_training, synchronize, train_seed, work,
};
use tokio_util::sync::CancellationToken;

mod puppet;
pub(crate) mod requests;

pub(crate) use puppet::{Puppet, encoded_state};

pub(crate) const VOCABULARY: u32 = 40;
const LIFETIME: Duration = Duration::from_secs(3600);

/// Settings beside `tests/fixtures/tiny.toml`: documents of 20 tokens, and the rates and the held-out documents that the
/// tests of this package were written for.
const SETTINGS: [&str; 18] = [
    "model.hidden_size=16",
    "model.head_dim=8",
    "model.ffn_size=24",
    "model.context=16",
    "seed_model.steps=4",
    "seed_model.sequence_tokens=16",
    "seed_model.checkpoint_every=2",
    "seed_model.validate_every=100",
    "seed_model.validation_sequences=32",
    "seed_model.adamw.learning_rate=0.0004",
    "seed_model.schedule.warmup_steps=50",
    "train.inner_steps=4",
    "train.sequence_tokens=16",
    "train.schedule.warmup_steps=50",
    "train.holdout_sequences=16",
    "train.holdout_fraction=0.1",
    "routing.prefix_tokens=8",
    "evaluation.prefix_tokens=8",
];

/// A 2 × 2 run that trains in a moment.
pub(crate) fn config() -> RunConfig {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny.toml");
    let overrides = SETTINGS.map(ToOwned::to_owned).to_vec();
    let sources = Sources { file: Some(file.into()), overrides, ..Sources::default() };
    let mut config = RunConfig::load(&sources).unwrap().config;
    config.model.vocab_size = VOCABULARY as usize;
    config
}

/// Writes a token file of documents that follow a rule, which differs for each `kind`.
pub(crate) fn tokens(file: &Path, kind: u32, documents: u32) -> Arc<TokenSet> {
    let info = TokenFileInfo {
        tokenizer_hash: "test".into(),
        end_of_text: 0,
        vocab_size: VOCABULARY,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(file, info).unwrap();
    for document in 0..documents {
        let mut ids: Vec<u32> =
            (0..20 + document % 7).map(|i| 1 + (i * (kind + 1) + document * 3) % (VOCABULARY - 1)).collect();
        ids.push(0);
        writer.push_document(&ids).unwrap();
    }
    writer.finish().unwrap();
    Arc::new(TokenSet::open(file).unwrap())
}

/// A run on the disk: text, shards, a store.
pub(crate) struct Run {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) config: RunConfig,
    pub(crate) store: RunStore,
    pub(crate) shards: Vec<ShardRecord>,
    pub(crate) authority: Arc<RunAuthority>,
}

impl Run {
    /// A run whose seed is trained.
    pub(crate) async fn seeded(config: RunConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let train = tokens(&folder.path().join("train.h5"), 0, 60);
        let paths = Topology::new(&config.topology, config.model.blocks).unwrap().paths();
        let shards = (0..paths)
            .map(|path| {
                let name = format!("path-{path:03}.h5");
                let file = tokens(&folder.path().join(&name), path, 30 + 10 * path);
                ShardRecord {
                    file: name,
                    hash: file.content_hash().to_owned(),
                    documents: file.documents(),
                    tokens: file.tokens(),
                }
            })
            .collect();
        let store = RunStore::create(&folder.path().join("store").to_string_lossy()).unwrap();
        let started = open_run(&store, || "test-run".to_owned()).await.unwrap();
        let options = SeedOptions {
            config: config.clone(),
            store: store.clone(),
            train,
            validation: None,
            restart: false,
            device: TrainDevice::Cpu,
        };
        let (events, never) = (Arc::new(Events::off()), Arc::new(AtomicBool::new(false)));
        let (summary, _) = train_seed(options, started, events, &Progress::hidden(), never).await.unwrap();
        assert!(summary.finished);
        let authority = Arc::new(RunAuthority::create("test-run", SystemTime::now()).unwrap());
        Self { folder, config, store, shards, authority }
    }

    pub(crate) async fn start(&self, resume: bool) -> Result<OpenRun, CoordinatorError> {
        start_training(&self.store, &self.config, self.shards.clone(), resume).await
    }

    pub(crate) async fn server(&self) -> (Server, JoinToken) {
        self.server_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(crate) async fn server_at(&self, address: SocketAddr) -> (Server, JoinToken) {
        let identity = self.authority.server(SystemTime::now(), LIFETIME).unwrap();
        let server = loop {
            match Server::bind(address, &identity, Limits::default()) {
                // The tasks of a coordinator that was just dropped hold its socket until they are next run.
                Err(NetError::Bind { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => {
                    tokio::task::yield_now().await;
                }
                bound => break bound.unwrap(),
            }
        };
        let addresses = vec![server.local_addr().to_string()];
        let token = self.authority.issue("worker", "test", addresses, SystemTime::now(), LIFETIME).unwrap();
        (server, token)
    }

    /// Another worker token, with the addresses of the token `like`.
    pub(crate) fn token_of(&self, name: &str, like: &JoinToken) -> JoinToken {
        let addresses = like.addresses.clone();
        self.authority.issue("worker", name, addresses, SystemTime::now(), LIFETIME).unwrap()
    }

    /// A token of another role, with the addresses of the token `like`.
    pub(crate) fn token_as(&self, role: &str, like: &JoinToken) -> JoinToken {
        let addresses = like.addresses.clone();
        self.authority.issue(role, "test", addresses, SystemTime::now(), LIFETIME).unwrap()
    }

    pub(crate) fn options(&self, started: OpenRun, events: Events) -> CoordinatorOptions {
        CoordinatorOptions {
            config: self.config.clone(),
            store: self.store.clone(),
            started,
            shards: self.folder.path().to_owned(),
            reroute: None,
            observe: None,
            revocations: Revocations::of(&self.folder.path().join("revoked")),
            renew: None,
            clock: dipaco_net::Clock::system(),
            events,
            progress: Progress::hidden(),
        }
    }

    pub(crate) fn worker(&self, token: &JoinToken, name: &str) -> WorkerOptions {
        WorkerOptions {
            token: token.clone(),
            source: dipaco_train::client::TokenSource::Given,
            name: name.to_owned(),
            shards: None,
            cache: self.folder.path().join("cache").join(name),
            patience: Duration::from_secs(20),
            bandwidth: 0,
            weights_in_memory: dipaco_train::WEIGHTS_IN_MEMORY,
            device: TrainDevice::Cpu,
            observer: None,
        }
    }

    /// A run with a seed, after its training with this many workers.
    pub(crate) async fn trained(config: RunConfig, workers: usize) -> Self {
        let run = Self::seeded(config).await;
        assert!(run.train(workers).await.0.finished);
        run
    }

    /// Trains the whole run with this many workers.
    pub(crate) async fn train(&self, workers: usize) -> (CoordinatorSummary, Vec<WorkerSummary>) {
        let (coordinator, token) = self.coordinator(Events::off(), CancellationToken::new()).await;
        let working: Vec<_> =
            (0..workers).map(|number| self.spawn_worker(&token, &format!("w{number}"))).collect();
        let summary = coordinator.await.unwrap().unwrap();
        let mut summaries = Vec::new();
        for worker in working {
            summaries.push(worker.await.unwrap().unwrap());
        }
        (summary, summaries)
    }

    /// Trains with two workers. The coordinator stops after each of these numbers of events, and goes on at its address.
    pub(crate) async fn train_with_stops(&self, stops: impl IntoIterator<Item = u32>) {
        let (mut server, token) = self.server().await;
        let address = server.local_addr();
        let leave = CancellationToken::new();
        let workers = ["a", "b"].map(|name| tokio::spawn(work(self.worker(&token, name), leave.clone())));
        for events in stops {
            let started = self.start(true).await.unwrap();
            let stop = CancellationToken::new();
            let events = self.events_until(events, &stop);
            if coordinate(self.options(started, events), server, stop).await.unwrap().finished {
                break;
            }
            (server, _) = self.server_at(address).await;
        }
        leave.cancel();
        for worker in workers {
            worker.await.unwrap().unwrap();
        }
    }

    /// Number of values of a whole module.
    pub(crate) fn values_of(&self, fragment: FragmentId) -> usize {
        let topology = Topology::new(&self.config.topology, self.config.model.blocks).unwrap();
        parameters(&level_specs(&self.config.model, &topology, usize::from(fragment.module.level)))
    }

    /// A coordinator of this run as a task.
    pub(crate) async fn coordinator(
        &self,
        events: Events,
        cancel: CancellationToken,
    ) -> (Coordinating, JoinToken) {
        let started = self.start(true).await.unwrap();
        let (server, token) = self.server().await;
        (tokio::spawn(coordinate(self.options(started, events), server, cancel)), token)
    }

    pub(crate) fn spawn_worker(&self, token: &JoinToken, name: &str) -> Working {
        tokio::spawn(work(self.worker(token, name), CancellationToken::new()))
    }

    /// A synchronizer for these modules, as a task.
    pub(crate) async fn spawn_synchronizer(&self, token: &JoinToken, modules: &[ModuleId]) -> Synchronizing {
        self.spawn_synchronizer_as("test", token, modules).await
    }

    pub(crate) async fn spawn_synchronizer_as(
        &self,
        name: &str,
        token: &JoinToken,
        modules: &[ModuleId],
    ) -> Synchronizing {
        let identity = self.authority.helper(SystemTime::now(), LIFETIME).unwrap();
        let server = Server::bind(([127, 0, 0, 1], 0).into(), &identity, Limits::default()).unwrap();
        let options = SynchronizerOptions {
            token: self.token_as(SYNCHRONIZER, token),
            source: dipaco_train::client::TokenSource::Given,
            name: name.to_owned(),
            modules: modules.to_vec(),
            address: server.local_addr().to_string(),
            store: self.store.clone(),
            links: self.config.run.links,
            collect: self.folder.path().to_owned(),
            patience: Duration::from_secs(20),
            next_identity: Arc::default(),
            observe: None,
        };
        tokio::spawn(synchronize(options, server, CancellationToken::new()))
    }

    /// The event file of the run.
    pub(crate) fn events(&self) -> Events {
        Events::create(&self.folder.path().join("metrics.jsonl")).unwrap()
    }

    /// The rounds of which the event file tells the end, in its order, each with its mean loss.
    pub(crate) fn completed_rounds(&self) -> Vec<(u64, f64)> {
        let records = read_events(&self.folder.path().join("metrics.jsonl")).unwrap();
        let of_round = |record: EventRecord| match record.event {
            Event::RoundCompleted { round, loss, .. } => Some((round, loss)),
            _ => None,
        };
        records.filter_map(|record| of_round(record.unwrap())).collect()
    }

    /// An event file that triggers `reached` with the `number`th event after its first, with which a coordinator starts.
    pub(crate) fn events_until(&self, number: u32, reached: &CancellationToken) -> Events {
        let clock = Counting { left: AtomicU32::new(number + 1), reached: reached.clone() };
        Events::with_clock(&self.folder.path().join("metrics.jsonl"), Box::new(clock)).unwrap()
    }

    pub(crate) async fn manifest(&self) -> RunManifest {
        self.store.load::<RunManifest>().await.unwrap().unwrap().manifest
    }

    /// Asserts that the global weights are those of an undisturbed run of the same configuration.
    pub(crate) async fn has_undisturbed_bits(&self) {
        let undisturbed = Self::seeded(self.config.clone()).await;
        undisturbed.train(1).await;
        assert_eq!(self.bits().await, undisturbed.bits().await);
    }

    /// The hashes of the global weights.
    pub(crate) async fn weights(&self) -> Vec<String> {
        let training = self.manifest().await.training.unwrap();
        let fragments = training.modules.iter().flat_map(|module| &module.fragments);
        fragments.map(|fragment| fragment.weights.hash.clone()).collect()
    }

    /// The hashes of all results of training: weights, momenta, moments, data positions.
    pub(crate) async fn bits(&self) -> Vec<String> {
        let training = self.manifest().await.training.unwrap();
        let fragments = training.modules.iter().flat_map(|module| &module.fragments);
        // Only a fragment that takes outer steps has a momentum.
        let modules = fragments.flat_map(|fragment| {
            let momentum = (fragment.version > 0).then_some(fragment.momentum.as_ref());
            [Some(Some(&fragment.weights)), momentum]
        });
        let modules = modules.flatten();
        let states = training.paths.iter().map(|path| path.state.as_ref());
        modules.chain(states).map(|object| object.unwrap().hash.clone()).collect()
    }
}

pub(crate) type Coordinating = tokio::task::JoinHandle<Result<CoordinatorSummary, CoordinatorError>>;
pub(crate) type Synchronizing = tokio::task::JoinHandle<Result<SynchronizerSummary, SynchronizerError>>;
pub(crate) type Working = tokio::task::JoinHandle<Result<WorkerSummary, WorkerError>>;

/// A clock that counts how often the event file asks for the time of day: once for each event.
struct Counting {
    left: AtomicU32,
    reached: CancellationToken,
}

impl RunClock for Counting {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn now(&self) -> SystemTime {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.reached.cancel();
        }
        SystemTime::UNIX_EPOCH
    }
}
