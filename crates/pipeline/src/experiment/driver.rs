//! All cells of an experiment, one after the other: those of its sweeps, then those of its runs.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::path::{Path, PathBuf};

use dipaco_eval::{Evaluation, PairedDifference};
use dipaco_experiment::{
    Cell, CellResult, DocumentDifference, Experiment, ExperimentTable, Measurement, Results, Selection,
    Sweep, SweepResult,
};

use super::cell;
use super::check::check_evaluations;
use super::folder::ExperimentFolder;
use super::record::write_json;
use crate::charts::of_results;
use crate::error::PipelineError;
use crate::label_file::label_file;
use crate::{files, labels};

/// The end of an experiment.
#[derive(Clone, Debug)]
pub struct ExperimentOutcome {
    /// Results of the finished cells.
    pub results: Results,
    /// Number of cells, with those of sweeps.
    pub cells: usize,
    /// Number of cells that failed. Each failure is logged.
    pub failed: usize,
}

/// Finishes the selected cells of an experiment, and writes results and table into the folder before the first and after each, and
/// charts at the end. The sweeps of the selected runs come first, because the cells of these runs have the chosen values. Cells
/// that are finished are not repeated. The results also have the sweeps and cells that are not selected but finished. Blocks:
/// call it from a thread that may, outside the tokio runtime.
///
/// # Errors
/// [`PipelineError::Interrupted`] when the work was asked to stop, and the errors of the experiment, of its label files and of
/// writing results.
/// A cell that fails does not end the experiment.
pub fn run(
    folder: &mut ExperimentFolder,
    experiment: &Experiment,
    selection: &Selection,
) -> Result<ExperimentOutcome, PipelineError> {
    let (sweeps, cells) = (selection.sweeps(experiment)?, selection.cells(experiment)?);
    let all = || sweeps.iter().flat_map(Sweep::cells).chain(&cells);
    check_evaluations(experiment, all(), folder.options.model.is_some())?;
    let missing: Vec<String> = all().map(Cell::label).collect();
    let mut work = Work::new(folder, experiment, missing);
    // What is finished is published before anything is trained: the results of an interrupted command have it too.
    work.pass(experiment)?;
    // The turn of a cell with a label file may come after days, and that of the command's label file after the first training.
    let of_shards = all().filter_map(|it| label_file(&it.config));
    let of_command = work.folder.options.labels.as_deref();
    of_shards.chain(of_command).collect::<BTreeSet<&Path>>().into_iter().try_for_each(labels::check_file)?;
    work.selection = Some(selection);
    work.pass(experiment)?;
    for chart in of_results(&work.results) {
        chart.write(work.folder.out())?;
    }
    Ok(ExperimentOutcome { results: work.results, cells: work.cells, failed: work.failed })
}

/// The work on an experiment so far.
struct Work<'a> {
    folder: &'a mut ExperimentFolder,
    /// The cells to finish; `None` in a pass that only reads.
    selection: Option<&'a Selection>,
    results: Results,
    /// The evaluations of each cell of the results.
    evaluations: Vec<Vec<Evaluation>>,
    /// The finished cells of sweeps with their results, by their labels.
    swept: BTreeMap<String, (Cell, CellResult)>,
    /// Number of cells in all.
    cells: usize,
    begun: usize,
    failed: usize,
}

impl<'a> Work<'a> {
    /// The work before the first pass. `missing` are the cells to finish.
    fn new(folder: &'a mut ExperimentFolder, experiment: &Experiment, missing: Vec<String>) -> Self {
        Self {
            folder,
            selection: None,
            cells: missing.len(),
            begun: 0,
            failed: 0,
            results: Results {
                name: experiment.name().to_owned(),
                title: experiment.title().to_owned(),
                notes: experiment.notes().to_owned(),
                baseline: experiment.baseline().to_owned(),
                program: env!("CARGO_PKG_VERSION").to_owned(),
                command: command(experiment),
                missing,
                sweeps: Vec::new(),
                cells: Vec::new(),
            },
            evaluations: Vec::new(),
            swept: BTreeMap::new(),
        }
    }

    /// Goes through the sweeps and the cells of an experiment once: finishes what is selected, reads what is finished, and
    /// writes the results.
    fn pass(&mut self, experiment: &Experiment) -> Result<(), PipelineError> {
        let selection = self.selection;
        let needed = match selection {
            Some(selection) => selection.sweeps(experiment)?,
            None => Vec::new(),
        };
        let sweeps = experiment.sweeps()?;
        let mut experiment = experiment.clone();
        // Runs without a chosen value. Their cells wait until the sweep has a result.
        let mut waiting = BTreeSet::new();
        for (place, planned) in sweeps.iter().enumerate() {
            if waiting.contains(&planned.run) {
                continue;
            }
            let selected = needed.iter().any(|it| it.run == planned.run && it.key == planned.key);
            // An earlier sweep may have chosen another value of this run.
            let sweep = experiment.sweep(&planned.run, &planned.key)?.unwrap_or_else(|| planned.clone());
            let Some(result) = self.sweep(&sweep, selected)? else {
                waiting.insert(sweep.run);
                continue;
            };
            if result.chosen.is_none() {
                waiting.insert(sweep.run);
            }
            experiment.choose(&result);
            self.add_sweep(&sweeps[..place], result);
            if selected {
                self.publish()?;
            }
        }
        let cells = experiment.cells()?;
        for (place, cell) in cells.iter().enumerate() {
            let selected = selection.is_some_and(|selection| selection.has(cell));
            if waiting.contains(&cell.run) {
                continue;
            }
            if let Some(known) = self.results.cells.iter().find(|result| is_of(result, cell)).cloned() {
                if selected {
                    self.end(cell, &known)?;
                }
                continue;
            }
            if let Some((result, evaluations)) = self.result(cell, selected)? {
                self.add_cell(&cells[..place], cell, result, evaluations);
            }
            if selected {
                self.publish()?;
            }
        }
        self.publish()
    }

    /// Chooses the value of a sweep from its cells; `None` for a sweep that is not selected and has an unfinished cell.
    fn sweep(&mut self, sweep: &Sweep, selected: bool) -> Result<Option<SweepResult>, PipelineError> {
        let (mut measured, mut unfinished) = (Vec::new(), false);
        for trial in &sweep.trials {
            let mut found = Vec::new();
            for cell in &trial.cells {
                let result = self.swept_result(cell, selected)?;
                unfinished |= result.is_none();
                found.extend(result.and_then(|result| Some(result.measurements.first()?.perplexity)));
                if selected {
                    self.publish()?;
                }
            }
            measured.push(found);
        }
        Ok((selected || !unfinished).then(|| sweep.judge(&measured)))
    }

    /// Takes the result of a sweep over if it is new. `earlier` are the sweeps before it in the file.
    fn add_sweep(&mut self, earlier: &[Sweep], result: SweepResult) {
        let known = &mut self.results.sweeps;
        if known.iter().any(|it| it.run == result.run && it.key == result.key) {
            return;
        }
        let of = format!("{}, {}", result.run, result.key);
        match &result.chosen {
            Some(value) => self.folder.progress.line(&format!("{of}: {value} is the best value")),
            None => tracing::error!("{of}: no value has a result, so the cells of this run wait"),
        }
        let is_earlier =
            |it: &&SweepResult| earlier.iter().any(|sweep| sweep.run == it.run && sweep.key == it.key);
        let place = known.iter().take_while(is_earlier).count();
        known.insert(place, result);
    }

    /// Takes a finished cell over. `earlier` are the cells before it in the file.
    fn add_cell(&mut self, earlier: &[Cell], cell: &Cell, result: CellResult, evaluations: Vec<Evaluation>) {
        // Another experiment may have trained the cell. How often a training is measured is not in the key.
        if cell.config.train.validate_every > 0 && result.facts.validation.is_empty() {
            let (label, folder) = (cell.label(), cell::root(self.folder, &result.key));
            tracing::warn!(
                "{label} was trained without measurements on validation text, so its perplexities during training are missing: \
                 remove {} to train it again",
                folder.display()
            );
        }
        if cell.run == self.results.baseline {
            // It may come before the cell that the others were compared with.
            let of_seed = self.results.cells.iter_mut().filter(|known| known.seed == cell.seed);
            of_seed.flat_map(|known| &mut known.measurements).for_each(|found| found.against_baseline = None);
        }
        let is_earlier = |known: &&CellResult| earlier.iter().any(|cell| is_of(known, cell));
        let place = self.results.cells.iter().take_while(is_earlier).count();
        self.results.cells.insert(place, result);
        self.evaluations.insert(place, evaluations);
        self.compare(cell.seed);
    }

    /// The result of a cell of a sweep. What an earlier pass found is not read again.
    fn swept_result(&mut self, cell: &Cell, selected: bool) -> Result<Option<CellResult>, PipelineError> {
        let label = cell.label();
        // With another chosen value of an earlier sweep, a cell of the same label is another one.
        let known = self.swept.get(&label).filter(|(known, _)| known == cell);
        if let Some(result) = known.map(|(_, result)| result.clone()) {
            if selected {
                self.end(cell, &result)?;
            }
            return Ok(Some(result));
        }
        let found = self.result(cell, selected)?.map(|(result, _)| result);
        if let Some(result) = &found {
            self.swept.insert(label, (cell.clone(), result.clone()));
        }
        Ok(found)
    }

    /// The result of a cell; `None` for a cell that failed, or that is neither selected nor finished.
    fn result(
        &mut self,
        cell: &Cell,
        selected: bool,
    ) -> Result<Option<(CellResult, Vec<Evaluation>)>, PipelineError> {
        let found = if selected { self.finish(cell)? } else { self.read(cell)? };
        if found.is_some() {
            let label = cell.label();
            self.results.missing.retain(|missing| *missing != label);
        }
        Ok(found)
    }

    /// Reads a cell; `None` if it is not finished.
    fn read(&mut self, cell: &Cell) -> Result<Option<(CellResult, Vec<Evaluation>)>, PipelineError> {
        match cell::finished(self.folder, cell) {
            Err(_) if self.folder.cancel.requested() => Err(PipelineError::Interrupted),
            // A cell that the command does not need is no reason to end it. The pass that only reads leaves the word to the
            // next one.
            Err(error) => {
                if self.selection.is_some() {
                    let (label, error) = (cell.label(), chain(&error));
                    tracing::warn!("{label}, which is not selected, can't be read: {error}");
                }
                Ok(None)
            }
            found => found,
        }
    }

    /// Finishes a cell; `None` if it failed.
    fn finish(&mut self, cell: &Cell) -> Result<Option<(CellResult, Vec<Evaluation>)>, PipelineError> {
        let found = self.attempt(cell, |folder| cell::finish(folder, cell))?;
        if let Some((result, _)) = &found {
            self.folder.progress.line(&describe(result));
        }
        Ok(found)
    }

    /// Ends a selected cell that an earlier pass found finished, without reading it again.
    fn end(&mut self, cell: &Cell, result: &CellResult) -> Result<(), PipelineError> {
        if self.attempt(cell, |folder| cell::end(folder, &result.key))?.is_some() {
            self.folder.progress.line(&describe(result));
        }
        Ok(())
    }

    /// Says that the work on a cell begins, and does it; `None` if it failed.
    fn attempt<T>(
        &mut self,
        cell: &Cell,
        work: impl FnOnce(&mut ExperimentFolder) -> Result<T, PipelineError>,
    ) -> Result<Option<T>, PipelineError> {
        self.begun += 1;
        let (place, label) =
            (format!("{}, cell {} of {}", self.results.name, self.begun, self.cells), cell.label());
        self.folder.say(&format!("{place}: {label}"))?;
        match work(self.folder) {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.folder.cancel.requested() || matches!(error, PipelineError::Interrupted) => {
                Err(PipelineError::Interrupted)
            }
            // The other cells may still succeed, and a night's results are worth more than an early end.
            Err(error) => {
                self.failed += 1;
                tracing::error!("{place}, {label}, failed: {}", chain(&error));
                Ok(None)
            }
        }
    }

    /// Compares the cells of a seed with the baseline of this seed, document by document.
    fn compare(&mut self, seed: u64) {
        let of_baseline = |cell: &CellResult| cell.run == self.results.baseline && cell.seed == seed;
        let Some(place) = self.results.cells.iter().position(of_baseline) else { return };
        let Some(base) = self.evaluations[place].first() else { return };
        let cells = self.results.cells.iter_mut().zip(&self.evaluations);
        for (cell, evaluations) in cells.filter(|(cell, _)| cell.seed == seed) {
            for (found, evaluation) in cell.measurements.iter_mut().zip(evaluations) {
                if found.against_baseline.is_none() && !std::ptr::eq(evaluation, base) {
                    found.against_baseline = difference(evaluation, base);
                }
            }
        }
    }

    /// Writes results and table. Results of an earlier command stay until this one has some.
    fn publish(&self) -> Result<(), PipelineError> {
        let file = results_file(self.folder.out(), &self.results.name);
        // Cells of a text that can't be used have no result, and neither have their sweeps.
        let none =
            self.results.cells.is_empty() && (self.results.sweeps.is_empty() || !self.folder.has_texts());
        if none && file.exists() {
            return Ok(());
        }
        write_json(&file, &self.results)?;
        let table = ExperimentTable::of(&self.results).to_string();
        files::write(&file.with_extension("md"), table.as_bytes())
    }
}

/// True for the result of a cell.
fn is_of(result: &CellResult, cell: &Cell) -> bool {
    result.run == cell.run && result.router == cell.router && result.seed == cell.seed
}

/// The results of an experiment in the folder `out`.
pub fn results_file(out: &Path, experiment: &str) -> PathBuf {
    out.join(format!("{experiment}.json"))
}

/// The command that makes an experiment's results, without the paths of this machine.
fn command(experiment: &Experiment) -> String {
    format!("dipaco experiment run {}.toml --data TRAIN --validation VALIDATION", experiment.name())
}

/// The difference of two evaluations on the same documents.
fn difference(model: &Evaluation, base: &Evaluation) -> Option<DocumentDifference> {
    let PairedDifference { bits_per_byte, low, high } = PairedDifference::between(model, base)?;
    Some(DocumentDifference { bits_per_byte, low, high })
}

/// A cell's results in one line.
fn describe(result: &CellResult) -> String {
    let describe = |found: &Measurement| match found.evaluation.as_str() {
        "" => format!("perplexity {:.3}", found.perplexity),
        name => format!("{name} {:.3}", found.perplexity),
    };
    result.measurements.iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// An error with its causes, in one line.
fn chain(error: &PipelineError) -> String {
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

#[cfg(test)]
mod tests;
