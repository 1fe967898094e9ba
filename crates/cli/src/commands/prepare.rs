//! `dipaco prepare`: text to a tokenizer and token files.

use std::path::PathBuf;

use clap::Args;
use dipaco_shards::PrepareReport;
use dipaco_telemetry::{Progress, human};

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::{output, steps};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco prepare --run runs/tiny text/ more.jsonl.zst  files and folders: C4's json.gz, JSON lines, plain text
  dipaco prepare --run runs/c4 c4/train --validation c4/validation --set prepare.vocab_size=32000";

/// Options of `dipaco prepare`.
#[derive(Debug, Args)]
pub(crate) struct PrepareOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Files and folders of text: C4's *.json.gz, *.jsonl, *.jsonl.gz, *.jsonl.zst, plain text.
    #[arg(required = true, value_name = "PATH")]
    inputs: Vec<PathBuf>,
    /// The validation text; a part of the inputs, chosen by a hash of each document, without it. May be repeated.
    #[arg(long, value_name = "PATH")]
    validation: Vec<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &PrepareOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open_to_write()?;
    let prepared = steps::prepare::prepare(
        &run,
        &config,
        &options.inputs,
        &options.validation,
        progress,
        &interrupt.flag(),
    );
    let report = interrupt.judge(prepared)?;
    if options.json {
        output::print_json(&report)
    } else {
        output::print(&(report.to_string().trim_end().to_owned() + "\n"))
    }
}

/// A report in one line.
pub(crate) fn summary(report: &PrepareReport) -> String {
    let tokens = report.train.tokens + report.validation.tokens;
    let documents = report.train.documents + report.validation.documents;
    let text = format!("{} documents, {} tokens", human::integer(documents), human::integer(tokens));
    if report.skipped { format!("{text}; they were there already") } else { text }
}
