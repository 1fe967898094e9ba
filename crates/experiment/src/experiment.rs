//! Reading an experiment file and expanding it into cells.

mod evaluations;
mod lengths;
mod sweeps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use dipaco_config::{ConfigPart, Pretrained, RunConfig};
use dipaco_topology::Topology;
use toml::Table;

use crate::cell::{Cell, CellEvaluation, EvaluatedModel};
use crate::error::ExperimentError;
use crate::file::{EvaluationEntry, File, Run, Variant};

/// Largest number of cells of an experiment. A larger number is a mistake in the file.
const MOST_CELLS: usize = 10_000;

/// An experiment: runs × routers × seeds, each combination with its evaluations.
#[derive(Clone, Debug)]
pub struct Experiment {
    path: PathBuf,
    file: File,
    /// The base configuration, and that of all runs.
    common: Vec<ConfigPart>,
    pretrained: Option<Pretrained>,
    /// The values that sweeps have chosen, by run.
    chosen: BTreeMap<String, Table>,
}

impl Experiment {
    /// Reads an experiment file and its base configuration.
    ///
    /// # Errors
    /// When a file can't be read, is not valid TOML, has unknown keys, or refers to an undefined name.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        Self::parse(&read(path)?, path)
    }

    /// Parses `text`, the content of the file `path`. The base configuration is read from the folder of `path`.
    ///
    /// # Errors
    /// As [`Experiment::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ExperimentError> {
        let wrong = |source| ExperimentError::Toml { path: path.to_owned(), source: Box::new(source) };
        let file: File = toml::from_str(text).map_err(wrong)?;
        let mut common = Vec::new();
        if let Some(name) = &file.base {
            let base = path.parent().unwrap_or(Path::new("")).join(name);
            common.push(ConfigPart::of_file(read(&base)?, &base));
        }
        common.push(ConfigPart::named(file.configuration.to_string(), "[configuration]"));
        let experiment =
            Self { path: path.to_owned(), file, common, pretrained: None, chosen: BTreeMap::new() };
        experiment.check()?;
        Ok(experiment)
    }

    /// The experiment with a pretrained model, which gives all runs the shape of their paths.
    #[must_use]
    pub fn beginning_with(self, model: Pretrained) -> Self {
        Self { pretrained: Some(model), ..self }
    }

    /// Name under which results are stored.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Line above the table.
    #[must_use]
    pub fn title(&self) -> &str {
        if self.file.title.is_empty() { &self.file.name } else { &self.file.title }
    }

    /// Notes below the table, in Markdown.
    #[must_use]
    pub fn notes(&self) -> &str {
        self.file.notes.trim()
    }

    /// The error of an experiment whose values do not fit together.
    #[must_use]
    pub fn unusable(&self, problem: String) -> ExperimentError {
        ExperimentError::Experiment { path: self.path.clone(), problem }
    }

    /// Name of the run that the other runs are compared with.
    #[must_use]
    pub fn baseline(&self) -> &str {
        let first = self.file.runs.first().map_or("", |run| &run.name);
        self.file.baseline.as_deref().unwrap_or(first)
    }

    /// All cells of the runs, seed by seed, so that an interrupted experiment has all runs of the first seeds. A run has the
    /// values that [`Experiment::choose`] gave it.
    ///
    /// # Errors
    /// [`ExperimentError::Configuration`] for the first run with an unusable configuration, [`ExperimentError::Experiment`] when
    /// an ensemble has more paths than its run, early stopping has no held-out documents, or an evaluation would read sequences of different lengths because none is set.
    pub fn cells(&self) -> Result<Vec<Cell>, ExperimentError> {
        let mut seeds: Vec<u64> = Vec::new();
        for seed in self.file.runs.iter().flat_map(|run| self.seeds_of(run)) {
            if !seeds.contains(seed) {
                seeds.push(*seed);
            }
        }
        let mut cells = Vec::new();
        for seed in seeds {
            for run in self.file.runs.iter().filter(|run| self.seeds_of(run).contains(&seed)) {
                cells.extend(self.cells_of(run, &self.chosen_for(run), seed)?);
            }
        }
        self.check_lengths(&cells)?;
        Ok(cells)
    }

    fn seeds_of<'a>(&'a self, run: &'a Run) -> &'a [u64] {
        run.seeds.as_deref().unwrap_or(&self.file.seeds)
    }

    /// The values that sweeps have chosen for a run.
    fn chosen_for(&self, run: &Run) -> Table {
        self.chosen.get(&run.name).cloned().unwrap_or_default()
    }

    /// The cells of a run with one seed, one per router. The values of `over` win over all others.
    fn cells_of(&self, run: &Run, over: &Table, seed: u64) -> Result<Vec<Cell>, ExperimentError> {
        let plain = self.config(run, None, None, over, seed)?;
        let topology = Topology::new(&plain.topology, plain.model.blocks);
        let several = topology.is_ok_and(|topology| topology.paths() > 1);
        let routers: Vec<Option<&Variant>> = match &run.routers {
            Some(names) if names.is_empty() => vec![None],
            None if !several || self.file.routers.is_empty() => vec![None],
            Some(names) => {
                self.file.routers.iter().filter(|router| names.contains(&router.name)).map(Some).collect()
            }
            None => self.file.routers.iter().map(Some).collect(),
        };
        let evaluations = self.file.evaluations.iter();
        let evaluations: Vec<&EvaluationEntry> = match &run.evaluations {
            Some(names) => evaluations.filter(|entry| names.contains(&entry.name)).collect(),
            None if several => evaluations.collect(),
            None => evaluations.take(1).collect(),
        };
        let mut cells = Vec::new();
        for router in routers {
            let evaluation = |entry: Option<&&EvaluationEntry>| {
                Ok::<_, ExperimentError>(CellEvaluation {
                    name: entry.map_or_else(String::new, |entry| entry.name.clone()),
                    model: entry.map_or_else(EvaluatedModel::default, |entry| entry.model),
                    early_stopping: entry.is_some_and(|entry| entry.early_stopping),
                    config: self.config(run, router, entry.copied(), over, seed)?,
                })
            };
            let evaluations = if evaluations.is_empty() {
                vec![evaluation(None)?]
            } else {
                evaluations.iter().map(|entry| evaluation(Some(entry))).collect::<Result<_, _>>()?
            };
            let cell = Cell {
                run: run.name.clone(),
                router: router.map_or_else(String::new, |router| router.name.clone()),
                swept: String::new(),
                seed,
                config: self.config(run, router, None, over, seed)?,
                evaluations,
            };
            self.check_evaluations(&cell)?;
            cells.push(cell);
        }
        Ok(cells)
    }

    /// Makes the configuration of base, `[configuration]`, run, router, evaluation and `over`, later values over earlier ones,
    /// and sets the seed.
    fn config(
        &self,
        run: &Run,
        router: Option<&Variant>,
        evaluation: Option<&EvaluationEntry>,
        over: &Table,
        seed: u64,
    ) -> Result<RunConfig, ExperimentError> {
        let named = |kind: &str, name: &str, table: &Table| {
            ConfigPart::named(table.to_string(), format!("{kind} `{name}`"))
        };
        let mut parts = self.common.clone();
        parts.push(named("run", &run.name, &run.configuration));
        parts.extend(router.map(|router| named("router", &router.name, &router.configuration)));
        parts.extend(evaluation.map(|entry| named("evaluation", &entry.name, &entry.configuration)));
        parts.push(ConfigPart::named(over.to_string(), "[[sweeps]]"));
        // TOML has no integer above 2^63 - 1.
        let seed = i64::try_from(seed).unwrap_or(i64::MAX);
        parts.push(ConfigPart::named(format!("run.seed = {seed}\nrouting.seed = {seed}\n"), "seeds"));
        let mut names = vec![run.name.as_str()];
        names.extend(router.map(|router| router.name.as_str()));
        names.extend(evaluation.map(|evaluation| evaluation.name.as_str()));
        RunConfig::from_parts(&parts, self.pretrained.as_ref()).map_err(|source| {
            ExperimentError::Configuration { path: self.path.clone(), run: names.join(" · "), source }
        })
    }

    fn check(&self) -> Result<(), ExperimentError> {
        let file = &self.file;
        let wrong = |problem: String| Err(ExperimentError::Experiment { path: self.path.clone(), problem });
        if file.name.is_empty() || !file.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            return wrong(format!("`{}` can't be a name: use letters, digits, - and _", file.name));
        }
        if file.runs.is_empty() || file.runs.iter().any(|run| self.seeds_of(run).is_empty()) {
            return wrong("there is nothing to run: add at least one run and one seed".into());
        }
        let own: usize =
            file.runs.iter().map(|run| self.seeds_of(run).len() * file.routers.len().max(1)).sum();
        let cells = own + self.swept_cells();
        if cells > MOST_CELLS {
            return wrong(format!(
                "{cells} cells are more than {MOST_CELLS}: use fewer runs, routers, seeds or swept values"
            ));
        }
        let runs: Vec<&str> = file.runs.iter().map(|run| run.name.as_str()).collect();
        let routers: Vec<&str> = file.routers.iter().map(|router| router.name.as_str()).collect();
        let evaluations: Vec<&str> = file.evaluations.iter().map(|entry| entry.name.as_str()).collect();
        for (kind, names) in [("run", &runs), ("router", &routers), ("evaluation", &evaluations)] {
            let mut seen = BTreeSet::new();
            if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
                return wrong(format!("two {kind}s have the name `{twice}`: give each its own name"));
            }
            if names.contains(&"") {
                return wrong(format!("a {kind} has an empty name: give it a name"));
            }
        }
        if let Some(baseline) = &file.baseline
            && !runs.contains(&baseline.as_str())
        {
            return wrong(format!("baseline: there is no run `{baseline}`"));
        }
        for run in &file.runs {
            for (kind, wanted, known) in
                [("router", &run.routers, &routers), ("evaluation", &run.evaluations, &evaluations)]
            {
                let wanted = wanted.iter().flatten();
                if let Some(name) = wanted.clone().find(|name| !known.contains(&name.as_str())) {
                    return wrong(format!("run `{}`: there is no {kind} `{name}`", run.name));
                }
            }
        }
        self.check_sweeps()
    }
}

fn read(path: &Path) -> Result<String, ExperimentError> {
    std::fs::read_to_string(path).map_err(|source| ExperimentError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
