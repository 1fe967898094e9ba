//! `dipaco bench transfer`: measures transfers of modules between two processes of this machine.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use dipaco_bench::{TrialWorker, serve_trial};
use dipaco_net::{Client, JoinToken, Limits, RunAuthority, Server};
use dipaco_store::{ObjectRef, RunStore, StoreOptions};
use dipaco_telemetry::{Align, Progress, ProgressUnit, Table};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::outer_step::{self, OuterStepSpeed};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::{output, runtime};
use dipaco_pipeline::PipelineError;
use dipaco_pipeline::machine_memory::machine_memory;
use dipaco_pipeline::median::Median;

/// Lifetime of the certificates of a measurement.
const LIFETIME: Duration = Duration::from_secs(86_400);

/// Options of `dipaco bench transfer`.
#[derive(Debug, Args)]
pub(crate) struct TransferOptions {
    /// Number of modules that move in each round.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    modules: u16,
    /// Size of a module in MB.
    #[arg(long, default_value_t = 40, value_name = "MB", value_parser = clap::value_parser!(u16).range(1..=4096))]
    megabytes: u16,
    /// Number of measured rounds. One more before them is not measured.
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Folder for the modules during the measurement; the default is the folder for temporary files.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Act as the worker. The job comes on standard input.
    #[arg(long, hide = true)]
    as_worker: bool,
}

/// The job of the worker process.
#[derive(Debug, Serialize, Deserialize)]
struct TransferJob {
    plain: JoinToken,
    transfer: JoinToken,
    objects: Vec<ObjectRef>,
    rounds: u16,
}

/// Costs of the transfers of a round: a line of the worker process's output.
#[derive(Debug, Serialize, Deserialize)]
struct Round {
    fetch_plain: TransferCost,
    fetch: TransferCost,
    upload_plain: TransferCost,
    upload: TransferCost,
}

/// Costs of each round.
#[derive(Debug, Default, Serialize)]
struct Rounds {
    fetch_plain: Vec<TransferCost>,
    fetch: Vec<TransferCost>,
    #[serde(rename = "bring_plain")]
    upload_plain: Vec<TransferCost>,
    #[serde(rename = "bring")]
    upload: Vec<TransferCost>,
}

/// Costs of a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct TransferCost {
    seconds: f64,
    /// Processor seconds of both processes, which other programs of the machine hardly change; absent where the system does
    /// not report them.
    cpu: Option<f64>,
}

/// The measurement, as JSON.
#[derive(Debug, Serialize)]
struct TransferReport {
    what: String,
    modules: u16,
    megabytes: u16,
    cores: usize,
    fetch: Direction,
    #[serde(rename = "bring")]
    upload: Direction,
    outer_step: OuterStepSpeed,
    rounds: Rounds,
}

/// One direction: medians of the rounds.
#[derive(Debug, Serialize)]
struct Direction {
    plain_mb_s: f64,
    mb_s: f64,
    /// Time over the time of plain streams: the median over the rounds.
    ratio: f64,
    /// Processor time over the processor time of plain streams: the median over the rounds.
    cpu_ratio: Option<f64>,
}

impl Rounds {
    fn push(&mut self, round: &Round) {
        self.fetch_plain.push(round.fetch_plain);
        self.fetch.push(round.fetch);
        self.upload_plain.push(round.upload_plain);
        self.upload.push(round.upload);
    }
}

pub(super) fn run(options: &TransferOptions, progress: &Progress) -> Result<(), CliError> {
    if options.as_worker {
        return runtime::run(work());
    }
    let length = usize::from(options.megabytes) * 1_000_000;
    outer_step::check_memory(length, machine_memory().map(|memory| memory.available))?;
    let interrupt = Interrupt::listen()?;
    let outer_step = outer_step::measure(length, usize::from(options.rounds) * 2, || interrupt.is_set())
        .ok_or(CliError::Interrupted)?;
    // Ctrl-C ends the worker's process, too, and that makes an error of its own.
    let rounds = interrupt.judge(runtime::run(coordinate(options, length, &interrupt, progress)))?;
    let bytes = f64::from(options.modules) * f64::from(options.megabytes);
    let seconds = |rounds: &[TransferCost]| rounds.iter().map(|took| took.seconds).collect::<Vec<_>>();
    let direction = |plain: &[TransferCost], own: &[TransferCost]| {
        let pairs = || own.iter().zip(plain);
        let cpu: Option<Vec<f64>> = pairs().map(|(own, plain)| Some(own.cpu? / plain.cpu?)).collect();
        Direction {
            plain_mb_s: bytes / seconds(plain).median(),
            mb_s: bytes / seconds(own).median(),
            ratio: pairs().map(|(own, plain)| own.seconds / plain.seconds).collect::<Vec<_>>().median(),
            cpu_ratio: cpu.map(Median::median),
        }
    };
    let report = TransferReport {
        what: format!("dipaco {}", env!("CARGO_PKG_VERSION")),
        modules: options.modules,
        megabytes: options.megabytes,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        fetch: direction(&rounds.fetch_plain, &rounds.fetch),
        upload: direction(&rounds.upload_plain, &rounds.upload),
        outer_step,
        rounds,
    };
    if options.json { output::print_json(&report) } else { output::print(&describe(&report)) }
}

fn describe(report: &TransferReport) -> String {
    let mut table = Table::new(&[
        ("direction", Align::Left),
        ("plain streams MB/s", Align::Right),
        ("transfers MB/s", Align::Right),
        ("time over plain", Align::Right),
        ("CPU time over plain", Align::Right),
    ]);
    for (name, found) in [("worker fetches", &report.fetch), ("worker uploads", &report.upload)] {
        table.row([
            name.to_owned(),
            format!("{:.0}", found.plain_mb_s),
            format!("{:.0}", found.mb_s),
            format!("{:.2}", found.ratio),
            found.cpu_ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")),
        ]);
    }
    let OuterStepSpeed { step_gb_s, copy_gb_s, share, .. } = &report.outer_step;
    format!(
        "{} modules of {} MB between two processes over loopback, {} cores\n\n{table}\n\
         outer step {step_gb_s:.1} GB/s, copy {copy_gb_s:.1} GB/s: {:.0} %\n",
        report.modules,
        report.megabytes,
        report.cores,
        100.0 * share,
    )
}

fn step(error: impl Into<PipelineError>) -> CliError {
    CliError::Step(error.into())
}

fn io(action: &'static str, path: &'static str) -> impl Fn(std::io::Error) -> CliError {
    move |source| CliError::Io { action, path: path.into(), source }
}

/// The coordinator's side: serves both kinds of transfer until the worker process has measured them.
async fn coordinate(
    options: &TransferOptions,
    length: usize,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Result<Rounds, CliError> {
    let folder = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.map_err(io("create", "a temporary folder"))?;
    let settings = StoreOptions { durable: false, ..StoreOptions::default() };
    let store =
        RunStore::create_with(&folder.path().join("store").to_string_lossy(), &settings).map_err(step)?;
    let mut objects = Vec::new();
    let mut first = bytes::Bytes::new();
    for number in 0..options.modules {
        if interrupt.is_set() {
            return Err(CliError::Interrupted);
        }
        let content = content(number, length);
        let object = store.put(&format!("modules/{number}/0/0/1"), content.clone()).await.map_err(step)?;
        objects.push(object);
        first = content;
    }
    let now = SystemTime::now();
    let authority = RunAuthority::create("trial", now).map_err(step)?;
    let identity = authority.server(now, LIFETIME).map_err(step)?;
    let bind = || Server::bind(([127, 0, 0, 1], 0).into(), &identity, Limits::default());
    let (plain, transfer) = (bind().map_err(step)?, bind().map_err(step)?);
    let token = |server: &Server| {
        authority.issue("worker", "trial", vec![server.local_addr().to_string()], now, LIFETIME)
    };
    let job = TransferJob {
        plain: token(&plain).map_err(step)?,
        transfer: token(&transfer).map_err(step)?,
        objects,
        rounds: options.rounds,
    };
    let cancel = interrupt.token();
    tokio::select! {
        rounds = worker(&job, progress) => rounds,
        () = cancel.cancelled() => Err(CliError::Interrupted),
        served = serve_trial(&transfer, &store, folder.path()) => Err(ended(served.map_err(CliError::from)).await),
        () = serve_plain(&plain, first) => Err(ended(Ok(())).await),
    }
}

/// Dropping the servers ends them.
async fn ended(served: Result<(), CliError>) -> CliError {
    match served {
        Ok(()) => std::future::pending().await,
        Err(error) => error,
    }
}

async fn serve_plain(server: &Server, content: bytes::Bytes) {
    let mut peers = JoinSet::new();
    while let Some(peer) = server.accept().await {
        let content = content.clone();
        peers.spawn(async move { peer.serve_plain(&content).await });
    }
}

/// Starts the worker process and reads its measurements.
async fn worker(job: &TransferJob, progress: &Progress) -> Result<Rounds, CliError> {
    let json = |error: serde_json::Error| io("read from", "the worker's process")(error.into());
    let program = std::env::current_exe().map_err(io("find", "this program"))?;
    let mut child = Command::new(&program)
        .args(["--quiet", "bench", "transfer", "--as-worker"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(io("start", "the worker's process"))?;
    if let Some(mut input) = child.stdin.take() {
        let job = serde_json::to_vec(job).map_err(json)?;
        input.write_all(&job).await.map_err(io("write to", "the worker's process"))?;
    }
    let task = progress.task("bench", Some(u64::from(job.rounds) + 1), ProgressUnit::Count("rounds"));
    let mut rounds = Rounds::default();
    if let Some(output) = child.stdout.take() {
        let mut lines = BufReader::new(output).lines();
        let mut next = async || lines.next_line().await.map_err(io("read from", "the worker's process"));
        for number in 0..=job.rounds {
            let round = next().await?.unwrap_or_default();
            let round = serde_json::from_str(&round).map_err(json)?;
            // The first round probes the network path and allocates memory.
            if number > 0 {
                rounds.push(&round);
            }
            task.add(1);
        }
    }
    child.wait().await.map_err(io("end", "the worker's process"))?;
    task.finish();
    Ok(rounds)
}

/// The worker's side.
async fn work() -> Result<(), CliError> {
    let job: TransferJob = serde_json::from_reader(std::io::stdin().lock())
        .map_err(|error| io("read from", "standard input")(error.into()))?;
    let plain = Client::connect(&job.plain, SystemTime::now(), Limits::default()).await.map_err(step)?;
    let plain = std::sync::Arc::new(plain);
    let mut transfer = TrialWorker::open(job.transfer).await?;
    let times = u16::try_from(job.objects.len()).unwrap_or(u16::MAX);
    let length = job.objects.first().map_or(0, |object| object.bytes);
    let content = content(0, usize::try_from(length).unwrap_or(0));
    for _ in 0..=job.rounds {
        let fetch_plain = timed(all_plain(times, || {
            let (plain, mut into) = (plain.clone(), bytes::BytesMut::with_capacity(content.len()));
            async move { plain.fetch_plain(&mut into).await }
        }));
        let fetch_plain = fetch_plain.await?;
        let fetch = timed(async { transfer.fetch(&job.objects).await.map_err(CliError::from) }).await?;
        let upload_plain = timed(all_plain(times, || {
            let (plain, content) = (plain.clone(), content.clone());
            async move { plain.upload_plain(content).await }
        }));
        let upload_plain = upload_plain.await?;
        let upload = timed(async { transfer.upload(&content, times).await.map_err(CliError::from) }).await?;
        let round = Round { fetch_plain, fetch, upload_plain, upload };
        let line =
            serde_json::to_string(&round).map_err(|error| io("write to", "standard output")(error.into()))?;
        output::print(&format!("{line}\n"))?;
    }
    plain.close("measured").await;
    transfer.close().await;
    Ok(())
}

/// The costs of an operation.
async fn timed(work: impl Future<Output = Result<(), CliError>>) -> Result<TransferCost, CliError> {
    let before = cpu_seconds();
    let begun = Instant::now();
    work.await?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = cpu_seconds().zip(before).map(|(after, before)| after - before);
    Ok(TransferCost { seconds, cpu })
}

/// Processor seconds of this process and its parent since their start.
fn cpu_seconds() -> Option<f64> {
    let parent = rustix::process::getppid()?;
    let own = format!("/proc/{}/stat", std::process::id());
    let parent = format!("/proc/{}/stat", parent.as_raw_nonzero());
    let ticks = |file: String| {
        let text = std::fs::read_to_string(file).ok()?;
        // The name of the program, in parentheses, may hold anything; utime and stime are the 14th and 15th field.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
        let user: u64 = fields.next()?.parse().ok()?;
        Some(user + fields.next()?.parse::<u64>().ok()?)
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Some((ticks(own)? + ticks(parent)?) as f64 / per_second as f64)
}

/// Several plain streams at the same time.
async fn all_plain<F>(times: u16, stream: impl Fn() -> F) -> Result<(), CliError>
where
    F: Future<Output = Result<(), dipaco_net::NetError>> + Send + 'static,
{
    let mut streams = JoinSet::new();
    for _ in 0..times {
        streams.spawn(stream());
    }
    while let Some(done) = streams.join_next().await {
        done.map_err(|source| PipelineError::Task { source })?.map_err(step)?;
    }
    Ok(())
}

/// Bytes of a module, different for each module.
fn content(number: u16, length: usize) -> bytes::Bytes {
    let mut content = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.finalize_xof().fill(&mut content);
    content.into()
}
