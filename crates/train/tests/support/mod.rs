//! A tiny run with real sockets, a real store and real training, all in one process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use dipaco_config::RunConfig;
use dipaco_net::{JoinToken, Limits, RunAuthority, Server};
use dipaco_shards::{TokenFile, TokenFileInfo, TokenFileWriter};
use dipaco_store::{RunManifest, RunStore, ShardRecord};
use dipaco_telemetry::{Events, Progress};
use dipaco_train::{
    CoordinatorOptions, CoordinatorSummary, SeedOptions, Started, TrainError, WorkerOptions, WorkerSummary,
    coordinate, open_run, start_training, train_seed, work,
};
use tokio_util::sync::CancellationToken;

pub(crate) const VOCABULARY: u32 = 40;
const LIFETIME: Duration = Duration::from_secs(3600);

/// A 2 × 2 run that trains in a moment.
pub(crate) fn config() -> RunConfig {
    let text = r#"
        [model]
        hidden_size = 16
        blocks = 2
        heads = 2
        head_dim = 8
        ffn_size = 24
        context = 16

        [[topology.levels]]
        modules = 2
        blocks = "0"
        embedding = true

        [[topology.levels]]
        modules = 2
        blocks = "1"
        head = true

        [seed_model]
        steps = 4
        batch = 4
        sequence_tokens = 16
        checkpoint_every = 2

        [train]
        rounds = 3
        inner_steps = 4
        batch = 4
        sequence_tokens = 16
        holdout_fraction = 0.1

        [routing]
        prefix_tokens = 8

        [evaluation]
        prefix_tokens = 8
    "#;
    let mut config = RunConfig::from_toml(text, Path::new("test.toml")).unwrap();
    config.model.vocab_size = VOCABULARY as usize;
    config
}

/// Writes a token file of documents that follow a rule, another one for each `kind`.
pub(crate) fn tokens(file: &Path, kind: u32, documents: u32) -> Arc<TokenFile> {
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
    Arc::new(TokenFile::open(file).unwrap())
}

/// A run on the disk: text, shards, a store.
pub(crate) struct Run {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) config: RunConfig,
    pub(crate) store: RunStore,
    pub(crate) shards: Vec<ShardRecord>,
    authority: RunAuthority,
}

impl Run {
    /// A run whose seed is trained.
    pub(crate) async fn seeded(config: RunConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let train = tokens(&folder.path().join("train.h5"), 0, 60);
        let shards = (0..4u32)
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
        };
        let (events, never) = (Arc::new(Events::off()), Arc::new(AtomicBool::new(false)));
        let (summary, _) = train_seed(options, started, events, &Progress::hidden(), never).await.unwrap();
        assert!(summary.finished);
        let authority = RunAuthority::create("test-run", SystemTime::now()).unwrap();
        Self { folder, config, store, shards, authority }
    }

    pub(crate) async fn start(&self, resume: bool) -> Result<Started, TrainError> {
        start_training(&self.store, &self.config, self.shards.clone(), resume).await
    }

    pub(crate) fn server(&self) -> (Server, JoinToken) {
        let identity = self.authority.server(SystemTime::now(), LIFETIME).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(address, &identity, Limits::default()).unwrap();
        let addresses = vec![server.local_addr().to_string()];
        let token = self.authority.issue("worker", "test", addresses, SystemTime::now(), LIFETIME).unwrap();
        (server, token)
    }

    pub(crate) fn options(&self, started: Started, events: Events) -> CoordinatorOptions {
        CoordinatorOptions {
            config: self.config.clone(),
            store: self.store.clone(),
            started,
            shards: self.folder.path().to_owned(),
            events,
            progress: Progress::hidden(),
        }
    }

    pub(crate) fn worker(&self, token: &JoinToken, name: &str) -> WorkerOptions {
        WorkerOptions {
            token: token.clone(),
            name: name.to_owned(),
            shards: None,
            cache: self.folder.path().join("cache").join(name),
            patience: Duration::from_secs(20),
        }
    }

    /// Trains the whole run with this many workers.
    pub(crate) async fn train(&self, workers: usize) -> (CoordinatorSummary, Vec<WorkerSummary>) {
        let started = self.start(true).await.unwrap();
        let (server, token) = self.server();
        let stop = CancellationToken::new();
        let working: Vec<_> = (0..workers)
            .map(|number| tokio::spawn(work(self.worker(&token, &format!("w{number}")), stop.clone())))
            .collect();
        let options = self.options(started, Events::off());
        let summary = coordinate(options, server, CancellationToken::new()).await.unwrap();
        let mut summaries = Vec::new();
        for worker in working {
            summaries.push(worker.await.unwrap().unwrap());
        }
        (summary, summaries)
    }

    pub(crate) async fn manifest(&self) -> RunManifest {
        self.store.load::<RunManifest>().await.unwrap().unwrap().manifest
    }

    /// The hashes of everything that training decides: weights, momenta, moments, data positions.
    pub(crate) async fn bits(&self) -> Vec<String> {
        let training = self.manifest().await.training.unwrap();
        let modules =
            training.modules.iter().flat_map(|module| [Some(&module.weights), module.momentum.as_ref()]);
        let states = training.paths.iter().map(|path| path.state.as_ref());
        modules.chain(states).map(|object| object.unwrap().hash.clone()).collect()
    }
}
