//! The coordinator of a measurement, in a process of its own.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use dipaco_bench::ProcessUse;
use dipaco_config::RunConfig;
use dipaco_net::{Clock, JoinToken, Limits, RunAuthority, Server};
use dipaco_path::TrainDevice;
use dipaco_pipeline::PipelineError;
use dipaco_shards::{TokenFileInfo, TokenFileWriter, TokenSet};
use dipaco_store::{RunStore, ShardRecord};
use dipaco_telemetry::{Events, Progress};
use dipaco_topology::Topology;
use dipaco_train::{
    CoordinatorOptions, Revocations, SeedOptions, coordinate, open_run, start_training, train_seed,
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio_util::sync::CancellationToken;

use crate::commands::worker::leave_with_stdin;
use crate::error::CliError;
use crate::{memory, output, process_use};

/// Lifetime of the certificates of a measurement.
const LIFETIME: Duration = Duration::from_secs(86_400);

/// A coordinator process and the token of its workers. It ends with this process.
pub(super) struct TrialCoordinator {
    child: Child,
    /// The process ends at the end of its standard input.
    leash: Option<ChildStdin>,
    pub(super) token: JoinToken,
    /// Its temporary files, which a process that is killed leaves behind. Dropped after the process.
    _folder: TempDir,
}

impl TrialCoordinator {
    /// Starts `dipaco bench` with these arguments, which must call [`lead`], and waits for its token.
    pub(super) async fn start<A: AsRef<std::ffi::OsStr>>(arguments: &[A]) -> Result<Self, CliError> {
        let program = crate::runtime::program()?;
        let folder = tempfile::tempdir().map_err(io("create", "a temporary folder"))?;
        let mut child = Command::new(&program)
            .args(["--quiet", "bench"])
            .args(arguments)
            .env("TMPDIR", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(io("start", "the coordinator's process"))?;
        let leash = child.stdin.take();
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            let read = BufReader::new(output).read_line(&mut said).await;
            read.map_err(io("read from", "the coordinator's process"))?;
        }
        let token = serde_json::from_str(&said)
            .map_err(|error| io("read from", "the coordinator's process")(error.into()))?;
        Ok(Self { child, leash, token, _folder: folder })
    }

    /// Resident memory of the process in bytes.
    pub(super) fn memory(&self) -> Option<u64> {
        self.child.id().and_then(memory::of_process)
    }

    /// What the process has used up to the moment of a call.
    pub(super) fn used(&self) -> impl Fn() -> Option<ProcessUse> + Send + Sync + use<> {
        let id = self.child.id();
        move || id.and_then(process_use::of_process).map(ProcessUse::from)
    }

    /// Ends the process.
    pub(super) async fn end(&mut self) -> Result<(), CliError> {
        drop(self.leash.take());
        self.child.kill().await.map_err(io("end", "the coordinator's process"))
    }
}

fn step(error: impl Into<PipelineError>) -> CliError {
    CliError::Step(error.into())
}

fn io(action: &'static str, path: &'static str) -> impl Fn(std::io::Error) -> CliError {
    move |source| CliError::Io { action, path: path.into(), source }
}

/// The coordinator's side: coordinates a run until the end of standard input.
pub(super) async fn lead(config: RunConfig) -> Result<(), CliError> {
    let folder = tempfile::tempdir().map_err(io("create", "a temporary folder"))?;
    let (tokens, shard) = tokens(folder.path(), &config).map_err(step)?;
    let store = RunStore::create(&folder.path().join("store").to_string_lossy()).map_err(step)?;
    let started = open_run(&store, || "bench".to_owned()).await.map_err(step)?;
    let seed = SeedOptions {
        config: config.clone(),
        store: store.clone(),
        train: tokens,
        validation: None,
        restart: false,
        device: TrainDevice::Cpu,
    };
    let (events, never) = (Arc::new(Events::off()), Arc::new(AtomicBool::new(false)));
    train_seed(seed, started, events, &Progress::hidden(), never).await.map_err(step)?;
    let topology =
        Topology::new(&config.topology, config.model.blocks).map_err(dipaco_train::TrainError::from);
    let paths = topology.map_err(step)?.paths();
    let shards = vec![shard; paths as usize];
    let started = start_training(&store, &config, shards, false).await.map_err(step)?;
    let now = SystemTime::now();
    let authority = RunAuthority::create("bench", now).map_err(step)?;
    let identity = authority.server(now, LIFETIME).map_err(step)?;
    let limits = Limits::for_peers(config.train.max_workers);
    let server = Server::bind(([127, 0, 0, 1], 0).into(), &identity, limits).map_err(step)?;
    let address = server.local_addr().to_string();
    let token = authority.issue("worker", "bench", vec![address], now, LIFETIME).map_err(step)?;
    let token =
        serde_json::to_string(&token).map_err(|error| io("write to", "standard output")(error.into()))?;
    output::print(&format!("{token}\n"))?;
    let cancel = CancellationToken::new();
    leave_with_stdin(cancel.clone());
    let options = CoordinatorOptions {
        config,
        store,
        started,
        shards: folder.path().to_owned(),
        reroute: None,
        revocations: Revocations::of(&folder.path().join("revoked")),
        renew: None,
        clock: Clock::system(),
        events: Events::off(),
        progress: Progress::hidden(),
        observe: None,
    };
    coordinate(options, server, cancel).await.map_err(step)?;
    Ok(())
}

/// A token file that only the manifest refers to.
fn tokens(
    folder: &Path,
    config: &RunConfig,
) -> Result<(Arc<TokenSet>, ShardRecord), dipaco_shards::ShardsError> {
    let file = folder.join("shard.h5");
    let vocab_size = u32::try_from(config.model.vocab_size).unwrap_or(u32::MAX);
    // Half as long again as a sequence, so that no step trains on padding alone.
    let length = u32::try_from(config.train.sequence_tokens).unwrap_or(u32::MAX) / 2 * 3;
    let info = TokenFileInfo {
        tokenizer_hash: "bench".into(),
        end_of_text: 0,
        vocab_size,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(&file, info)?;
    for document in 0..64u32 {
        let mut ids: Vec<u32> =
            (0..length).map(|at| 1 + (at * 3 + document) % (vocab_size.max(2) - 1)).collect();
        ids.push(0);
        writer.push_document(&ids)?;
    }
    writer.finish()?;
    let file = Arc::new(TokenSet::open(&file)?);
    let record = ShardRecord {
        file: "shard.h5".to_owned(),
        hash: file.content_hash().to_owned(),
        documents: file.documents(),
        tokens: file.tokens(),
    };
    Ok((file, record))
}
