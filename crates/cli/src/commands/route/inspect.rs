//! `dipaco route inspect`: shows the shards, what their division says about the text, and examples.

use clap::Args;
use dipaco_routing::{ShardSet, ShardStatistics};
use dipaco_shards::Tokenizer;
use serde::Serialize;

use super::check_phase;
use crate::error::CliError;
use crate::plain_text::one_line;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::{PipelineError, phases, prepared};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco route inspect --run runs/tiny --examples 2
  dipaco route inspect --run runs/tiny --json";

#[derive(Debug, Args)]
pub(crate) struct InspectOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Phase of routing whose shards are shown; the default is the current phase.
    #[arg(long, value_name = "N")]
    phase: Option<u32>,
    /// Number of example documents of each shard.
    #[arg(long, default_value_t = 1, value_name = "N")]
    examples: usize,
    /// Number of tokens of each example.
    #[arg(long, default_value_t = 48, value_name = "N")]
    example_tokens: usize,
    /// Show the validation shards instead.
    #[arg(long)]
    validation: bool,
    /// Print the statistics as JSON.
    #[arg(long)]
    json: bool,
}

/// What the command prints.
#[derive(Serialize)]
struct Inspection {
    #[serde(flatten)]
    statistics: ShardStatistics,
    /// Bits per token by which a shard's own token frequencies predict its text better than those of all text. None for a
    /// single shard, and if no document is longer than the prefix.
    token_gain: Option<f64>,
    /// What may be wrong with the division.
    warnings: Vec<String>,
}

pub(crate) fn run(options: &InspectOptions) -> Result<(), CliError> {
    let (run, config) = options.run.open_existing()?;
    let phase = match options.phase {
        Some(phase) => {
            check_phase(phase, &config)?;
            phase
        }
        None => runtime::run(async { Ok(phases::current(&run).await?) })?,
    };
    let routing = run.routing(phase);
    let folder = if options.validation { routing.validation() } else { routing.train() };
    if !folder.exists() {
        return Err(PipelineError::NotRouted { folder }.into());
    }
    let shards = ShardSet::open(&folder)?;
    let statistics = dipaco_routing::inspect(&shards, options.examples, options.example_tokens)?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let token_gain = dipaco_routing::token_gain(&shards, config.routing.prefix_tokens)?;
    let mut warnings = Vec::from_iter(dipaco_pipeline::route::gain_warning(&routing, token_gain)?);
    if !options.validation {
        warnings.extend(phases::small(&run, &config, phase)?);
    }
    let inspection = Inspection { statistics, token_gain, warnings };
    if options.json {
        return output::print_json(&inspection);
    }
    output::print(&describe(&inspection, &prepared::tokenizer(&run)?)?)
}

/// The text for people, with the words of the examples.
fn describe(inspection: &Inspection, tokenizer: &Tokenizer) -> Result<String, CliError> {
    let mut text = format!("{}\n", inspection.statistics.to_string().trim_end());
    if let Some(gain) = inspection.token_gain {
        text += &format!(
            "a shard's own token frequencies predict its text {gain:.2} bits per token better than those of all text\n"
        );
    }
    for row in &inspection.statistics.rows {
        for example in &row.examples {
            let words = one_line(&tokenizer.decode(&example.tokens)?);
            text += &format!("\npath {} · document {}\n  {words}\n", row.path, example.document);
        }
    }
    for warning in &inspection.warnings {
        text += &format!("\nwarning: {warning}\n");
    }
    Ok(text)
}
