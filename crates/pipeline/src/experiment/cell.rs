//! A cell from its configuration to its results, by the same steps as the commands.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dipaco_config::{RunConfig, RunSection};
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
use crate::label_file::labels_hash;
use crate::run::save_config;
use crate::run_directory::RunDirectory;
use crate::train::{TrainOptions, train};
use crate::version::Version;
use crate::vocabulary::with_vocabulary;
use crate::weights::Weights;
use crate::{device, phases, route, seed, transformer_router};

/// Trains a cell and evaluates it. Returns its result, and the evaluations of its measurements. Finished parts are not repeated.
pub(super) fn finish(
    folder: &mut ExperimentFolder,
    cell: &Cell,
) -> Result<(CellResult, Vec<Evaluation>), PipelineError> {
    let place = CellPlace::of(folder, cell)?;
    let (run, text) = (&place.run, &place.text);
    let mut record = Record::load(run.root())?;
    let facts = match &record.trained {
        Some(facts) => facts.clone(),
        None => {
            let wire_bytes = train_cell(folder, run, &place.config, text)?;
            let phase = folder.runtime.block_on(phases::current(run))?;
            let numerics = dipaco_path::numerics(&device::open(folder.options.device)?)?;
            let trained_by = Some(format!("{}, {numerics}", dipaco_train::BUILD));
            let facts = Facts { wire_bytes, trained_by, ..facts(run, &place.config, phase)? };
            record.trained = Some(facts.clone());
            record.save(run.root())?;
            facts
        }
    };
    if !folder.options.keep_all {
        remove_what_only_training_needs(run)?;
    }
    let mut evaluations = Vec::new();
    for (key, evaluation) in &place.evaluations {
        if !record.evaluations.contains_key(key) {
            let domains = folder.domains(&place.config, text)?;
            let found = measure(folder, run, text, evaluation, domains.as_deref())?;
            record.evaluations.insert(key.clone(), found);
            record.save(run.root())?;
        }
        evaluations.push(record.evaluations[key].clone());
    }
    if !folder.options.keep_all {
        remove_scores(run)?;
    }
    Ok((place.result(cell, facts, &evaluations), evaluations))
}

/// Ends a cell that is finished: removes what an interrupted command, or one that kept all, left in its folder.
pub(super) fn end(folder: &ExperimentFolder, key: &str) -> Result<(), PipelineError> {
    if folder.options.keep_all {
        return Ok(());
    }
    let run = RunDirectory::new(root(folder, key));
    remove_what_only_training_needs(&run)?;
    remove_scores(&run)
}

/// The result of a cell whose training and evaluations are finished, with the evaluations of its measurements; `None` for
/// another one. Changes nothing in its folder.
pub(super) fn finished(
    folder: &mut ExperimentFolder,
    cell: &Cell,
) -> Result<Option<(CellResult, Vec<Evaluation>)>, PipelineError> {
    if !folder.has_text(&folder.with_tokenizer(&cell.config)?) {
        return Ok(None);
    }
    let place = CellPlace::of(folder, cell)?;
    let record = Record::load(place.run.root())?;
    let evaluations: Option<Vec<Evaluation>> =
        place.evaluations.iter().map(|(key, _)| record.evaluations.get(key).cloned()).collect();
    let found = record.trained.zip(evaluations);
    Ok(found.map(|(facts, evaluations)| (place.result(cell, facts, &evaluations), evaluations)))
}

/// Where a cell lies, and by which keys.
struct CellPlace {
    text: PreparedText,
    config: RunConfig,
    key: String,
    run: RunDirectory,
    /// The evaluations of the cell, with their keys in its record.
    evaluations: Vec<(String, CellEvaluation)>,
}

impl CellPlace {
    /// The place of a cell. Prepares its text if that is missing.
    fn of(folder: &mut ExperimentFolder, cell: &Cell) -> Result<Self, PipelineError> {
        let text = folder.text(&folder.with_tokenizer(&cell.config)?)?;
        let config = prepared(folder, &cell.config, &text, &name(cell))?;
        let key = cell_key(&config, &content(&config, &text)?);
        let run = RunDirectory::new(root(folder, &key)).with_data(Some(&text.folder));
        let with_key = |evaluation: &CellEvaluation| {
            let config = prepared(folder, &evaluation.config, &text, &config.run.name)?;
            let evaluation = CellEvaluation { config, ..evaluation.clone() };
            Ok((evaluation_key(&evaluation, folder.labels_hash.as_deref()), evaluation))
        };
        let evaluations = cell.evaluations.iter().map(with_key).collect::<Result<_, PipelineError>>()?;
        Ok(Self { text, config, key, run, evaluations })
    }

    /// The cell's result from the facts of its training and what its evaluations found, in their order.
    fn result(&self, cell: &Cell, facts: Facts, found: &[Evaluation]) -> CellResult {
        let measurement = |((_, evaluation), found): (&(String, CellEvaluation), &Evaluation)| Measurement {
            evaluation: evaluation.name.clone(),
            perplexity: found.perplexity,
            bits_per_byte: found.bits_per_byte,
            tokens_counted: found.tokens_counted,
            documents: found.documents,
            purity: found.agreement.map(|agreement| agreement.purity),
            nmi: found.agreement.map(|agreement| agreement.nmi),
            ranking: found.ranking.and_then(|ranking| ranking.accuracy()),
            domains: found.per_domain.iter().filter_map(of_domain).collect(),
            against_baseline: None,
        };
        let measurements = self.evaluations.iter().zip(found).map(measurement).collect();
        let (run, router, key) = (cell.run.clone(), cell.router.clone(), self.key.clone());
        CellResult { run, router, seed: cell.seed, key, facts, measurements }
    }
}

/// The folder of the cell with this key.
pub(super) fn root(folder: &ExperimentFolder, key: &str) -> PathBuf {
    folder.out().join("cells").join(key)
}

/// Content hashes of all that a cell reads: its text, the pretrained model, and the label file that its shards follow.
fn content(config: &RunConfig, text: &PreparedText) -> Result<String, PipelineError> {
    Ok(labels_hash(config)?.map_or_else(|| text.all.clone(), |hash| format!("{} {hash}", text.all)))
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

/// The cell's name in the letters that a run's name may have. A cut name keeps its seed. The folder's name is the key, so two
/// cells may have the same name.
fn name(cell: &Cell) -> String {
    let seed = format!("-s{}", cell.seed);
    let parts: Vec<&str> = [&*cell.run, &*cell.router].into_iter().filter(|part| !part.is_empty()).collect();
    let plain = |c: char| if RunSection::is_name_letter(c) { c } else { '-' };
    let name: String = parts.join("-").trim_start_matches('.').chars().map(plain).collect();
    format!("{name:.0$}{seed}", RunSection::NAME_LETTERS - seed.len())
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
    route::fit(run, &weights, router_device, progress, &cancel.flag)?;
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
    let token = cancel.token.clone();
    let summary = folder.runtime.block_on(train(run, config, &how, progress, token, || Ok(())))?;
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
        let imported = folder.runtime.block_on(import(&run, &own, model, false))?;
        save_config(&run, &imported.config)?;
    }
    let how = seed::SeedHow { restart: false, device: device::open(folder.options.device)? };
    let flag = folder.cancel.flag.clone();
    let summary = folder.runtime.block_on(seed::seed(&run, &own, how, &folder.progress, flag, || Ok(())))?;
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
                transformer_router::fit(run, &open(Version::Current)?, progress, flag)?;
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes the record of a cell as if it had been trained and evaluated, each evaluation with this result. Returns the
    /// record's file.
    pub(in super::super) fn finished_before(
        folder: &mut ExperimentFolder,
        cell: &Cell,
        found: &Evaluation,
    ) -> PathBuf {
        let place = CellPlace::of(folder, cell).unwrap();
        let trained = Some(Facts { paths: 4, modules: 4, steps: 10, step_tokens: 8, ..Facts::default() });
        let evaluations = place.evaluations.iter().map(|(key, _)| (key.clone(), found.clone())).collect();
        Record { trained, evaluations }.save(place.run.root()).unwrap();
        place.run.root().join("cell.json")
    }

    #[test]
    fn the_key_of_a_cell_follows_the_content_of_its_label_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("labels.jsonl");
        let (data, train, all) =
            (folder.path().to_owned(), "train".to_owned(), "train validation".to_owned());
        let text = PreparedText { folder: data, train, all };
        let mut config = RunConfig::default();
        config.routing.labels = Some(file.clone());
        let key = |config: &RunConfig| content(config, &text).map(|content| cell_key(config, &content));
        assert_eq!(key(&config).unwrap(), cell_key(&config, "train validation"), "no shard follows a label");
        config.routing.kind = dipaco_routing::RouterKind::Labels;
        let error = key(&config).unwrap_err().to_string();
        assert!(error.contains("labels.jsonl"), "{error}");
        fs::write(&file, r#"{"url": "a", "domain": "law"}"#).unwrap();
        let law = key(&config).unwrap();
        assert_eq!(key(&config).unwrap(), law);
        fs::write(&file, r#"{"url": "a", "domain": "art"}"#).unwrap();
        assert_ne!(key(&config).unwrap(), law);
    }
}
