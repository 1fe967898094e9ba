//! Least squares of the law of measured runs.

use super::{MeasuredRun, QUANTITIES, RunSize};

/// Terms of log (L − C): the logarithms of N, P and D, and the product of those of P and D.
const TERMS: usize = QUANTITIES + 1;
/// Places of P and D among the quantities.
const PATHS: usize = 1;
const TOKENS: usize = 2;
/// Values of C that a search tries at first, and steps that narrow it between the neighbours of the best one.
const FLOORS: u32 = 64;
const NARROWER: u32 = 60;
/// Largest C, as a part of the lowest loss. Nearer to it the logarithm of that run's L − C says nothing.
const MOST_OF_LOWEST: f64 = 0.98;

/// The coefficients that a law has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Form {
    terms: [bool; TERMS],
    floor: bool,
}

impl Form {
    /// A power law of the quantities that differ between runs.
    pub(super) fn plain([parameters, paths, tokens]: [bool; QUANTITIES]) -> Self {
        Self { terms: [parameters, paths, tokens, false], floor: false }
    }

    /// The same with a constant, and with an exponent of the paths that changes with the tokens.
    pub(super) fn full([parameters, paths, tokens]: [bool; QUANTITIES]) -> Self {
        Self { terms: [parameters, paths, tokens, paths && tokens], floor: true }
    }

    /// Least number of sizes of runs: as many as there are coefficients, one more for an error, and one that can be left out.
    pub(super) fn sizes(self) -> usize {
        let terms = self.terms.iter().filter(|term| **term).count();
        1 + terms + usize::from(self.floor) + 2
    }
}

/// `log (L − floor) = constant + Σ factor · term`, with terms around the middle of the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Fit {
    /// Means of the logarithms of the quantities.
    middle: [f64; QUANTITIES],
    floor: f64,
    constant: f64,
    factors: [f64; TERMS],
}

impl Fit {
    /// The fit with the least squares of the errors of log L; `None` if the runs do not determine it. For each C the other
    /// coefficients have the least squares of log (L − C).
    pub(super) fn of(runs: &[MeasuredRun], form: Form) -> Option<Self> {
        let at = |floor| Self::above(runs, form, floor).map(|fit| (fit.squares(runs), fit));
        if !form.floor {
            return at(0.0).map(|(_, fit)| fit);
        }
        let lowest = runs.iter().map(|run| run.loss).fold(f64::INFINITY, f64::min);
        let step = MOST_OF_LOWEST * lowest / f64::from(FLOORS);
        let first = (0..=FLOORS).filter_map(|place| Some((place, at(f64::from(place) * step)?.0)));
        let (best, _) = first.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let mut range = (f64::from(best.saturating_sub(1)) * step, f64::from((best + 1).min(FLOORS)) * step);
        for _ in 0..NARROWER {
            let third = (range.1 - range.0) / 3.0;
            let (left, right) = (range.0 + third, range.1 - third);
            if at(left)?.0 <= at(right)?.0 { range.1 = right } else { range.0 = left }
        }
        at(f64::midpoint(range.0, range.1)).map(|(_, fit)| fit)
    }

    /// The coefficients above this floor.
    fn above(runs: &[MeasuredRun], form: Form, floor: f64) -> Option<Self> {
        let count = runs.len() as f64;
        let mut middle = [0.0; QUANTITIES];
        for run in runs {
            middle.iter_mut().zip(run.size.logarithms()).for_each(|(mean, value)| *mean += value / count);
        }
        let terms: Vec<[f64; TERMS]> = runs.iter().map(|run| terms(run.size, middle)).collect();
        let mut means = [0.0; TERMS];
        for terms in &terms {
            means.iter_mut().zip(terms).for_each(|(mean, term)| *mean += term / count);
        }
        let above = |run: &MeasuredRun| (run.loss - floor).ln();
        let mean = runs.iter().map(|run| above(run) / count).sum::<f64>();
        // The normal equations of the differences from the means.
        let mut matrix = [[0.0; TERMS]; TERMS];
        let mut right = [0.0; TERMS];
        for (run, terms) in runs.iter().zip(terms) {
            let mut from_mean = terms;
            from_mean.iter_mut().zip(means).zip(form.terms).for_each(|((value, mean), is_in)| {
                *value = if is_in { *value - mean } else { 0.0 };
            });
            for ((row, right), value) in matrix.iter_mut().zip(&mut right).zip(from_mean) {
                row.iter_mut().zip(from_mean).for_each(|(entry, other)| *entry += value * other);
                *right += value * (above(run) - mean);
            }
        }
        for place in (0..TERMS).filter(|&place| !form.terms[place]) {
            matrix[place][place] = 1.0;
        }
        let factors = solve(matrix, right)?;
        let constant = mean - factors.iter().zip(means).map(|(factor, mean)| factor * mean).sum::<f64>();
        Some(Self { middle, floor, constant, factors })
    }

    /// The squares of the errors of log L.
    fn squares(&self, runs: &[MeasuredRun]) -> f64 {
        runs.iter().map(|run| (self.loss(run.size) / run.loss).ln().powi(2)).sum()
    }

    /// The loss of a run of this size.
    pub(super) fn loss(&self, size: RunSize) -> f64 {
        let terms = terms(size, self.middle).into_iter().zip(self.factors);
        self.floor + (self.constant + terms.map(|(term, factor)| factor * term).sum::<f64>()).exp()
    }

    /// C.
    pub(super) fn floor(&self) -> f64 {
        self.floor
    }

    /// The exponent of a quantity in the middle of the runs.
    pub(super) fn exponent(&self, quantity: usize) -> f64 {
        self.factors[quantity]
    }
}

fn terms(size: RunSize, middle: [f64; QUANTITIES]) -> [f64; TERMS] {
    let logarithms = size.logarithms();
    let from_middle = |place: usize| logarithms[place] - middle[place];
    [from_middle(0), from_middle(PATHS), from_middle(TOKENS), from_middle(PATHS) * from_middle(TOKENS)]
}

/// Solves a system of equations by elimination; `None` if it has no single solution.
fn solve(mut matrix: [[f64; TERMS]; TERMS], mut right: [f64; TERMS]) -> Option<[f64; TERMS]> {
    let scale = matrix.iter().flatten().fold(0.0, |most: f64, entry| most.max(entry.abs()));
    for pivot in 0..TERMS {
        let size = |row: &usize| matrix[*row][pivot].abs();
        let largest = (pivot..TERMS).max_by(|one, other| size(one).total_cmp(&size(other)))?;
        matrix.swap(pivot, largest);
        right.swap(pivot, largest);
        if matrix[pivot][pivot].abs() <= 1e-9 * scale {
            return None;
        }
        for row in (0..TERMS).filter(|&row| row != pivot) {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let pivots = matrix[pivot];
            matrix[row].iter_mut().zip(pivots).for_each(|(entry, above)| *entry -= factor * above);
            right[row] -= factor * right[pivot];
        }
    }
    Some(std::array::from_fn(|place| right[place] / matrix[place][place]))
}
