//! The worker processes that `dipaco train` starts on its own machine.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use dipaco_path::DeviceChoice;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;

/// How often workers that fail soon are started again before the run gives up.
const RESTARTS: u32 = 5;
/// A worker that has worked for so long has not failed soon: what ends it now is not what would have ended it at its start.
const STEADY: Duration = Duration::from_secs(60);
/// How long workers have to leave once they are asked to.
const LEAVE: Duration = Duration::from_secs(20);
/// Lines of a worker's log that its error shows.
const SHOWN_LINES: usize = 8;

/// How local workers are started.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSetup {
    pub(crate) run: RunDirectory,
    pub(crate) workers: usize,
    /// Threads of each; they share the machine's cores.
    pub(crate) threads: usize,
    /// Where they train.
    pub(crate) device: DeviceChoice,
}

/// Worker processes. They end with this one, however it ends: their standard input is a pipe that it holds, and a
/// worker leaves when the pipe closes.
pub(crate) struct Workers {
    setup: WorkerSetup,
    /// They end with how long they have run.
    running: JoinSet<(String, Duration, Result<ExitStatus, std::io::Error>)>,
    pipes: Vec<(String, tokio::process::ChildStdin)>,
    restarts: u32,
}

impl Workers {
    pub(crate) fn start(setup: WorkerSetup) -> Result<Self, StepError> {
        let mut workers = Self { running: JoinSet::new(), pipes: Vec::new(), restarts: 0, setup };
        for number in 1..=workers.setup.workers {
            workers.spawn(format!("local-{number}"))?;
        }
        Ok(workers)
    }

    fn spawn(&mut self, name: String) -> Result<(), StepError> {
        let failed = |source| StepError::Worker { name: name.clone(), source };
        let log = self.setup.run.worker_log(&name);
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let log = File::options().create(true).append(true).open(log).map_err(failed)?;
        let threads = self.setup.threads.to_string();
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .arg("worker")
            .arg("--join")
            .arg(self.setup.run.join_token())
            .args(["--name", &name, "--threads", &threads, "--leave-with-stdin"])
            .args(["--device", self.setup.device.name()])
            .arg("--shards")
            .arg(self.setup.run.routing(0).root())
            .arg("--cache")
            .arg(self.setup.run.shard_cache())
            // candle and rayon read these once, at their first use; several workers share the machine's cores.
            .env("RAYON_NUM_THREADS", &threads)
            .env("CANDLE_NUM_THREADS", &threads)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C in the terminal reaches the whole process group; the parent decides what it means.
            .process_group(0)
            .kill_on_drop(true);
        let mut child: Child = command.spawn().map_err(failed)?;
        tracing::debug!(worker = name, pid = child.id(), "a worker process starts");
        if let Some(pipe) = child.stdin.take() {
            self.pipes.push((name.clone(), pipe));
        }
        let begun = Instant::now();
        self.running.spawn(async move {
            let status = child.wait().await;
            (name, begun.elapsed(), status)
        });
        Ok(())
    }

    /// Starts workers again that fail while the run goes on. Returns only with an error: that of a worker that keeps
    /// failing.
    pub(crate) async fn watch<T>(&mut self) -> Result<T, StepError> {
        while let Some(ended) = self.running.join_next().await {
            let (name, worked, status) = ended.map_err(|source| StepError::Task { source })?;
            let status = status.map_err(|source| StepError::Worker { name: name.clone(), source })?;
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
                return Err(StepError::WorkerFailed { name, status, log: log.clone(), tail: tail(&log) });
            }
            tracing::warn!(worker = name, %status, log = %log.display(), "a worker ended and is started again");
            self.spawn(name)?;
        }
        // Every worker has heard that the run is complete, or there are none here: the coordinator ends by itself.
        std::future::pending().await
    }

    /// Asks the workers to leave and waits; those that do not are killed.
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
fn tail(log: &std::path::Path) -> String {
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
