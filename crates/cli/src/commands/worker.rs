//! `dipaco worker`: trains paths for a coordinator, here or elsewhere.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dipaco_net::{JoinToken, NetError};
use dipaco_train::client::TokenSource;
use dipaco_train::{WEIGHTS_IN_MEMORY, WorkerOptions, WorkerSummary, work};
use tokio_util::sync::CancellationToken;

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::token_place::token_place;
use crate::{memory, output, runtime};
use dipaco_pipeline::memory_nodes::Processors;
use dipaco_pipeline::{PipelineError, limits};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco worker --join join.token                      work for the run of this token until it is complete
  dipaco worker --join join.token --name gpu-3 --threads 8 --cache /var/cache/dipaco
  dipaco worker --join join.token --cpus 0-15 --name node-0    one of two workers of a machine with two memory nodes
  dipaco worker --join join.token --bandwidth 50       leave the rest of the line to others
  dipaco worker --join https://lead.example/join.token the token from a server, also after the coordinator has moved
  DIPACO_TOKEN=… dipaco worker                         the token from the environment";

/// Options of `dipaco worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// File of the join token, its https:// address, or - to read the token from standard input. The coordinator writes the
    /// file secrets/join.token. Without this option the environment variable DIPACO_TOKEN holds the token. A file or an
    /// address is read again when the coordinator can't be reached, because the coordinator may have moved.
    #[arg(long, env = "DIPACO_JOIN", value_name = "FILE|URL", hide_env_values = true)]
    join: Option<PathBuf>,
    /// Name of the worker, unique in the run; the default is the machine's name and the process number.
    #[arg(long, env = "DIPACO_NAME")]
    name: Option<String>,
    /// Number of threads to compute with; 0 means one per core.
    #[arg(long, env = "DIPACO_THREADS", default_value_t = 0, value_name = "N")]
    threads: usize,
    /// Processors to compute on, as in 0-15,32: those of one memory node (NUMA), so that no thread waits for the memory of
    /// another. One thread is started for each, unless --threads says otherwise.
    #[arg(long, env = "DIPACO_CPUS", value_name = "LIST")]
    cpus: Option<Processors>,
    /// The run's routing folder or a copy of it. Shards that it lacks are fetched.
    #[arg(long, env = "DIPACO_SHARDS", value_name = "DIR")]
    shards: Option<PathBuf>,
    /// Folder of fetched shards.
    #[arg(long, env = "DIPACO_CACHE", default_value = "dipaco-cache", value_name = "DIR")]
    cache: PathBuf,
    /// Seconds to retry when the coordinator can't be reached. After them the worker ends with exit code 75.
    #[arg(long, env = "DIPACO_PATIENCE", default_value_t = 600, value_name = "SECONDS")]
    patience: u64,
    /// Upper bound on the bandwidth of transfers in each direction, in Mbit/s; 0 means no limit.
    #[arg(long, env = "DIPACO_BANDWIDTH", default_value_t = 0, value_name = "MBIT/S")]
    bandwidth: u32,
    #[command(flatten)]
    device: DeviceOptions,
    /// Leave when standard input closes. `dipaco train` ends its workers this way, even when it is killed.
    #[arg(long, hide = true)]
    leave_with_stdin: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &WorkerArguments) -> Result<(), CliError> {
    if let Some(processors) = &options.cpus {
        // Before any other thread starts: a thread keeps to the processors of the one that starts it.
        processors.use_only().map_err(PipelineError::from)?;
    }
    memory::keep_freed();
    let interrupt = Interrupt::listen()?;
    limits::threads(options.threads)?;
    let (token, source) = join_token(options)?;
    let setup = WorkerOptions {
        token,
        source,
        name: options.name.clone().unwrap_or_else(default_name),
        shards: options.shards.clone(),
        cache: options.cache.clone(),
        patience: Duration::from_secs(options.patience),
        bandwidth: options.bandwidth,
        weights_in_memory: WEIGHTS_IN_MEMORY,
        device: options.device.open()?,
        observer: None,
    };
    let cancel = interrupt.token();
    if options.leave_with_stdin {
        leave_with_stdin(cancel.clone());
    }
    let WorkerSummary { leases, lost } = runtime::run(async { Ok(work(setup, cancel).await?) })?;
    if options.json {
        output::print_json(&serde_json::json!({ "leases": leases, "lost": lost }))?;
    } else {
        output::print(&format!("completed {leases} leases, lost {lost}\n"))?;
    }
    if interrupt.is_set() { Err(CliError::Interrupted) } else { Ok(()) }
}

/// Reads the worker's token, and tells where it is read again when the coordinator can't be reached. A token is a private
/// key, so it may not stand on the command line, where every user of the machine can read it.
fn join_token(options: &WorkerArguments) -> Result<(JoinToken, TokenSource), CliError> {
    let usage =
        |message: &str, remedy: &str| CliError::Usage { message: message.into(), remedy: remedy.into() };
    let Some(file) = &options.join else {
        let token = std::env::var("DIPACO_TOKEN").map_err(|_| {
            usage("no join token is given", "give its file with --join, or the token in DIPACO_TOKEN")
        })?;
        return Ok((token.parse()?, TokenSource::Given));
    };
    if file.as_os_str() == "-" {
        if options.leave_with_stdin {
            return Err(usage("--join - and --leave-with-stdin both read standard input", "give a file"));
        }
        let mut text = String::new();
        let failed = |source| NetError::TokenFile {
            name: "join token",
            path: file.clone(),
            file: "secrets/join.token",
            source,
        };
        std::io::stdin().take(64 << 10).read_to_string(&mut text).map_err(failed)?;
        return Ok((text.parse()?, TokenSource::Given));
    }
    if file.to_string_lossy().starts_with("dipaco1.") && !file.exists() {
        let message =
            "--join takes a file, not the token itself: other users of this machine can read a command line";
        return Err(usage(message, "write the token to a file, or give it in DIPACO_TOKEN or with --join -"));
    }
    let place = token_place(file)?;
    Ok((place.join_token()?, TokenSource::Join(place)))
}

/// Triggers `cancel` at the end of standard input: the parent, which holds the other end of the pipe, has ended.
pub(crate) fn leave_with_stdin(cancel: CancellationToken) {
    std::thread::spawn(move || {
        let mut ignored = [0; 64];
        while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
        cancel.cancel();
    });
}

/// The machine's name and the process number.
pub(crate) fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "worker".into());
    format!("{}-{}", host.trim(), std::process::id())
}
