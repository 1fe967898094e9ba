//! A cell from its configuration to its results, by the same steps as the commands.

use std::fs;
use std::io;
use std::path::Path;

use dipaco_config::RunConfig;
use dipaco_eval::{DomainEvaluation, Domains, Evaluation, RerouteBy};
use dipaco_experiment::{
    Cell, CellEvaluation, CellResult, DomainMeasurement, EvaluatedModel, Facts, Measurement, cell_key,
    evaluation_key, seed_config, seed_key,
};

use super::facts::facts;
use super::folder::{ExperimentFolder, PreparedText};
use super::record::Record;
use crate::error::PipelineError;
use crate::evaluate::{ENSEMBLE_TEMPERATURE, EvaluatedRun, Subject, evaluate};
use crate::import::import;
use crate::run::save_config;
use crate::run_directory::RunDirectory;
use crate::train::{TrainOptions, train};
use crate::vocabulary::with_vocabulary;
use crate::weights::{Version, Weights};
use crate::{device, phases, route, seed, transformer_router};

/// Letters of a run's name, as `run.name` has them.
const NAME_LETTERS: usize = 64;

/// Trains a cell and evaluates it. Returns its result, and the evaluations of its measurements. Finished parts are not repeated.
pub(super) fn finish(
    folder: &mut ExperimentFolder,
    cell: &Cell,
) -> Result<(CellResult, Vec<Evaluation>), PipelineError> {
    let text = folder.text(&folder.with_tokenizer(&cell.config)?)?;
    let config = prepared(folder, &cell.config, &text, &name(cell))?;
    let key = cell_key(&config, &text.all);
    let run = RunDirectory::new(folder.out().join("cells").join(&key)).with_data(Some(&text.folder));
    let mut record = Record::load(run.root())?;
    let facts = match &record.trained {
        Some(facts) => facts.clone(),
        None => {
            let wire_bytes = train_cell(folder, &run, &config, &text)?;
            let phase = folder.runtime.block_on(phases::current(&run))?;
            let facts = Facts { wire_bytes, ..facts(&run, &config, phase)? };
            record.trained = Some(facts.clone());
            record.save(run.root())?;
            facts
        }
    };
    if !folder.options.keep_all {
        remove_what_only_training_needs(&run)?;
    }
    let (mut measurements, mut evaluations) = (Vec::new(), Vec::new());
    for (key, evaluation) in evaluations_by_key(folder, cell, &text)? {
        if !record.evaluations.contains_key(&key) {
            let domains = folder.domains(&text)?;
            let found = measure(folder, &run, &text, &evaluation, domains.as_deref())?;
            record.evaluations.insert(key.clone(), found);
            record.save(run.root())?;
        }
        let found = &record.evaluations[&key];
        measurements.push(Measurement {
            evaluation: evaluation.name.clone(),
            perplexity: found.perplexity,
            bits_per_byte: found.bits_per_byte,
            tokens_counted: found.tokens_counted,
            documents: found.documents,
            purity: found.agreement.map(|agreement| agreement.purity),
            nmi: found.agreement.map(|agreement| agreement.nmi),
            domains: found.per_domain.iter().filter_map(of_domain).collect(),
            against_baseline: None,
        });
        evaluations.push(found.clone());
    }
    if !folder.options.keep_all {
        remove_scores(&run)?;
    }
    let (run, router) = (cell.run.clone(), cell.router.clone());
    Ok((CellResult { run, router, seed: cell.seed, key, facts, measurements }, evaluations))
}

/// The result of a cell whose training and evaluations are finished, with the evaluations of its measurements; `None` for
/// another one. Nothing is computed.
pub(super) fn finished(
    folder: &mut ExperimentFolder,
    cell: &Cell,
) -> Result<Option<(CellResult, Vec<Evaluation>)>, PipelineError> {
    if !folder.has_text(&folder.with_tokenizer(&cell.config)?) {
        return Ok(None);
    }
    let text = folder.text(&folder.with_tokenizer(&cell.config)?)?;
    let config = prepared(folder, &cell.config, &text, &name(cell))?;
    let record = Record::load(&folder.out().join("cells").join(cell_key(&config, &text.all)))?;
    let evaluations = evaluations_by_key(folder, cell, &text)?;
    let done =
        record.trained.is_some() && evaluations.iter().all(|(key, _)| record.evaluations.contains_key(key));
    if done { finish(folder, cell).map(Some) } else { Ok(None) }
}

/// The evaluations of a cell, with their keys.
fn evaluations_by_key(
    folder: &ExperimentFolder,
    cell: &Cell,
    text: &PreparedText,
) -> Result<Vec<(String, CellEvaluation)>, PipelineError> {
    let with_key = |evaluation: &CellEvaluation| {
        let config = prepared(folder, &evaluation.config, text, &name(cell))?;
        let evaluation = CellEvaluation { config, ..evaluation.clone() };
        Ok((evaluation_key(&evaluation, folder.labels_hash.as_deref()), evaluation))
    };
    cell.evaluations.iter().map(with_key).collect()
}

/// A configuration with its text, vocabulary and name.
fn prepared(
    folder: &ExperimentFolder,
    config: &RunConfig,
    text: &PreparedText,
    name: &str,
) -> Result<RunConfig, PipelineError> {
    let mut config = folder.with_tokenizer(config)?;
    config.run.name = name.to_owned();
    config.run.directory = None;
    config.run.store = None;
    config.run.data = Some(text.folder.clone());
    let run = RunDirectory::new("").with_data(Some(&text.folder));
    with_vocabulary(&run, &config)
}

/// The cell's name in the letters that a run's name may have, and at most 64 of them. A cut name keeps its seed. The folder's
/// name is the key, so two cells may have the same name.
fn name(cell: &Cell) -> String {
    let seed = format!("-s{}", cell.seed);
    let parts: Vec<&str> = [&*cell.run, &*cell.router].into_iter().filter(|part| !part.is_empty()).collect();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = parts.join("-").trim_start_matches('.').chars().map(plain).collect();
    format!("{name:.0$}{seed}", NAME_LETTERS - seed.len())
}

/// Seed, routing and training of a cell. Each step skips finished work, so an interrupted cell continues. Returns the
/// bytes on the wire if the training was not interrupted.
fn train_cell(
    folder: &ExperimentFolder,
    run: &RunDirectory,
    config: &RunConfig,
    text: &PreparedText,
) -> Result<Option<u64>, PipelineError> {
    let seed = shared_seed(folder, config, text)?;
    save_config(run, config)?;
    folder.runtime.block_on(seed::adopt(run, config, &seed))?;
    let (progress, cancel) = (&folder.progress, &folder.cancel);
    let weights = folder.runtime.block_on(Weights::open(run, config, Version::Current))?;
    let device = folder.options.device;
    let router_device = route::device_among_all_steps(config, device);
    route::fit(run, config, &weights, router_device, progress, &cancel.flag)?;
    route::assign(run, 0, &weights, router_device, progress, &cancel.flag)?;
    let how = TrainOptions {
        workers: folder.options.workers.max(1),
        program: folder.options.program.clone(),
        listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: Vec::new(),
        resume: true,
        stop_at_phase: false,
        device,
        http: None,
        tensorboard: None,
    };
    let summary = folder.runtime.block_on(train(run, config, &how, progress, cancel.token.clone()))?;
    if !summary.finished {
        return Err(PipelineError::Interrupted);
    }
    let whole = (summary.new_rounds - f64::from(config.train.rounds)).abs() < 1e-9;
    Ok(whole.then(|| summary.bytes_sent + summary.bytes_received))
}

/// The run directory of the seed model that all cells with these settings share.
fn seed_folder(folder: &ExperimentFolder, config: &RunConfig, text: &PreparedText) -> RunDirectory {
    let key = seed_key(config, &text.train);
    RunDirectory::new(folder.out().join("seeds").join(key)).with_data(Some(&text.folder))
}

/// The seed model that all cells with these settings share.
fn shared_seed(
    folder: &ExperimentFolder,
    config: &RunConfig,
    text: &PreparedText,
) -> Result<RunDirectory, PipelineError> {
    let run = seed_folder(folder, config, text);
    let mut own = seed_config(config);
    own.seed_model = config.seed_model.clone();
    own.run.name = format!("seed-{}", config.run.seed);
    own.run.data = config.run.data.clone();
    own.prepare = config.prepare.clone();
    // No weight of a seed depends on these, and `dipaco evaluate --seed` takes them.
    own.train.sequence_tokens = config.train.sequence_tokens;
    own.routing.prefix_tokens = config.routing.prefix_tokens;
    own.evaluation = config.evaluation.clone();
    save_config(&run, &own)?;
    if let Some(model) = &folder.options.model {
        folder.runtime.block_on(import(&run, &own, model, false))?;
    }
    let how = seed::SeedHow { restart: false, device: device::open(folder.options.device)? };
    let flag = folder.cancel.flag.clone();
    let summary = folder.runtime.block_on(seed::seed(&run, &own, how, &folder.progress, flag))?;
    if summary.finished { Ok(run) } else { Err(PipelineError::Interrupted) }
}

/// Evaluates a model of a cell. The routed model is re-routed if the configuration asks for it.
fn measure(
    folder: &ExperimentFolder,
    run: &RunDirectory,
    text: &PreparedText,
    evaluation: &CellEvaluation,
    domains: Option<&Domains>,
) -> Result<Evaluation, PipelineError> {
    let config = &evaluation.config;
    // A cell takes over the seed model, and not what the seed model began with.
    let seed_run;
    let run = match evaluation.model {
        EvaluatedModel::Imported => {
            seed_run = seed_folder(folder, config, text);
            &seed_run
        }
        _ => run,
    };
    let open = |version| folder.runtime.block_on(Weights::open(run, config, version));
    let (progress, flag) = (&folder.progress, &*folder.cancel.flag);
    let subject = match (evaluation.model, config.evaluation.reroute_tokens) {
        (EvaluatedModel::Routed, 0) => Subject::Routed(config.evaluation.route),
        (EvaluatedModel::Routed, tokens) => {
            let by = config.evaluation.reroute_by;
            if by == RerouteBy::Transformer {
                // The router learns from the current weights, whichever version is evaluated.
                transformer_router::fit(run, config, &open(Version::Current)?, progress, flag)?;
            }
            Subject::Rerouted { tokens, by }
        }
        (EvaluatedModel::Ensemble(paths), _) => {
            Subject::Ensemble { paths: paths.get() as usize, temperature: ENSEMBLE_TEMPERATURE }
        }
        (EvaluatedModel::Oracle, _) => Subject::Oracle,
        (EvaluatedModel::RandomPath, _) => Subject::RandomPath,
        (EvaluatedModel::Soup, _) => Subject::Soup,
        (EvaluatedModel::Seed, _) => Subject::Seed,
        (EvaluatedModel::Imported, _) => Subject::Imported,
    };
    let version = if evaluation.early_stopping { Version::Best } else { Version::Current };
    let (weights, device) = (open(version)?, device::open(folder.options.device)?);
    let evaluated = EvaluatedRun { run, config, weights: &weights, device: &device };
    evaluate(evaluated, subject, domains, progress, flag)
}

/// The result on a domain; `None` for a domain without a counted token.
fn of_domain(found: &DomainEvaluation) -> Option<DomainMeasurement> {
    let (domain, documents) = (found.domain.clone(), found.documents);
    Some(DomainMeasurement { domain, documents, bits_per_byte: found.bits_per_byte? })
}

/// Removes the paths' scores of the reserved documents. Call it when every router that learns from them is fitted.
fn remove_scores(run: &RunDirectory) -> Result<(), PipelineError> {
    for phase in (0..).map(|phase| run.routing(phase)).take_while(|phase| phase.root().exists()) {
        removed(&phase.scores(), fs::remove_dir_all(phase.scores()))?;
    }
    Ok(())
}

/// Removes training shards and the paths' moments, which take most of a finished run's space. Evaluation, serving and
/// export do not need them.
fn remove_what_only_training_needs(run: &RunDirectory) -> Result<(), PipelineError> {
    for folder in [Path::new(&run.store()).join("paths"), run.shard_cache()] {
        removed(&folder, fs::remove_dir_all(&folder))?;
    }
    for phase in (0..).map(|phase| run.routing(phase)).take_while(|phase| phase.root().exists()) {
        let shards = phase.train();
        let failed = |source| PipelineError::Io { action: "list", path: shards.clone(), source };
        for entry in fs::read_dir(&shards).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // The reserved documents stay: the transformer router is fitted on them.
            if name.starts_with("path-") {
                // A shard is a list and a folder.
                let gone = if file.is_dir() { fs::remove_dir_all(&file) } else { fs::remove_file(&file) };
                removed(&file, gone)?;
            }
        }
    }
    Ok(())
}

/// The result of removing `path`, where a missing file is no error.
fn removed(path: &Path, result: io::Result<()>) -> Result<(), PipelineError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PipelineError::Io { action: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
