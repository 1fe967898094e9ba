//! `dipaco bench serve`: a load test of a server of completions.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dipaco_bench::{
    Arrivals, BenchError, LatencyBounds, Percentiles, Prompts, ServeLoadOptions, ServeLoadReport, Workload,
    serve_load,
};
use dipaco_telemetry::{Align, Progress, ProgressUnit, Table};
use serde::Serialize;

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::number::positive;
use crate::{output, process_use, runtime};

pub(super) const EXAMPLES: &str = "\
Examples:
  dipaco bench serve --clients 32 --requests 200 --paths 16      closed loop, mixed paths of a dipaco server
  dipaco bench serve --rate 4 --requests 400 --first-token 0.5   open loop, and the goodput within a bound
  dipaco bench serve --url http://127.0.0.1:8080 --prompts prompts.txt --json   llama.cpp's server, own prompts

The server may be any that has OpenAI's POST /v1/completions with streams. Requests ask for greedy text and set
ignore_eos, so all have the same length where the server knows that field. If it refuses some of them as
invalid, the command fails after its report.";

/// Options of `dipaco bench serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeLoadArguments {
    /// Address of the server.
    #[arg(long, default_value = "http://127.0.0.1:8000", value_name = "URL")]
    url: String,
    /// File with the server's API key in its first line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Model that the requests name. Some servers need one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Closed loop: number of clients, each of which waits for its answers.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=900))]
    clients: u32,
    /// Open loop: mean number of requests per second, at random times. Latencies count from these times.
    #[arg(long, value_name = "RATE", conflicts_with = "clients", value_parser = positive)]
    rate: Option<f64>,
    /// Number of measured requests.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Number of requests before them that are not measured.
    #[arg(long, default_value_t = 2, value_name = "N")]
    warm_up: u32,
    /// Text file with one prompt a line; without it prompts are random token ids.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Number of random token ids of a prompt: a number, or a range as in 16..256.
    #[arg(long, default_value = "32", value_name = "N", value_parser = tokens, conflicts_with = "prompts")]
    prompt_tokens: RangeInclusive<usize>,
    /// Random token ids are below this number; it must not be above the model's vocabulary.
    #[arg(long, default_value_t = 256, value_name = "V", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "prompts")]
    vocabulary: u32,
    /// Number of tokens that a request generates.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Sampling temperature.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temperature: f64,
    /// Mix paths: each request names one of the paths 0 to P - 1 at random in its field `path`.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    paths: Option<u32>,
    /// Seed of prompts, paths and arrival times.
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    seed: u64,
    /// Goodput counts requests whose first token comes within this time, in seconds.
    #[arg(long, value_name = "S", value_parser = positive)]
    first_token: Option<f64>,
    /// Goodput counts requests whose later tokens take at most this time on average, in seconds.
    #[arg(long, value_name = "S", value_parser = positive)]
    per_token: Option<f64>,
    /// Time after which a request counts as failed, in seconds.
    #[arg(long, default_value_t = 600.0, value_name = "S", value_parser = positive)]
    timeout: f64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// The measurement, as JSON.
#[derive(Debug, Serialize)]
struct LoadMeasurement {
    what: String,
    /// Cores of the machine that the load generator shares.
    cores: usize,
    /// Processor time of the load generator in seconds, in steps of the system's clock, usually 0.01; `null` where the
    /// system does not report it.
    own_processor_seconds: Option<f64>,
    #[serde(flatten)]
    load: ServeLoadReport,
}

pub(super) fn run(arguments: &ServeLoadArguments, progress: &Progress) -> Result<(), CliError> {
    let options = options(arguments)?;
    let interrupt = Interrupt::listen()?;
    let task = progress.task("requests", Some(arguments.requests.into()), ProgressUnit::Count("requests"));
    let before = process_use::time();
    let load = runtime::run(async {
        serve_load(options, interrupt.token(), |done| task.set(done)).await.map_err(|error| match error {
            BenchError::Cancelled => CliError::Interrupted,
            error => error.into(),
        })
    })?;
    let used = before.zip(process_use::time()).map(|(before, after)| after.saturating_sub(before));
    task.finish();
    let found = LoadMeasurement {
        what: format!("dipaco {}", env!("CARGO_PKG_VERSION")),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        own_processor_seconds: used.map(|used| used.as_secs_f64()),
        load,
    };
    if arguments.json {
        output::print_json(&found)?;
    } else {
        output::print(&describe(&found))?;
    }
    Ok(found.load.check()?)
}

fn options(arguments: &ServeLoadArguments) -> Result<ServeLoadOptions, CliError> {
    let seconds = |value: f64| Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX);
    let api_key = arguments.api_key_file.as_deref().map(|file| {
        let text = read(file)?;
        Ok::<_, CliError>(text.lines().next().unwrap_or("").trim().to_owned())
    });
    let prompts = match &arguments.prompts {
        Some(file) => Prompts::Texts(texts(file)?),
        None => Prompts::Ids { tokens: arguments.prompt_tokens.clone(), vocabulary: arguments.vocabulary },
    };
    Ok(ServeLoadOptions {
        url: arguments.url.clone(),
        api_key: api_key.transpose()?,
        arrivals: match arguments.rate {
            Some(rate) => Arrivals::Open { rate },
            None => Arrivals::Closed { clients: arguments.clients as usize },
        },
        requests: arguments.requests as usize,
        warm_up: arguments.warm_up as usize,
        workload: Workload {
            model: arguments.model.clone(),
            prompts,
            max_tokens: arguments.max_tokens,
            temperature: arguments.temperature,
            paths: arguments.paths,
            seed: arguments.seed,
        },
        timeout: seconds(arguments.timeout),
        bounds: LatencyBounds {
            first_token: arguments.first_token.map(seconds),
            per_token: arguments.per_token.map(seconds),
        },
    })
}

fn read(file: &Path) -> Result<String, CliError> {
    fs::read_to_string(file).map_err(|source| CliError::Io { action: "read", path: file.to_owned(), source })
}

/// The lines of a file that are not empty.
fn texts(file: &Path) -> Result<Vec<String>, CliError> {
    let texts: Vec<String> =
        read(file)?.lines().filter(|line| !line.trim().is_empty()).map(ToOwned::to_owned).collect();
    if texts.is_empty() {
        return Err(CliError::Usage {
            message: format!("{} holds no prompt", file.display()),
            remedy: "write one prompt a line".into(),
        });
    }
    Ok(texts)
}

/// A number of tokens, or a range of numbers with both ends.
fn tokens(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.trim_start_matches('=').parse::<usize>().ok().filter(|number| *number > 0);
    match (number(low), number(high)) {
        (Some(low), Some(high)) if low <= high => Ok(low..=high),
        _ => Err("it must be a number above 0, or a range as in 16..256".into()),
    }
}

fn describe(found: &LoadMeasurement) -> String {
    let load = &found.load;
    let arrivals = match (load.clients, load.rate) {
        (Some(clients), _) => format!("closed loop of {clients} clients"),
        (None, Some(rate)) => format!("open loop of {rate} requests a second"),
        (None, None) => String::new(),
    };
    let right = Align::Right;
    let mut table = Table::new(&[
        ("milliseconds", Align::Left),
        ("p50", right),
        ("p90", right),
        ("p99", right),
        ("most", right),
    ]);
    for (name, Percentiles { p50, p90, p99, most }) in [
        ("first token", load.first_token_ms),
        ("between tokens", load.inter_token_ms),
        ("token after the first, mean of a request", load.per_token_ms),
        ("whole request", load.request_ms),
        ("refusal", load.refusal_ms),
    ] {
        if p50.is_finite() {
            let cells = [p50, p90, p99, most].map(|value| format!("{value:.1}"));
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    let mut text = format!(
        "{}: {arrivals}, {} tokens each\n{} completed, {} refused, {} failed in {:.1} s: {:.2} requests/s, {:.1} tokens/s\n\n{table}",
        load.url,
        load.max_tokens,
        load.completed,
        load.refused,
        load.failures.values().sum::<usize>(),
        load.seconds,
        load.requests_per_s,
        load.tokens_per_s,
    );
    for (why, count) in &load.failures {
        text += &format!("\n{count} failed: {why}");
    }
    let bounds = [("first token", load.goodput.first_token_ms), ("per token", load.goodput.per_token_ms)];
    let bounds: Vec<String> = bounds
        .into_iter()
        .filter_map(|(name, bound)| Some(format!("{name} within {:.0} ms", bound?)))
        .collect();
    if !bounds.is_empty() {
        text += &format!(
            "\ngoodput ({}): {:.2} requests/s, {:.1} % of all requests",
            bounds.join(", "),
            load.goodput.requests_per_s,
            100.0 * load.goodput.share
        );
    }
    if let Some(used) = found.own_processor_seconds {
        let share = 100.0 * used / (load.seconds * found.cores as f64);
        text += &format!(
            "\nthe load generator used {used:.2} s of processor time, {share:.1} % of {} cores",
            found.cores
        );
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tokens_are_read() {
        assert_eq!(tokens("32"), Ok(32..=32));
        assert_eq!(tokens("16..256"), Ok(16..=256));
        assert_eq!(tokens("16..=256"), Ok(16..=256));
        for wrong in ["0", "", "a", "9..3", "..4"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }
}
