//! Measured runs in the results of experiments, for `dipaco plan`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dipaco_experiment::{CellResult, Results};
use dipaco_plan::{FitError, MeasuredLaw, MeasuredRun, RunSize};
use thiserror::Error;

/// Why no law can be fitted to the results of experiments.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeasuredRunsError {
    /// A file can't be read.
    #[error("can't read the results {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A file of another form.
    #[error("{} has no results of `dipaco experiment`: give the NAME.json that it wrote", file.display())]
    Form {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// A run that no file has.
    #[error("no results have a run {name:?}: there are {}", known.join(", "))]
    UnknownRun {
        /// The name.
        name: String,
        /// Names of the runs.
        known: Vec<String>,
    },
    /// Runs on different text.
    #[error(
        "run {one:?} was evaluated on {tokens} tokens and {other:?} on {others}: measure all runs on the same text in the same \
         way, or choose runs with --measured-run"
    )]
    OtherText {
        /// A run.
        one: String,
        /// Its evaluated tokens.
        tokens: u64,
        /// Another run.
        other: String,
        /// The evaluated tokens of the other.
        others: u64,
    },
    /// The runs determine no law.
    #[error(transparent)]
    Fit(#[from] FitError),
}

/// The law of the runs in the results of experiments: those of these names, or all. A run with several evaluations counts with the
/// first. A training that several experiments share counts once.
///
/// # Errors
/// When a file can't be read, when no file has a run, when runs were evaluated on different text, and when the runs determine no
/// law.
pub fn measured_law(files: &[PathBuf], names: &[String]) -> Result<MeasuredLaw, MeasuredRunsError> {
    let mut cells = Vec::new();
    for file in files {
        cells.extend(read(file)?.cells);
    }
    let known: BTreeSet<&str> = cells.iter().map(|cell| cell.run.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name.as_str())) {
        let known = known.iter().map(|name| format!("{name:?}")).collect();
        return Err(MeasuredRunsError::UnknownRun { name: name.clone(), known });
    }
    let mut runs = Vec::new();
    let mut seen = BTreeSet::new();
    let mut first: Option<(&CellResult, u64)> = None;
    for cell in cells.iter().filter(|cell| names.is_empty() || names.contains(&cell.run)) {
        let Some(measurement) = cell.measurements.first() else { continue };
        // Results that were written by hand have no keys.
        if !cell.key.is_empty() && !seen.insert(cell.key.as_str()) {
            continue;
        }
        let others = measurement.tokens_counted;
        let &mut (one, tokens) = first.get_or_insert((cell, others));
        if tokens != others {
            let (one, other) = (one.run.clone(), cell.run.clone());
            return Err(MeasuredRunsError::OtherText { one, tokens, other, others });
        }
        let facts = &cell.facts;
        let size = RunSize {
            parameters: facts.path_parameters,
            paths: facts.paths.into(),
            tokens: facts.steps.saturating_mul(facts.step_tokens),
        };
        runs.push(MeasuredRun { size, loss: measurement.perplexity.ln() });
    }
    Ok(MeasuredLaw::fit(&runs)?)
}

fn read(file: &Path) -> Result<Results, MeasuredRunsError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| MeasuredRunsError::Read { file: file.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|source| MeasuredRunsError::Form { file: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(run: &str, paths: u32, steps: u64, perplexity: f64, tokens_counted: u64) -> serde_json::Value {
        serde_json::json!({
            "run": run, "seed": 1, "key": format!("{run}-{steps}"),
            "facts": {
                "paths": paths, "modules": 1, "path_parameters": 1000, "all_parameters": 1000, "steps": steps,
                "step_tokens": 512, "seconds": 1.0,
            },
            "measurements": [{ "perplexity": perplexity, "tokens_counted": tokens_counted, "documents": 3 }],
        })
    }

    fn write(folder: &Path, name: &str, cells: &[serde_json::Value]) -> PathBuf {
        let results = serde_json::json!({
            "name": name, "title": "", "baseline": "dense", "program": "", "command": "", "missing": [], "cells": cells,
        });
        let file = folder.join(name);
        std::fs::write(&file, results.to_string()).unwrap();
        file
    }

    #[test]
    fn the_runs_of_several_files_make_one_law() {
        let folder = tempfile::tempdir().unwrap();
        let short = [cell("dense", 1, 400, 168.0, 7), cell("4 × 4", 16, 400, 88.0, 7)];
        let other = [cell("random shards", 16, 1600, 67.9, 7), cell("long sequences", 1, 1600, 50.0, 8)];
        let long = [
            cell("dense", 1, 1600, 83.0, 7),
            cell("4 × 4", 16, 1600, 50.0, 7),
            cell("dense", 1, 6400, 51.0, 7),
        ];
        let files = [
            write(folder.path(), "a.json", &short),
            write(folder.path(), "b.json", &[&other[..], &long[..]].concat()),
        ];
        let names = ["dense", "4 × 4"].map(str::to_owned);
        let law = measured_law(&files, &names).unwrap();
        assert_eq!((law.runs, law.sizes), (5, 5));
        // A third file with trainings of the second.
        let again = [&files[..], &[write(folder.path(), "c.json", &long)]].concat();
        assert_eq!(measured_law(&again, &names).unwrap(), law);
        let exponents = law.quantities.map(|quantity| quantity.exponent);
        assert!(exponents[0].is_none() && exponents[1].unwrap() < 0.0 && exponents[2].unwrap() < 0.0);
        let error = measured_law(&files, &[]).unwrap_err().to_string();
        assert!(error.contains("7 tokens") && error.contains("\"long sequences\" on 8"), "{error}");
        let error = measured_law(&files, &["8 × 8".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("8 × 8") && error.contains("\"4 × 4\", \"dense\""), "{error}");
        let error = measured_law(&files[..1], &[]).unwrap_err();
        assert!(matches!(error, MeasuredRunsError::Fit(FitError::TooFew { found: 2, .. })), "{error}");
    }

    #[test]
    fn the_recorded_runs_have_the_laws_of_the_page() {
        let raw = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/raw");
        for (file, counts, expected) in [
            ("lengths-and-grids.json", (36, 12), [2.587, -0.1045, -0.2589]),
            ("defaults-lengths-and-grids.json", (37, 13), [2.885, -0.1699, -0.3420]),
        ] {
            let law = measured_law(&[raw.join(file)], &[]).unwrap();
            assert_eq!((law.runs, law.sizes), counts, "{file}");
            let [_, paths, tokens] = law.quantities.clone().map(|quantity| quantity.exponent);
            let found = [law.floor, paths.unwrap(), tokens.unwrap()];
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-3, "{file}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text.json");
        assert!(matches!(
            measured_law(std::slice::from_ref(&file), &[]),
            Err(MeasuredRunsError::Read { .. })
        ));
        std::fs::write(&file, "{}").unwrap();
        assert!(matches!(measured_law(&[file], &[]), Err(MeasuredRunsError::Form { .. })));
    }
}
