//! `dipaco evaluate`: perplexity on validation text.

use std::path::PathBuf;

use clap::Args;
use dipaco_eval::{Comparison, Evaluation};
use dipaco_telemetry::{Event, Events, Progress};
use dipaco_topology::PathId;
use serde::Serialize;

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_directory::RunDirectory;
use crate::run_options::RunOptions;
use crate::steps::evaluate::{Subject, evaluate};
use crate::steps::weights::{Version, Weights};
use crate::{output, runtime, steps};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco evaluate --run runs/tiny                      the routed model, and the seed
  dipaco evaluate --run runs/tiny --path 2             every document by path 2
  dipaco evaluate --run runs/tiny --dense runs/tiny-dense
  dipaco evaluate --run runs/tiny --early-stopping     each path at its best version";

/// Options of `dipaco evaluate`.
#[derive(Debug, Args)]
pub(crate) struct EvaluateOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Evaluate single paths on all documents instead of the routed model; may be repeated.
    #[arg(long = "path", value_name = "N")]
    paths: Vec<PathId>,
    /// A dense run on the same text to compare with.
    #[arg(long, value_name = "DIR")]
    dense: Option<PathBuf>,
    /// Use each path's best version on its held-out documents instead of the last.
    #[arg(long)]
    early_stopping: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    model: &'a str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

pub(crate) fn run(options: &EvaluateOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open()?;
    steps::route::check_tokenizer(&run)?;
    let config = steps::seed::with_vocabulary(&run, &config)?;
    let version = if options.early_stopping { Version::Best } else { Version::Current };
    let comparison = runtime::run(async {
        let weights = Weights::open(&run, &config, version).await?;
        let dense = match &options.dense {
            Some(folder) => Some(open_dense(folder).await?),
            None => None,
        };
        let (paths, progress) = (options.paths.clone(), progress.clone());
        let own = run.clone();
        runtime::blocking(move || {
            let mut comparison = Comparison::default();
            let flag = interrupt.flag();
            if let Some((run, config, weights)) = &dense {
                let found = evaluate(run, config, weights, Subject::Path(PathId(0)), &progress, &flag)?;
                comparison.push("dense", found);
            }
            if paths.is_empty() {
                let seed = evaluate(&own, &config, &weights, Subject::Seed, &progress, &flag)?;
                comparison.push("seed", seed);
                let routed = evaluate(&own, &config, &weights, Subject::Routed, &progress, &flag)?;
                comparison.push("routed", routed);
            }
            for path in paths {
                let found = evaluate(&own, &config, &weights, Subject::Path(path), &progress, &flag)?;
                comparison.push(format!("path {path}"), found);
            }
            Ok(comparison)
        })
        .await
    })?;
    record(&run, &comparison)?;
    if options.json {
        let rows: Vec<_> =
            comparison.rows.iter().map(|(model, evaluation)| Row { model, evaluation }).collect();
        output::print_json(&rows)
    } else {
        let mut text = comparison.to_string();
        for (_, evaluation) in comparison.rows.iter().filter(|(_, evaluation)| evaluation.per_path.len() > 1)
        {
            text += &format!("\n{evaluation}");
        }
        output::print(&(text.trim_end().to_owned() + "\n"))
    }
}

async fn open_dense(
    folder: &std::path::Path,
) -> Result<(RunDirectory, dipaco_config::RunConfig, Weights), CliError> {
    let options = RunOptions { run: Some(folder.to_owned()), config: None, overrides: Vec::new() };
    let (run, config) = options.open()?;
    steps::route::check_tokenizer(&run)?;
    let config = steps::seed::with_vocabulary(&run, &config)?;
    let weights = Weights::open(&run, &config, Version::Current).await?;
    Ok((run, config, weights))
}

/// Writes the results to the run's event file.
pub(crate) fn record(run: &RunDirectory, comparison: &Comparison) -> Result<(), CliError> {
    let events = Events::create(&run.events())?;
    for (model, evaluation) in &comparison.rows {
        events.write(Event::Evaluated {
            model: model.clone(),
            perplexity: evaluation.perplexity,
            loss: evaluation.perplexity.ln(),
            tokens: evaluation.tokens_counted,
            documents: evaluation.documents,
        })?;
    }
    Ok(())
}
