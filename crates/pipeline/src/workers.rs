//! Worker processes on the coordinator's machine.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use dipaco_path::DeviceChoice;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::PipelineError;
use crate::memory_nodes::{Processors, memory_nodes, of_worker};
use crate::run_directory::RunDirectory;

/// Number of early failures after which workers are not started again and the run ends.
const RESTARTS: u32 = 5;
/// A failure within this time counts as early. A later failure has another cause than a wrong start, and resets the count.
const STEADY: Duration = Duration::from_secs(60);
/// Time that workers have to leave.
const LEAVE: Duration = Duration::from_secs(20);
/// Lines of a worker's log in its error.
const SHOWN_LINES: usize = 8;

/// How worker processes are started.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSetup {
    /// The run.
    pub(crate) run: RunDirectory,
    /// The program `dipaco`.
    pub(crate) program: PathBuf,
    /// Number of processes.
    pub(crate) workers: usize,
    /// Threads of each process.
    pub(crate) threads: usize,
    /// Device that they train on.
    pub(crate) device: DeviceChoice,
}

/// Running worker processes. They end with this process, even when it is killed: their standard input is a pipe that it
/// holds, and a worker leaves when the pipe closes.
pub(crate) struct Workers {
    setup: WorkerSetup,
    /// The memory nodes of this machine.
    nodes: Vec<Processors>,
    running: JoinSet<Ended>,
    pipes: Vec<(String, tokio::process::ChildStdin)>,
    restarts: u32,
}

/// A process that ended.
struct Ended {
    number: usize,
    name: String,
    /// Time since its start.
    worked: Duration,
    status: std::io::Result<ExitStatus>,
}

impl Workers {
    /// Starts all processes.
    pub(crate) fn start(setup: WorkerSetup) -> Result<Self, PipelineError> {
        let nodes = memory_nodes();
        let mut workers = Self { running: JoinSet::new(), pipes: Vec::new(), restarts: 0, nodes, setup };
        for number in 0..workers.setup.workers {
            workers.spawn(number)?;
        }
        Ok(workers)
    }

    /// Starts the worker with this number, from 0.
    fn spawn(&mut self, number: usize) -> Result<(), PipelineError> {
        let name = format!("local-{}", number + 1);
        let failed = |source| PipelineError::Worker { name: name.clone(), source };
        let log = self.setup.run.worker_log(&name);
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let log = File::options().create(true).append(true).open(log).map_err(failed)?;
        let threads = self.setup.threads.to_string();
        let device = match self.setup.device {
            DeviceChoice::Auto => DeviceChoice::InTurn(number),
            device => device,
        };
        let mut command = Command::new(&self.setup.program);
        command
            .arg("worker")
            .arg("--join")
            .arg(self.setup.run.join_token())
            .args(["--name", &name, "--threads", &threads, "--leave-with-stdin"])
            .args(["--device", &device.to_string()])
            .arg("--shards")
            .arg(self.setup.run.routing(0).root())
            .arg("--cache")
            .arg(self.setup.run.shard_cache())
            // candle and rayon read these at their first use. Without them each worker would start a thread per core.
            .env("RAYON_NUM_THREADS", &threads)
            .env("CANDLE_NUM_THREADS", &threads)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C in the terminal reaches the whole process group, and only the parent is to act on it.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(processors) = of_worker(&self.nodes, number, self.setup.workers) {
            command.args(["--cpus", &processors.to_string()]);
        }
        let mut child: Child = command.spawn().map_err(failed)?;
        tracing::debug!(worker = name, pid = child.id(), "a worker process starts");
        if let Some(pipe) = child.stdin.take() {
            self.pipes.push((name.clone(), pipe));
        }
        let begun = Instant::now();
        self.running.spawn(async move {
            let status = child.wait().await;
            Ended { number, name, worked: begun.elapsed(), status }
        });
        Ok(())
    }

    /// Restarts workers that fail. Returns only when a worker keeps failing, with its error.
    pub(crate) async fn watch<T>(&mut self) -> Result<T, PipelineError> {
        while let Some(ended) = self.running.join_next().await {
            let Ended { number, name, worked, status } =
                ended.map_err(|source| PipelineError::Task { source })?;
            let status = status.map_err(|source| PipelineError::Worker { name: name.clone(), source })?;
            self.pipes.retain(|(held, _)| *held != name);
            if status.success() {
                continue;
            }
            if worked >= STEADY {
                self.restarts = 0;
            }
            self.restarts += 1;
            let log = self.setup.run.worker_log(&name);
            if self.restarts > RESTARTS {
                return Err(PipelineError::WorkerFailed { name, status, log: log.clone(), tail: tail(&log) });
            }
            tracing::warn!(worker = name, %status, log = %log.display(), "a worker ended and is started again");
            self.spawn(number)?;
        }
        // All workers left because the run is complete, or there are none here. The coordinator ends by itself.
        std::future::pending().await
    }

    /// Asks the workers to leave and waits, then kills the rest.
    pub(crate) async fn stop(mut self) {
        self.pipes.clear();
        let leave = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(LEAVE, leave).await.is_err() {
            tracing::warn!("a worker did not leave and is killed");
            self.running.shutdown().await;
        }
    }
}

/// The last lines of a log, for an error message.
fn tail(log: &Path) -> String {
    let mut lines = VecDeque::new();
    if let Ok(file) = File::open(log) {
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            if lines.len() == SHOWN_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }
    lines.into_iter().collect::<Vec<_>>().join("\n")
}
