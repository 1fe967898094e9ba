//! A law of the loss, fitted to measured runs.
//!
//! With N parameters of a path, P paths, and D training tokens of a path after the seed it is
//! `L = C + A N^n P^p D^d`, where p changes with log D. Of the four forms in arXiv:2503.09799 (table 13) the best one has a
//! constant, and one quantity in the exponent of the other, too: `A N^(a + b M) + C`, with replicas M, and with tokens that are
//! always 20 N. Few runs determine less: then C is 0, and p is the same for all D.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use thiserror::Error;

use fit::{Fit, Form};

mod fit;

/// A measured run. All runs of a fit have the same text, vocabulary and way to evaluate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRun {
    /// The run's size.
    pub size: RunSize,
    /// Validation loss in nats per token.
    pub loss: f64,
}

/// The quantities on which the loss depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunSize {
    /// N, parameters of a path.
    pub parameters: u64,
    /// P, number of paths.
    pub paths: u64,
    /// D, training tokens of a path after the seed.
    pub tokens: u64,
}

impl RunSize {
    fn values(self) -> [u64; QUANTITIES] {
        [self.parameters, self.paths, self.tokens]
    }

    /// True if no quantity is larger than that of the other size.
    fn is_at_most(self, other: Self) -> bool {
        self.values().into_iter().zip(other.values()).all(|(value, most)| value <= most)
    }

    /// The square of the distance in the logarithms of the quantities.
    fn distance(self, other: Self) -> f64 {
        let pairs = self.logarithms().into_iter().zip(other.logarithms());
        pairs.map(|(one, other)| (one - other).powi(2)).sum()
    }

    /// The factors of the exponents in log L.
    fn logarithms(self) -> [f64; QUANTITIES] {
        self.values().map(|value| (value.max(1) as f64).ln())
    }
}

impl fmt::Display for RunSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, paths, tokens } = self;
        let plural = if *paths == 1 { "" } else { "s" };
        write!(f, "{paths} path{plural} of {parameters} parameters with {tokens} training tokens each")
    }
}

const QUANTITIES: usize = 3;
/// The quantities in the order of [`RunSize`].
const NAMES: [&str; QUANTITIES] = ["parameters of a path", "paths", "training tokens of a path"];

/// Measured runs to which no law can be fitted.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    /// The runs differ too little.
    #[error(
        "a law of {differing} differing quantities needs at least {needed} sizes of runs, and {found} are measured: measure more"
    )]
    TooFew {
        /// Number of quantities that differ between the runs.
        differing: usize,
        /// Least number of sizes.
        needed: usize,
        /// Number of measured sizes.
        found: usize,
    },
    /// Quantities change together.
    #[error(
        "the measured runs do not tell the quantities apart, because these change together: measure other sizes"
    )]
    Together,
    /// The law rests on one size, so nothing tells its error.
    #[error(
        "only the run of {0} tells the quantities apart, so nothing shows how far off the law is: measure one more size that differs \
         from the others as this one does"
    )]
    Alone(RunSize),
    /// A loss that has no logarithm.
    #[error("a measured loss is {0}, and a loss is a number above 0")]
    Loss(f64),
}

/// A quantity of the law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredQuantity {
    /// Its name.
    pub name: &'static str,
    /// Its exponent in the middle of the measured runs; absent if all runs have the same value.
    pub exponent: Option<f64>,
    /// Least measured value.
    pub least: u64,
    /// Largest measured value.
    pub most: u64,
}

/// Number of measured sizes that a refusal names.
const NEAREST: usize = 3;

/// A size outside of the measured runs.
#[derive(Clone, Debug, PartialEq, Error)]
#[error(
    "a run of {size} is outside of the measured runs: a prediction needs one with at least as many paths, parameters and tokens, \
     and one with at most as many. The nearest have {}",
    Listed(nearest)
)]
pub struct OutsideOfRuns {
    /// The size.
    pub size: RunSize,
    /// The measured sizes nearest to it, the nearest first.
    pub nearest: Vec<RunSize>,
}

struct Listed<'a>(&'a [RunSize]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, size) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{size}")?;
        }
        Ok(())
    }
}

/// The law of measured runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredLaw {
    /// Number of runs.
    pub runs: usize,
    /// Number of sizes of runs.
    pub sizes: usize,
    /// N, P and D.
    pub quantities: [MeasuredQuantity; QUANTITIES],
    /// C, the loss that the law never reaches, in nats per token; 0 where the runs do not determine it.
    pub floor: f64,
    /// Largest relative error for a size when the law is fitted to the other sizes.
    pub error: f64,
    /// The sizes of the runs.
    #[serde(skip)]
    measured: BTreeSet<RunSize>,
    #[serde(skip)]
    fit: Fit,
}

/// The prediction for a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeasuredPrediction {
    /// Validation loss in nats per token.
    pub loss: f64,
    /// The loss less the largest error of the law.
    pub loss_at_least: f64,
    /// The loss plus the largest error of the law.
    pub loss_at_most: f64,
}

impl MeasuredLaw {
    /// Fits the law. A quantity that is the same in all runs has no exponent.
    ///
    /// # Errors
    /// When there are too few sizes, when quantities change together or would without one of the sizes, or when a loss is not above 0.
    pub fn fit(runs: &[MeasuredRun]) -> Result<Self, FitError> {
        if let Some(run) = runs.iter().find(|run| !(run.loss.is_finite() && run.loss > 0.0)) {
            return Err(FitError::Loss(run.loss));
        }
        let sizes: BTreeSet<RunSize> = runs.iter().map(|run| run.size).collect();
        let range = |place: usize| {
            let values = || sizes.iter().filter_map(|size| size.values().get(place).copied());
            (values().min().unwrap_or(0), values().max().unwrap_or(0))
        };
        let ranges: [_; QUANTITIES] = std::array::from_fn(range);
        let differs = ranges.map(|(least, most)| least < most);
        let differing = differs.iter().filter(|differs| **differs).count();
        let needed = Form::plain(differs).sizes();
        if sizes.len() < needed {
            return Err(FitError::TooFew { differing, needed, found: sizes.len() });
        }
        // Where the runs or all but one size do not determine the full law, the plain one remains.
        let full = Form::full(differs);
        let with_floor =
            if full.sizes() <= sizes.len() { fit_with_error(runs, &sizes, full).ok() } else { None };
        let (fit, error) = match with_floor {
            Some(found) => found,
            None => fit_with_error(runs, &sizes, Form::plain(differs))?,
        };
        let quantities = std::array::from_fn(|place| {
            let ((least, most), exponent) = (ranges[place], fit.exponent(place));
            MeasuredQuantity { name: NAMES[place], exponent: differs[place].then_some(exponent), least, most }
        });
        let floor = fit.floor();
        Ok(Self { runs: runs.len(), sizes: sizes.len(), quantities, floor, error, measured: sizes, fit })
    }

    /// The prediction for a run of this size. The ranges of the quantities alone do not bound it: the most paths may have been
    /// measured with the fewest tokens only.
    ///
    /// # Errors
    /// When no measured run is at least as large in each quantity, or none at most as large.
    pub fn predict(&self, size: RunSize) -> Result<MeasuredPrediction, OutsideOfRuns> {
        let has_larger = self.measured.iter().any(|measured| size.is_at_most(*measured));
        let has_smaller = self.measured.iter().any(|measured| measured.is_at_most(size));
        if !(has_larger && has_smaller) {
            let mut nearest: Vec<RunSize> = self.measured.iter().copied().collect();
            nearest.sort_by(|one, other| one.distance(size).total_cmp(&other.distance(size)));
            nearest.truncate(NEAREST);
            return Err(OutsideOfRuns { size, nearest });
        }
        let loss = self.fit.loss(size);
        let within = 1.0 + self.error;
        Ok(MeasuredPrediction { loss, loss_at_least: loss / within, loss_at_most: loss * within })
    }
}

/// The fit to all runs, and the largest relative error for a size when the others alone are fitted.
fn fit_with_error(
    runs: &[MeasuredRun],
    sizes: &BTreeSet<RunSize>,
    form: Form,
) -> Result<(Fit, f64), FitError> {
    let fit = Fit::of(runs, form).ok_or(FitError::Together)?;
    let mut error: f64 = 0.0;
    for &left_out in sizes {
        let (own, others): (Vec<_>, Vec<_>) = runs.iter().copied().partition(|run| run.size == left_out);
        let law = Fit::of(&others, form).ok_or(FitError::Alone(left_out))?;
        let measured = own.iter().map(|run| run.loss.ln()).sum::<f64>() / own.len() as f64;
        error = error.max((law.loss(left_out).ln() - measured).abs().exp_m1());
    }
    Ok((fit, error))
}

#[cfg(test)]
mod tests;
