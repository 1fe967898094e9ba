//! The sweeps of an experiment file.

use std::collections::BTreeSet;

use dipaco_config::key_doc;
use toml::{Table, Value};

use super::Experiment;
use crate::cell::Cell;
use crate::error::ExperimentError;
use crate::file::{Run, SweepEntry};
use crate::merge::merge;
use crate::sweep::{Sweep, SweepResult, Trial};

/// Sections whose keys say where a run lies, which text it reads and how it is measured.
const NOT_TRAINED: [&str; 3] = ["run.", "prepare.", "evaluation."];

impl Experiment {
    /// The sweeps in the order of the file, run by run. A run has the values that [`Experiment::choose`] gave it.
    ///
    /// # Errors
    /// [`ExperimentError::Configuration`] for the first value that makes a run's configuration unusable, and
    /// [`ExperimentError::Experiment`] when an ensemble has more paths than its run, or the values give sequences of different
    /// lengths because none is set.
    pub fn sweeps(&self) -> Result<Vec<Sweep>, ExperimentError> {
        self.swept().map(|(entry, run)| self.sweep_of(entry, run)).collect()
    }

    /// The sweep of `key` for the run of this name; `None` if the file has none.
    ///
    /// # Errors
    /// As [`Experiment::sweeps`].
    pub fn sweep(&self, run: &str, key: &str) -> Result<Option<Sweep>, ExperimentError> {
        let found = self.swept().find(|(entry, of)| entry.key == key && of.name == run);
        found.map(|(entry, run)| self.sweep_of(entry, run)).transpose()
    }

    /// Gives a run the value that its sweep has chosen. Nothing changes if it has chosen none.
    pub fn choose(&mut self, result: &SweepResult) {
        if let Some(value) = &result.chosen {
            let values = self.chosen.entry(result.run.clone()).or_default();
            merge(values, &nested(&result.key, value));
        }
    }

    fn swept(&self) -> impl Iterator<Item = (&SweepEntry, &Run)> {
        self.file.sweeps.iter().flat_map(move |entry| {
            entry.runs.iter().filter_map(move |name| {
                let run = self.file.runs.iter().find(|run| run.name == *name)?;
                Some((entry, run))
            })
        })
    }

    fn sweep_of(&self, entry: &SweepEntry, run: &Run) -> Result<Sweep, ExperimentError> {
        let seeds = entry.seeds.as_deref().unwrap_or(self.seeds_of(run).get(..1).unwrap_or_default());
        let trials = entry.values.iter().map(|value| self.trial(entry, run, value, seeds));
        let trials: Vec<Trial> = trials.collect::<Result<_, _>>()?;
        self.check_lengths(trials.iter().flat_map(|trial| &trial.cells))?;
        Ok(Sweep { run: run.name.clone(), key: entry.key.clone(), seeds: seeds.to_vec(), trials })
    }

    fn trial(
        &self,
        entry: &SweepEntry,
        run: &Run,
        value: &Value,
        seeds: &[u64],
    ) -> Result<Trial, ExperimentError> {
        let swept = format!("{} = {value}", entry.key);
        let cells = |over: &Table, seed: u64| {
            self.cells_of(run, over, seed).map_err(|error| match error {
                ExperimentError::Configuration { path, run, source } => {
                    ExperimentError::Configuration { path, run: format!("{run} · {swept}"), source }
                }
                other => other,
            })
        };
        let value_only = nested(&entry.key, value);
        let mut own = self.chosen_for(run);
        let mut over = own.clone();
        merge(&mut own, &value_only);
        merge(&mut over, &entry.configuration);
        merge(&mut over, &value_only);
        let mut found = Vec::new();
        for &seed in seeds {
            // The run's own cells may get this value. A mistake must be found before anything is trained.
            cells(&own, seed)?;
            let first = cells(&over, seed)?.into_iter().next();
            found.extend(first.map(|mut cell| {
                cell.evaluations.truncate(1);
                Cell { swept: swept.clone(), ..cell }
            }));
        }
        Ok(Trial { value: value.clone(), cells: found })
    }

    /// The number of cells of all sweeps.
    pub(super) fn swept_cells(&self) -> usize {
        let of = |entry: &SweepEntry| {
            entry.runs.len() * entry.values.len() * entry.seeds.as_ref().map_or(1, Vec::len)
        };
        self.file.sweeps.iter().map(of).sum()
    }

    /// Checks all that can be checked without the configurations of the cells.
    pub(super) fn check_sweeps(&self) -> Result<(), ExperimentError> {
        let mut seen = BTreeSet::new();
        for entry in &self.file.sweeps {
            let key = &entry.key;
            let wrong = |problem: String| {
                let problem = format!("sweep of `{key}`: {problem}");
                Err(ExperimentError::Experiment { path: self.path.clone(), problem })
            };
            if let Some(problem) = problem_of_key(key) {
                return wrong(problem.into());
            }
            if entry.values.len() < 2 {
                return wrong("there is nothing to choose from: give two or more values".into());
            }
            let values = &entry.values;
            if let Some(twice) = (1..values.len()).find(|&index| values[..index].contains(&values[index])) {
                return wrong(format!("the value {} stands there twice: name it once", values[twice]));
            }
            if entry.runs.is_empty() || entry.seeds.as_ref().is_some_and(Vec::is_empty) {
                return wrong("there is nothing to train: name at least one run and one seed".into());
            }
            for name in &entry.runs {
                if !self.file.runs.iter().any(|run| run.name == *name) {
                    return wrong(format!("there is no run `{name}`: name runs of this file"));
                }
                if !seen.insert((name, key)) {
                    return wrong(format!("run `{name}` is swept twice: name it once"));
                }
            }
        }
        Ok(())
    }
}

/// The reason why a key can't be swept, and the remedy; `None` for a key that can.
fn problem_of_key(key: &str) -> Option<&'static str> {
    // `key_doc` also knows the elements of lists. No table replaces a single element.
    match key_doc(key).filter(|doc| doc.key == key && !key.contains('[')) {
        None => Some("no configuration has this key: name one of `dipaco config keys` that has no [] in it"),
        Some(doc) if !doc.affects_result || NOT_TRAINED.iter().any(|section| key.starts_with(section)) => {
            Some("it does not say how a run is trained: name a key that changes the trained weights")
        }
        Some(_) if key == "routing.seed" => Some("it is set by the seeds of the file: list them as `seeds`"),
        Some(_) => None,
    }
}

/// A table in which the key with this full name has this value.
fn nested(key: &str, value: &Value) -> Table {
    let (sections, name) = key.rsplit_once('.').unwrap_or(("", key));
    let last = Table::from_iter([(name.to_owned(), value.clone())]);
    let inner_to_outer = sections.rsplit('.').filter(|section| !section.is_empty());
    inner_to_outer.fold(last, |inner, section| Table::from_iter([(section.to_owned(), Value::Table(inner))]))
}

#[cfg(test)]
mod tests;
