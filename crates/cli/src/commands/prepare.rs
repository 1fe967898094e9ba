//! `dipaco prepare`: text to a tokenizer and token files.

use std::path::PathBuf;

use clap::Args;
use dipaco_pipeline::prepare::{check_inputs_of, prepare_part};
use dipaco_shards::{PrepareWork, WorkPart};
use dipaco_telemetry::Progress;

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output;
use crate::run_options::RunOptions;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco prepare --run runs/tiny text/ more.jsonl.zst  C4's json.gz, JSON lines, Parquet, plain text, folders
  dipaco prepare --run runs/c4 c4/train --validation c4/validation --set prepare.vocab_size=32000

Over several machines, with the same files and settings on all of them (docs/scale.md):
  dipaco prepare --run runs/c4 --tokenizer-only c4/    once; every machine needs runs/c4/data/pieces
  dipaco prepare --run runs/c4 --part 2/8 c4/          on the second of eight; copy its data/pieces back
  dipaco prepare --run runs/c4 c4/                     lists their files, or says which part is missing

A command that was stopped, or found the disk full, continues when it is repeated.";

/// Options of `dipaco prepare`.
#[derive(Debug, Args)]
pub(crate) struct PrepareOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Files and folders of text: C4's *.json.gz, *.jsonl, *.jsonl.gz, *.jsonl.zst, *.parquet, plain text.
    #[arg(required = true, value_name = "PATH")]
    inputs: Vec<PathBuf>,
    /// Validation text; may be repeated. The default is a part of the inputs, chosen by a hash of each document.
    #[arg(long, value_name = "PATH")]
    validation: Vec<PathBuf>,
    /// Only train the tokenizer, which all parts of a divided preparation need.
    #[arg(long, conflicts_with = "part")]
    tokenizer_only: bool,
    /// Only tokenise part I of N of the input files, counted from 1; `auto` is the part of the scheduler's array.
    #[arg(long, value_name = "I/N", value_parser = crate::part::parse)]
    part: Option<WorkPart>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl PrepareOptions {
    fn work(&self) -> PrepareWork {
        match self.part {
            _ if self.tokenizer_only => PrepareWork::Tokenizer,
            Some(part) => PrepareWork::Part(part),
            None => PrepareWork::All,
        }
    }
}

pub(crate) fn run(options: &PrepareOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    // A mistyped name of a file, a store in the text, or text in the run's own folder leaves no run behind.
    check_inputs_of(&options.run.open()?.0, &options.inputs, &options.validation)?;
    let unsaved = options.run.open_to_begin()?;
    let run = &unsaved.run;
    let prepared = prepare_part(
        run,
        &unsaved.config,
        &options.inputs,
        &options.validation,
        options.work(),
        progress,
        &interrupt.flag(),
    );
    let report = interrupt.judge(prepared)?;
    unsaved.save()?;
    if options.json {
        return output::print_json(&report);
    }
    let pieces = run.data().join("pieces");
    let text = match options.work() {
        PrepareWork::Tokenizer => format!(
            "the tokenizer is there: {} tokens, hash {:.16}; every machine of a divided preparation needs {}",
            report.tokenizer.vocab_size,
            report.tokenizer.hash,
            pieces.display()
        ),
        _ if report.skipped => report.to_string(),
        PrepareWork::Part(part) => format!(
            "part {part} is done:\n{report}\nwhen all parts are in {}, the same command without --part lists their files",
            pieces.display()
        ),
        PrepareWork::All => report.to_string(),
    };
    output::print(&(text.trim_end().to_owned() + "\n"))
}
