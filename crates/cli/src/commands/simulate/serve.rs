//! `dipaco simulate serve`: what batching by module gains when many paths share a machine.

use clap::Args;
use dipaco_simulate::{Batching, Served, ServedTraffic, serve_traffic};
use dipaco_telemetry::{Align, Table, human};
use serde::Serialize;

use super::report::refused;
use crate::error::CliError;
use crate::output;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco simulate serve                                256 paths of 151M parameters in q8_0, 1 GB of modules
  dipaco simulate serve --grid 4 --zipf 0 --memory 0   16 paths of equal popularity, all in memory
  dipaco simulate serve --sequences 128 --json";

/// Options of `dipaco simulate serve`.
#[derive(Debug, Args)]
pub(crate) struct ServingOptions {
    /// Number of levels.
    #[arg(long, value_name = "L", default_value_t = 2)]
    levels: u32,
    /// Number of modules of each level. There are K to the power of L paths.
    #[arg(long, value_name = "K", default_value_t = 16)]
    grid: u32,
    /// Number of parameters of a path.
    #[arg(long, value_name = "N", default_value_t = 151e6)]
    parameters: f64,
    /// Bits of a weight in memory: 32 for f32, 8.5 for q8_0.
    #[arg(long, value_name = "BITS", default_value_t = 8.5)]
    bits: f64,
    /// Memory of modules in bytes, as serve.memory; 0 sets no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 1e9)]
    memory: f64,
    /// Popularity of paths: the path of rank r gets a share proportional to r^-S. 0 makes all equal.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    zipf: f64,
    /// Number of sequences at a time. Each client sends a request when its last one is answered.
    #[arg(long, value_name = "N", default_value_t = 32)]
    sequences: usize,
    /// Number of requests in all.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    requests: usize,
    /// Tokens of a prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    prompt: usize,
    /// Generated tokens of a request.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    generated: usize,
    /// Tokens of a step, as serve.step_tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    step_tokens: usize,
    /// Bytes of weights that the processor reads from memory in a second.
    #[arg(long, value_name = "BYTES", default_value_t = 16e9)]
    bandwidth: f64,
    /// Floating-point operations of the processor in a second.
    #[arg(long, value_name = "N", default_value_t = 4e11)]
    flops: f64,
    /// Bytes of modules that are read from the store and packed in a second.
    #[arg(long, value_name = "BYTES", default_value_t = 1e9)]
    store: f64,
    /// Seed of the traffic.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// A line of the table.
#[derive(Serialize)]
struct ServeRow {
    batching: Batching,
    /// Tokens per second, divided by those of batching by path.
    gain: f64,
    #[serde(flatten)]
    served: Served,
}

fn name(batching: Batching) -> &'static str {
    match batching {
        Batching::Module => "by module",
        Batching::Path => "by path",
        Batching::Copies => "by path, a copy for each path",
    }
}

impl ServingOptions {
    fn traffic(&self) -> ServedTraffic {
        ServedTraffic {
            levels: self.levels,
            grid: self.grid,
            parameters: self.parameters,
            bits: self.bits,
            memory: (self.memory != 0.0).then_some(self.memory),
            zipf: self.zipf,
            sequences: self.sequences,
            requests: self.requests,
            prompt: self.prompt,
            generated: self.generated,
            step_tokens: self.step_tokens,
            bandwidth: self.bandwidth,
            flops: self.flops,
            store: self.store,
            seed: self.seed,
        }
    }
}

pub(crate) fn run(options: &ServingOptions) -> Result<(), CliError> {
    let traffic = options.traffic();
    let serve = |batching| serve_traffic(&traffic, batching).map_err(|error| refused("serve", &error));
    let path = serve(Batching::Path)?;
    let row = |batching, served: Served| ServeRow {
        batching,
        gain: served.tokens_per_second / path.tokens_per_second,
        served,
    };
    let rows = [
        row(Batching::Module, serve(Batching::Module)?),
        row(Batching::Path, path),
        row(Batching::Copies, serve(Batching::Copies)?),
    ];
    if options.json {
        return output::print_json(&rows);
    }
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        ("batching", Align::Left),
        right("tokens/s"),
        right("gain"),
        right("read per token"),
        right("sequences in a step"),
        right("loads"),
        right("memory"),
    ]);
    for ServeRow { batching, gain, served } in &rows {
        table.row([
            name(*batching).to_owned(),
            format!("{:.1}", served.tokens_per_second),
            format!("{gain:.2}"),
            human::bytes(served.bytes_per_token as u64),
            format!("{:.1}", served.sequences_in_step),
            human::integer(served.loads),
            human::bytes(served.most_memory as u64),
        ]);
    }
    output::print(&format!(
        "Virtual time of a simple machine, no measurement. It reads weights or computes, whichever takes longer.\n\n{table}"
    ))
}
