//! A cell from its configuration to its results, by the same steps as the commands.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use dipaco_config::RunConfig;
use dipaco_eval::Domains;
use dipaco_experiment::{
    Cell, CellResult, Facts, Measurement, cell_key, evaluation_key, seed_config, seed_key,
};

use super::bench::{Bench, Data};
use super::facts::facts;
use super::record::Record;
use crate::error::CliError;
use crate::run_directory::RunDirectory;
use crate::run_options::save_config;
use crate::steps::evaluate::{Subject, evaluate};
use crate::steps::train::{TrainOptions, train};
use crate::steps::weights::{Version, Weights};
use crate::{runtime, steps};

/// Trains and evaluates what is not finished of a cell.
pub(crate) fn finish(bench: &mut Bench<'_>, cell: &Cell) -> Result<CellResult, CliError> {
    let data = bench.data(&cell.config)?;
    let config = prepared(&cell.config, &data, &name(cell))?;
    let key = cell_key(&config, &data.all);
    let run = RunDirectory::new(bench.out.join("cells").join(&key)).with_data(Some(&data.folder));
    let mut record = Record::load(run.root())?;
    check_defaults(&run, &data, &key)?;
    let facts = match &record.trained {
        Some(facts) => facts.clone(),
        None => {
            let wire_bytes = train_cell(bench, &run, &config, &data)?;
            let phase = runtime::run(async { Ok(steps::phases::current(&run).await?) })?;
            let facts = Facts { wire_bytes, ..facts(&run, &config, phase)? };
            record.trained = Some(facts.clone());
            record.save(run.root())?;
            facts
        }
    };
    if !bench.options.keep_all {
        remove_what_only_training_needs(&run)?;
    }
    let mut measurements = Vec::new();
    for evaluation in &cell.evaluations {
        let config = prepared(&evaluation.config, &data, &config.run.name)?;
        let key = evaluation_key(&config, evaluation.early_stopping, bench.labels.as_deref());
        if !record.evaluations.contains_key(&key) {
            let version = if evaluation.early_stopping { Version::Best } else { Version::Current };
            let domains = bench.domains(&data)?;
            let found = measure(bench, &run, &config, version, domains)?;
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
        });
    }
    if !bench.options.keep_all {
        remove_scores(&run)?;
    }
    let (run, router) = (cell.run.clone(), cell.router.clone());
    Ok(CellResult { run, router, seed: cell.seed, key, facts, measurements })
}

/// A configuration with its text, vocabulary and name.
fn prepared(config: &RunConfig, data: &Data, name: &str) -> Result<RunConfig, CliError> {
    let mut config = config.clone();
    config.run.name = name.to_owned();
    config.run.directory = None;
    config.run.data = Some(data.folder.clone());
    let run = RunDirectory::new("").with_data(Some(&data.folder));
    Ok(steps::seed::with_vocabulary(&run, &config)?)
}

/// The run's name: that of the cell, in the letters that names may have.
fn name(cell: &Cell) -> String {
    let parts = [&cell.run, &cell.router, &format!("s{}", cell.seed)];
    let parts: Vec<String> = parts.iter().filter(|part| !part.is_empty()).map(|part| plain(part)).collect();
    parts.join("-")
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

/// A key says what differs from the defaults, so a default that a later version changed would give old results a new
/// meaning.
fn check_defaults(run: &RunDirectory, data: &Data, key: &str) -> Result<(), CliError> {
    let file = run.config();
    let Ok(text) = fs::read_to_string(&file) else { return Ok(()) };
    let made = RunConfig::from_toml(&text, &file).ok().map(|made| cell_key(&made, &data.all));
    if made.as_deref() == Some(key) {
        return Ok(());
    }
    Err(CliError::Usage {
        message: format!(
            "{} was made by a version of this program with other defaults",
            run.root().display()
        ),
        remedy: "remove this folder; it is then trained again".into(),
    })
}

/// Everything up to the trained paths. Each step passes over what is done, so an interrupted cell goes on. Returns the
/// bytes on the wire when the training was not interrupted.
fn train_cell(
    bench: &Bench<'_>,
    run: &RunDirectory,
    config: &RunConfig,
    data: &Data,
) -> Result<Option<u64>, CliError> {
    let seed = seed(bench, config, data)?;
    save_config(run, config)?;
    runtime::run(async { Ok(steps::seed::adopt(run, config, &seed).await?) })?;
    let flag = bench.interrupt.flag();
    let (own, own_config, progress) = (run.clone(), config.clone(), bench.progress.clone());
    runtime::run(async {
        let weights = Weights::open(&own, &own_config, Version::Current).await?;
        runtime::blocking(move || {
            steps::route::fit(&own, &own_config, &weights, &progress, &flag)?;
            steps::route::assign(&own, 0, &weights, &progress, &flag)?;
            Ok(())
        })
        .await
    })?;
    let how = TrainOptions {
        workers: bench.options.workers.max(1),
        listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: Vec::new(),
        resume: true,
        stop_at_phase: false,
        device: bench.options.device.choice(),
    };
    let token = bench.interrupt.token();
    let summary = runtime::run(async { Ok(train(run, config, &how, bench.progress, token).await?) })?;
    if !summary.finished {
        return Err(CliError::Interrupted);
    }
    let whole = (summary.new_rounds - f64::from(config.train.rounds)).abs() < 1e-9;
    Ok(whole.then(|| summary.bytes_sent + summary.bytes_received))
}

/// The seed model that cells of these settings share.
fn seed(bench: &Bench<'_>, config: &RunConfig, data: &Data) -> Result<RunDirectory, CliError> {
    let key = seed_key(config, &data.train);
    let run = RunDirectory::new(bench.out.join("seeds").join(key)).with_data(Some(&data.folder));
    let mut own = seed_config(config);
    own.seed_model = config.seed_model.clone();
    own.run.name = format!("seed-{}", config.run.seed);
    own.run.data = config.run.data.clone();
    save_config(&run, &own)?;
    let how = steps::seed::SeedHow { restart: false, device: bench.options.device.open()? };
    let flag = bench.interrupt.flag();
    let summary =
        runtime::run(async { Ok(steps::seed::seed(&run, &own, how, bench.progress, flag).await?) })?;
    if summary.finished { Ok(run) } else { Err(CliError::Interrupted) }
}

fn measure(
    bench: &Bench<'_>,
    run: &RunDirectory,
    config: &RunConfig,
    version: Version,
    domains: Option<Arc<Domains>>,
) -> Result<dipaco_eval::Evaluation, CliError> {
    let flag = bench.interrupt.flag();
    let (run, config, progress) = (run.clone(), config.clone(), bench.progress.clone());
    runtime::run(async {
        let subject = match config.evaluation.reroute_tokens {
            0 => Subject::Routed,
            tokens => {
                // The router learns from the paths as they are now, whichever versions are evaluated.
                let weights = Weights::open(&run, &config, Version::Current).await?;
                let (run, config, progress, flag) =
                    (run.clone(), config.clone(), progress.clone(), flag.clone());
                let fit = move || {
                    Ok(steps::transformer_router::fit(&run, &config, &weights, &progress, &flag)
                        .map(|_| ())?)
                };
                runtime::blocking(fit).await?;
                Subject::Rerouted(tokens)
            }
        };
        let weights = Weights::open(&run, &config, version).await?;
        let work =
            move || Ok(evaluate(&run, &config, &weights, subject, domains.as_deref(), &progress, &flag)?);
        runtime::blocking(work).await
    })
}

/// Removes what paths made of the reserved documents, once every router that learns from it is there.
fn remove_scores(run: &RunDirectory) -> Result<(), CliError> {
    for phase in (0..).map(|phase| run.routing(phase)).take_while(|phase| phase.root().exists()) {
        gone(&phase.scores(), fs::remove_dir_all(phase.scores()))?;
    }
    Ok(())
}

/// Removes training shards and the paths' moments, which take most of a finished run's space. Evaluating, serving and
/// exporting do not need them.
fn remove_what_only_training_needs(run: &RunDirectory) -> Result<(), CliError> {
    for folder in [run.store().join("paths"), run.shard_cache()] {
        gone(&folder, fs::remove_dir_all(&folder))?;
    }
    for phase in (0..).map(|phase| run.routing(phase)).take_while(|phase| phase.root().exists()) {
        let shards = phase.train();
        let failed = |source| CliError::Io { action: "list", path: shards.clone(), source };
        for entry in fs::read_dir(&shards).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // The reserved documents stay: the transformer router is fitted on them.
            if name.starts_with("path-") {
                gone(&file, fs::remove_file(&file))?;
            }
        }
    }
    Ok(())
}

/// What was not there need not be removed.
fn gone(path: &Path, result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(CliError::Io { action: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
