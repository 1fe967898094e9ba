//! `dipaco evaluate`: perplexity on validation text.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use dipaco_eval::{Comparison, Evaluation, EvaluationConfig, PairedDifference, RerouteBy, RouteUnit};
use dipaco_telemetry::{Event, Events, Progress};
use dipaco_topology::PathId;
use serde::Serialize;

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::number::positive;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::RunDirectory;
use dipaco_pipeline::evaluate::{ENSEMBLE_TEMPERATURE, EvaluatedRun, Evaluator, Subject, comparable};
use dipaco_pipeline::prepared::token_file;
use dipaco_pipeline::{Version, Weights};
use dipaco_pipeline::{labels, vocabulary};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco evaluate --run runs/tiny                      the routed model, and the seed
  dipaco evaluate --run runs/tiny --path 2             every document by path 2
  dipaco evaluate --run runs/tiny --seed               the seed, before any path is trained
  dipaco evaluate --run runs/tiny --dense runs/tiny-dense
  dipaco evaluate --run runs/tiny --early-stopping     each path at its best version
  dipaco evaluate --run runs/tiny --route-window       also each sequence by its own first tokens
  dipaco evaluate --run runs/tiny --reroute 64 --reroute 128
  dipaco evaluate --run runs/tiny --route-window --reroute 64 --reroute-by features --reroute-by transformer
  dipaco evaluate --run runs/tiny --ensemble 2 --oracle --random-path --soup
  dipaco evaluate --run runs/tiny --rank 4             zero-shot: which of four continuations is the true one?
  dipaco evaluate --run runs/tiny --labels domains.jsonl.gz --json";

/// Options of `dipaco evaluate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct EvaluateOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Evaluate this path on all documents instead of the routed model; may be repeated.
    #[arg(long = "path", value_name = "N")]
    paths: Vec<PathId>,
    /// Evaluate the seed only, and the imported model that it began with. It needs no trained paths.
    #[arg(long, conflicts_with = "paths")]
    seed: bool,
    /// Leave out the seed, and the imported model that it began with.
    #[arg(long, conflicts_with_all = ["paths", "seed"])]
    no_seed: bool,
    /// Directory of a dense run on the same text, to compare with. It is a run of one path. This run's settings of the
    /// evaluation count for both. If evaluation.sequence_tokens is 0, both read sequences of the smaller context.
    #[arg(long, value_name = "DIR")]
    dense: Option<PathBuf>,
    /// Use the version of each path with the lowest loss on its held-out documents, instead of the last version; with --dense
    /// of both runs.
    #[arg(long, conflicts_with = "seed")]
    early_stopping: bool,
    /// Also evaluate with the path of each sequence chosen by the sequence's own first tokens. With evaluation.route =
    /// "window" the routed model is that already.
    #[arg(long, conflicts_with_all = ["paths", "seed"])]
    route_window: bool,
    /// Also evaluate with a new choice of path every W tokens, by the router of --reroute-by; may be repeated. The default is
    /// evaluation.reroute_tokens.
    #[arg(long, value_name = "W", conflicts_with_all = ["paths", "seed"], value_parser = clap::value_parser!(u32).range(1..))]
    reroute: Vec<u32>,
    /// Router of --reroute: "transformer", which `dipaco route fit-transformer` fits, or "features", the run's own router on
    /// the last tokens before each choice; may be repeated. The default is evaluation.reroute_by. It needs --reroute or
    /// evaluation.reroute_tokens.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["paths", "seed"], value_parser = reroute_by)]
    reroute_by: Vec<RerouteBy>,
    /// Also evaluate the weighted mean of the K best paths of each sequence (c-BTM). It costs as much as K paths; may be
    /// repeated.
    #[arg(long, value_name = "K", conflicts_with_all = ["paths", "seed"], value_parser = clap::value_parser!(u32).range(1..))]
    ensemble: Vec<u32>,
    /// Temperature of the router's squared distances in an ensemble. A discriminative router gives probabilities and needs
    /// none.
    // clap lets a missing --ensemble pass where it would be a conflict, so this has the same conflicts.
    #[arg(long, value_name = "T", default_value_t = ENSEMBLE_TEMPERATURE, requires = "ensemble", conflicts_with_all = ["paths", "seed"], value_parser = positive)]
    ensemble_temperature: f64,
    /// Also evaluate each document by the path with the lowest loss on it. The choice is made after reading the document, so
    /// this is a bound and not a model. It costs as much as all paths.
    #[arg(long, conflicts_with_all = ["paths", "seed"])]
    oracle: bool,
    /// Also evaluate each document by a random path.
    #[arg(long, conflicts_with_all = ["paths", "seed"])]
    random_path: bool,
    /// Also evaluate the mean of the weights of all paths as one model, which needs no router.
    #[arg(long, conflicts_with_all = ["paths", "seed"])]
    soup: bool,
    /// Also rank the true continuation of each document's first tokens among K different continuations, those of other
    /// documents: of the same domain with --labels. The default is evaluation.rank_candidates.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(2..))]
    rank: Option<u32>,
    /// Label file, a JSON object with `url` and `domain` on each line (.gz and .zst are decompressed). Adds results for each
    /// domain, and the agreement of paths with domains.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Text of the validation documents, for --labels; may be repeated. The default is the text that `prepare` read.
    #[arg(long, value_name = "PATH", requires = "labels")]
    labelled_text: Vec<PathBuf>,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Add the loss on each document to the JSON.
    #[arg(long, requires = "json")]
    documents: bool,
}

#[derive(Serialize)]
struct Row {
    model: String,
    #[serde(flatten)]
    evaluation: Evaluation,
    /// The difference from the first row on the same documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    against_first: Option<PairedDifference>,
}

/// The rows of the JSON, with the losses on all documents if `documents` asks for them.
fn rows(comparison: &Comparison, documents: bool) -> Vec<Row> {
    let base = comparison.rows.first().map(|(_, evaluation)| evaluation);
    let row = |(index, (model, evaluation)): (usize, &(String, Evaluation))| {
        let base = base.filter(|_| index > 0);
        let against_first = base.and_then(|base| PairedDifference::between(evaluation, base));
        let mut evaluation = evaluation.clone();
        if !documents {
            evaluation.document_losses.clear();
        }
        Row { model: model.clone(), evaluation, against_first }
    };
    comparison.rows.iter().enumerate().map(row).collect()
}

pub(crate) fn run(options: &EvaluateOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let mut comparison = Comparison::default();
    let ended = evaluate_models(options, progress, interrupt.flag(), &mut comparison);
    let finished = comparison.rows.len();
    // A row may be worth hours of work, so no later failure takes it away.
    let printed = if ended.is_ok() || finished > 0 { options.print(&comparison) } else { Ok(()) };
    match ended {
        Err(_) if interrupt.is_set() => Err(CliError::InterruptedEvaluation { finished }),
        ended => ended.and(printed),
    }
}

/// Evaluates all models. Adds and records each row when it is finished.
fn evaluate_models(
    options: &EvaluateOptions,
    progress: &Progress,
    flag: Arc<AtomicBool>,
    comparison: &mut Comparison,
) -> Result<(), CliError> {
    let (run, config) = options.run.open_existing()?;
    options.check_reroute(&config.evaluation)?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let mut config = vocabulary::with_vocabulary(&run, &config)?;
    if let Some(candidates) = options.rank {
        config.evaluation.rank_candidates = candidates as usize;
    }
    let version = if options.early_stopping { Version::Best } else { Version::Current };
    let (found, ended) = runtime::run(async {
        let weights = Weights::open(&run, &config, version).await?;
        options.check_ensembles(weights.topology().paths())?;
        let dense = match &options.dense {
            Some(folder) => Some(open_dense(folder, &run, &config, version).await?),
            None => None,
        };
        if let Some((_, dense, _)) = &dense {
            config.evaluation = dense.evaluation.clone();
        }
        let (options, progress) = (options.clone(), progress.clone());
        runtime::blocking(move || {
            let device = options.device.open()?;
            let subjects = options.subjects(&config.evaluation, weights.has_imported());
            let only = Subject::Path(PathId(0));
            let evaluated = EvaluatedRun { run: &run, config: &config, weights: &weights, device: &device };
            let mut evaluator = Evaluator::new(evaluated);
            let mut dense = dense.as_ref().map(|(run, config, weights)| {
                Evaluator::new(EvaluatedRun { run, config, weights, device: &device })
            });
            // Before the first evaluation: each may take hours, and what a later model lacks can be told now.
            if let Some(dense) = &mut dense {
                dense.check(only)?;
            }
            for &(_, subject) in &subjects {
                evaluator.check(subject)?;
            }
            let domains = match &options.labels {
                Some(labels) => {
                    let text = &options.labelled_text;
                    Some(labels::domains(&run, &config.prepare, labels, text, &progress, &flag)?)
                }
                None => None,
            };
            let dense = dense.iter().map(|dense| (options.named("dense".to_owned(), only), dense, only));
            let own = subjects.into_iter().map(|(name, subject)| (name, &evaluator, subject));
            let mut found = Comparison::default();
            for (name, evaluator, subject) in dense.chain(own) {
                match evaluator.evaluate(subject, domains.as_ref(), &progress, &flag) {
                    Ok(evaluation) => found.push(name, evaluation),
                    Err(error) => return Ok((found, Err(CliError::from(error)))),
                }
                record(&run, &found.rows[found.rows.len() - 1..]);
            }
            Ok((found, Ok(())))
        })
        .await
    })?;
    *comparison = found;
    ended
}

impl EvaluateOptions {
    /// Prints the rows that are finished.
    fn print(&self, comparison: &Comparison) -> Result<(), CliError> {
        if self.json {
            return output::print_json(&rows(comparison, self.documents));
        }
        let mut text = comparison.to_string();
        let detailed =
            |evaluation: &Evaluation| evaluation.per_path.len() > 1 || !evaluation.per_domain.is_empty();
        for (name, evaluation) in comparison.rows.iter().filter(|(_, evaluation)| detailed(evaluation)) {
            text += &format!("\n\n{name}\n{evaluation}");
        }
        output::print(&(text.trim_end().to_owned() + "\n"))
    }

    /// The name of a model in the table. That of the best versions of paths tells them from the last.
    fn named(&self, name: String, subject: Subject) -> String {
        let best = self.early_stopping && !matches!(subject, Subject::Seed | Subject::Imported);
        if best { name + ", early stopping" } else { name }
    }

    /// Refuses an ensemble of more paths than the run has: its row would be named after paths that are not there.
    fn check_ensembles(&self, paths: u32) -> Result<(), CliError> {
        let Some(most) = self.ensemble.iter().find(|&&most| most > paths) else { return Ok(()) };
        let noun = if paths == 1 { "path" } else { "paths" };
        Err(CliError::Usage {
            message: format!("--ensemble {most}: this run has {paths} {noun}"),
            remedy: format!("give at most {paths}"),
        })
    }

    /// Refuses a router of --reroute-by that would choose no path.
    fn check_reroute(&self, config: &EvaluationConfig) -> Result<(), CliError> {
        if self.reroute_by.is_empty() || !self.reroute.is_empty() || config.reroute_tokens > 0 {
            return Ok(());
        }
        Err(CliError::Usage {
            message: "--reroute-by: evaluation.reroute_tokens is 0, so no path is chosen anew".into(),
            remedy: "give --reroute W, the number of tokens between two choices, too".into(),
        })
    }

    /// The evaluated models, with their names in the table.
    fn subjects(&self, config: &EvaluationConfig, imported: bool) -> Vec<(String, Subject)> {
        let subjects = self.subjects_of_version(config, imported).into_iter();
        subjects.map(|(name, subject)| (self.named(name, subject), subject)).collect()
    }

    /// The evaluated models, with their names where the version does not matter.
    fn subjects_of_version(&self, config: &EvaluationConfig, imported: bool) -> Vec<(String, Subject)> {
        if !self.paths.is_empty() {
            let named = |&path: &PathId| (format!("path {path}"), Subject::Path(path));
            return self.paths.iter().map(named).collect();
        }
        let mut subjects = Vec::new();
        if imported && !self.no_seed {
            subjects.push(("imported".to_owned(), Subject::Imported));
        }
        if !self.no_seed {
            subjects.push(("seed".to_owned(), Subject::Seed));
        }
        if self.seed {
            return subjects;
        }
        subjects.push(("routed".to_owned(), Subject::Routed(config.route)));
        if self.route_window && config.route != RouteUnit::Window {
            subjects.push(("routed by window".to_owned(), Subject::Routed(RouteUnit::Window)));
        }
        let configured = (config.reroute_tokens > 0).then_some(config.reroute_tokens);
        let given: Vec<usize> = self.reroute.iter().map(|&tokens| tokens as usize).collect();
        let tokens = if given.is_empty() { configured.into_iter().collect() } else { given };
        let routers =
            if self.reroute_by.is_empty() { vec![config.reroute_by] } else { self.reroute_by.clone() };
        for tokens in tokens {
            subjects.extend(routers.iter().map(|&by| {
                let name = match by {
                    RerouteBy::Transformer => format!("re-routed every {tokens}"),
                    RerouteBy::Features => format!("re-routed every {tokens} by features"),
                };
                (name, Subject::Rerouted { tokens, by })
            }));
        }
        subjects.extend(self.ensemble.iter().map(|&paths| {
            let temperature = self.ensemble_temperature;
            (format!("ensemble of {paths}"), Subject::Ensemble { paths: paths as usize, temperature })
        }));
        if self.oracle {
            subjects.push(("best path in hindsight".to_owned(), Subject::Oracle));
        }
        if self.random_path {
            subjects.push(("random path".to_owned(), Subject::RandomPath));
        }
        if self.soup {
            subjects.push(("mean of all paths".to_owned(), Subject::Soup));
        }
        subjects
    }
}

fn reroute_by(name: &str) -> Result<RerouteBy, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

/// Opens this version of the run in `folder` to compare with the run `own_run` of the configuration `own`. Its configuration has
/// settings of the evaluation for both, by which both models count the same tokens and rank the same continuations.
async fn open_dense(
    folder: &Path,
    own_run: &RunDirectory,
    own: &dipaco_config::RunConfig,
    version: Version,
) -> Result<(RunDirectory, dipaco_config::RunConfig, Weights), CliError> {
    let options = RunOptions { run: Some(folder.to_owned()), config: None, overrides: Vec::new() };
    let (run, config) = options.open_existing()?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    check_same_text(folder, &run, own_run)?;
    let mut config = vocabulary::with_vocabulary(&run, &config)?;
    let contexts = [own.model.context, config.model.context];
    config.evaluation = comparable(&own.evaluation, contexts)?;
    if own.evaluation.sequence_tokens == 0 && contexts[0] != contexts[1] {
        tracing::info!(
            "the models have contexts of {} and {} tokens: both read sequences of {}",
            contexts[0],
            contexts[1],
            config.evaluation.sequence_tokens
        );
    }
    let weights = Weights::open(&run, &config, version).await?;
    match weights.topology().paths() {
        1 => Ok((run, config, weights)),
        paths => Err(CliError::Usage {
            message: format!(
                "the run of --dense in {} has {paths} paths, so it is not dense",
                folder.display()
            ),
            remedy: "name a run of one path, and evaluate runs of several paths with --run".into(),
        }),
    }
}

/// Refuses a dense run, in `folder`, whose model would be evaluated on other tokens than those of the run `own`. Equal text of
/// other files counts as other text: the hashes are those of lists of files.
fn check_same_text(folder: &Path, dense: &RunDirectory, own: &RunDirectory) -> Result<(), CliError> {
    let validation = |run: &RunDirectory| token_file(run, &run.validation_tokens());
    let (theirs, ours) = (validation(dense)?, validation(own)?);
    if theirs.content_hash() == ours.content_hash() && theirs.tokenizer_hash() == ours.tokenizer_hash() {
        return Ok(());
    }
    Err(CliError::Usage {
        message: format!(
            "the validation text of the run of --dense in {} comes from other files, other text or another tokenizer",
            folder.display()
        ),
        remedy: format!(
            "compare runs of the same prepared text: give the dense run `--set run.data={}`",
            own.data().display()
        ),
    })
}

/// Records rows of results in the run's event file. A file that can't be written is a warning: the results may be worth hours
/// of work.
pub(crate) fn record(run: &RunDirectory, rows: &[(String, Evaluation)]) {
    let event = |(model, evaluation): &(String, Evaluation)| Event::Evaluated {
        model: model.clone(),
        perplexity: evaluation.perplexity,
        loss: evaluation.perplexity.ln(),
        tokens: evaluation.tokens_counted,
        documents: evaluation.documents,
    };
    let events = Events::create(&run.events());
    let recorded = events.and_then(|events| rows.iter().try_for_each(|row| events.write(event(row))));
    if let Err(error) = recorded {
        tracing::warn!(%error, source = ?error.source(), "the results are not in the run's event file");
    }
}
