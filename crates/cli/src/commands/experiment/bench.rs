//! The folder in which experiments work: prepared text, seed models and cells, each made once.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use dipaco_config::RunConfig;
use dipaco_eval::Domains;
use dipaco_experiment::{Cell, CellResult, Experiment, Results, Table, data_key};
use dipaco_shards::TokenFile;
use dipaco_telemetry::{Progress, human};

use super::record::write_json;
use super::{RunExperiment, cell, results_file};
use crate::commands::prepare::summary;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_directory::RunDirectory;
use crate::steps;
use crate::steps::charts::of_results;

/// What the cells of all experiments share.
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a RunExperiment,
    pub(crate) progress: &'a Progress,
    pub(crate) interrupt: Interrupt,
    /// The folder, absolute: runs name the prepared text by it.
    pub(crate) out: PathBuf,
    begun: Instant,
    prepared: BTreeMap<String, Data>,
    /// Hash of the label file.
    pub(crate) labels: Option<String>,
    /// Labels of the validation documents, by folder of prepared text.
    domains: BTreeMap<PathBuf, Arc<Domains>>,
    /// Held while this process works in the folder.
    _lock: File,
}

/// Prepared text.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Content hash of the training text.
    pub(crate) train: String,
    /// Content hashes of training and validation text.
    pub(crate) all: String,
}

impl<'a> Bench<'a> {
    /// Opens the folder for this process alone.
    pub(crate) fn open(
        options: &'a RunExperiment,
        progress: &'a Progress,
        interrupt: Interrupt,
    ) -> Result<Self, CliError> {
        let folder = &options.out;
        let failed = |action| move |source| CliError::Io { action, path: folder.clone(), source };
        std::fs::create_dir_all(folder).map_err(failed("create"))?;
        let out = folder.canonicalize().map_err(failed("find"))?;
        let lock = File::create(out.join("lock")).map_err(failed("lock"))?;
        if let Err(std::fs::TryLockError::WouldBlock) = lock.try_lock() {
            return Err(CliError::Usage {
                message: format!("another process runs experiments in {}", folder.display()),
                remedy: "wait for it, or give another folder with --out".into(),
            });
        }
        let labels = match &options.labels {
            Some(file) => {
                let read = std::fs::read(file);
                let failed = |source| CliError::Io { action: "read", path: file.clone(), source };
                Some(blake3::hash(&read.map_err(failed)?).to_hex().to_string())
            }
            None => None,
        };
        let (begun, prepared, domains) = (Instant::now(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { options, progress, interrupt, out, begun, prepared, labels, domains, _lock: lock })
    }

    /// Finishes the cells of an experiment; gives the results and how many cells failed.
    pub(crate) fn run(
        &mut self,
        experiment: &Experiment,
        cells: &[Cell],
    ) -> Result<(Results, usize), CliError> {
        let mut results = Results {
            name: experiment.name().to_owned(),
            title: experiment.title().to_owned(),
            notes: experiment.notes().to_owned(),
            baseline: experiment.baseline().to_owned(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            command: command(experiment),
            missing: cells.iter().map(Cell::label).collect(),
            cells: Vec::new(),
        };
        let mut failed = 0;
        for (index, cell) in cells.iter().enumerate() {
            let place = format!("{}, cell {} of {}", experiment.name(), index + 1, cells.len());
            self.say(&format!("{place}: {}", cell.label()))?;
            match cell::finish(self, cell) {
                Ok(result) => {
                    self.progress.line(&describe(&result));
                    results.missing.retain(|label| *label != cell.label());
                    results.cells.push(result);
                    self.publish(&results)?;
                }
                Err(error) if self.interrupt.is_set() || matches!(error, CliError::Interrupted) => {
                    return Err(CliError::Interrupted);
                }
                // The others may work: a night's results are not given up for one.
                Err(error) => {
                    failed += 1;
                    tracing::error!("{place}, {}, failed: {}", cell.label(), chain(&error));
                }
            }
        }
        self.publish(&results)?;
        for chart in of_results(&results) {
            chart.write(&self.out)?;
        }
        Ok((results, failed))
    }

    /// Writes results and table.
    fn publish(&self, results: &Results) -> Result<(), CliError> {
        let file = results_file(&self.out, &results.name);
        write_json(&file, results)?;
        steps::files::write(&file.with_extension("md"), Table::of(results).to_string().as_bytes())?;
        Ok(())
    }

    /// The text as this configuration prepares it.
    pub(crate) fn data(&mut self, config: &RunConfig) -> Result<Data, CliError> {
        let (inputs, validation) = (&self.options.data, &self.options.validation);
        let key = data_key(config, inputs, validation);
        if let Some(data) = self.prepared.get(&key) {
            return Ok(data.clone());
        }
        let folder = self.out.join("data").join(&key);
        let run = RunDirectory::new(&self.out).with_data(Some(&folder));
        let flag = self.interrupt.flag();
        let report = steps::prepare::prepare(&run, config, inputs, validation, self.progress, &flag)?;
        self.progress.line(&summary(&report));
        let hash = |file: &Path| Ok::<_, CliError>(TokenFile::open(file)?.content_hash().to_owned());
        let train = hash(&run.train_tokens())?;
        let all = format!("{train} {}", hash(&run.validation_tokens())?);
        let data = Data { folder, train, all };
        self.prepared.insert(key, data.clone());
        Ok(data)
    }

    /// What the validation documents are about; `None` without a label file.
    pub(crate) fn domains(&mut self, data: &Data) -> Result<Option<Arc<Domains>>, CliError> {
        let Some(labels) = &self.options.labels else { return Ok(None) };
        if let Some(known) = self.domains.get(&data.folder) {
            return Ok(Some(known.clone()));
        }
        let run = RunDirectory::new(&self.out).with_data(Some(&data.folder));
        let flag = self.interrupt.flag();
        let found = Arc::new(steps::labels::domains(&run, labels, &[], self.progress, &flag)?);
        self.domains.insert(data.folder.clone(), found.clone());
        Ok(Some(found))
    }

    pub(crate) fn say(&self, text: &str) -> Result<(), CliError> {
        if self.interrupt.is_set() {
            return Err(CliError::Interrupted);
        }
        self.progress.line(&format!("[{:>5}] {text}", human::duration(self.begun.elapsed())));
        Ok(())
    }
}

/// The command that makes an experiment's results, without the places of this machine.
fn command(experiment: &Experiment) -> String {
    format!("dipaco experiment run {}.toml --data TRAIN --validation VALIDATION", experiment.name())
}

/// A cell's results in one line.
fn describe(result: &CellResult) -> String {
    let one = |found: &dipaco_experiment::Measurement| match found.evaluation.as_str() {
        "" => format!("perplexity {:.3}", found.perplexity),
        name => format!("{name} {:.3}", found.perplexity),
    };
    result.measurements.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// An error with its causes, in one line.
fn chain(error: &CliError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        // Some libraries repeat their source in their own message.
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = next.source();
    }
    text
}
