//! Sweeps: one key, several values, and the choice of the best.

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::cell::Cell;
use crate::spread::Spread;

/// The sweep of one key for one run. Its cells differ in the value of the key and in the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Name of the run.
    pub run: String,
    /// Key of the configuration.
    pub key: String,
    /// Seeds of each value.
    pub seeds: Vec<u64>,
    /// The values, in the order of the file.
    pub trials: Vec<Trial>,
}

/// One value of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The value.
    pub value: Value,
    /// A cell for each seed, with the run's first router and first evaluation.
    pub cells: Vec<Cell>,
}

/// The outcome of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepResult {
    /// Name of the run.
    pub run: String,
    /// Key of the configuration.
    pub key: String,
    /// Seeds of each value.
    pub seeds: Vec<u64>,
    /// The values, in the order of the file.
    pub values: Vec<SweptValue>,
    /// The value that the run's own cells have; `None` if no value has all its results.
    pub chosen: Option<Value>,
    /// True if the chosen value is the smallest or the largest number of the sweep. A better one may lie beyond it.
    pub at_end: bool,
}

/// The result of one value of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweptValue {
    /// The value.
    pub value: Value,
    /// Perplexity of the first evaluation, the mean over the seeds; `None` if a cell failed or its perplexity is not finite.
    pub perplexity: Option<f64>,
}

impl Sweep {
    /// All cells, value by value.
    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.trials.iter().flat_map(|trial| &trial.cells)
    }

    /// Chooses the value with the lowest mean perplexity, and the first of equal ones. `measured` has, for each value, the
    /// perplexities of its finished cells. A value with an unfinished cell is not chosen.
    #[must_use]
    pub fn judge(&self, measured: &[Vec<f64>]) -> SweepResult {
        let of = |(trial, found): (&Trial, &Vec<f64>)| {
            let whole = found.len() == trial.cells.len();
            let mean = Spread::of(found).map(|spread| spread.mean);
            SweptValue {
                value: trial.value.clone(),
                perplexity: mean.filter(|mean| whole && mean.is_finite()),
            }
        };
        let nothing = Vec::new();
        let measured = measured.iter().chain(std::iter::repeat(&nothing));
        let values: Vec<SweptValue> = self.trials.iter().zip(measured).map(of).collect();
        let finished = values.iter().filter_map(|swept| Some((swept.perplexity?, &swept.value)));
        let chosen = finished.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, value)| value.clone());
        let at_end = chosen.as_ref().and_then(number).is_some_and(|best| {
            let numbers = || self.trials.iter().filter_map(|trial| number(&trial.value));
            numbers().all(|other| best <= other) || numbers().all(|other| best >= other)
        });
        let (run, key, seeds) = (self.run.clone(), self.key.clone(), self.seeds.clone());
        SweepResult { run, key, seeds, values, chosen, at_end }
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64))
}

#[cfg(test)]
mod tests;
