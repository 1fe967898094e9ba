//! The loss of multinomial logistic regression and its gradient.

use dipaco_ops::kernel::{self, LinearShape, TransposedShape};
use dipaco_topology::PathId;
use rayon::prelude::*;

/// Rows of a group: bounds memory; fixed, so that sums have one order.
const CHUNK: usize = 2048;

/// Scaling of features to mean 0 and variance 1.
pub(super) struct Scaling {
    /// The mean of each component (D).
    means: Vec<f64>,
    /// 1 / the standard deviation of each component (D), 0 for a constant component.
    factors: Vec<f64>,
}

impl Scaling {
    /// The scaling of `features` (N, D).
    pub(super) fn of(features: &[f32], dimension: usize) -> Self {
        let count = (features.len() / dimension).max(1) as f64;
        let sums = |value: &(dyn Fn(usize, f32) -> f64 + Sync)| -> Vec<f64> {
            let partial: Vec<Vec<f64>> = features
                .par_chunks(CHUNK * dimension)
                .map(|rows| {
                    let mut sums = vec![0f64; dimension];
                    for row in rows.chunks_exact(dimension) {
                        sums.iter_mut().zip(row).enumerate().for_each(|(d, (sum, &x))| *sum += value(d, x));
                    }
                    sums
                })
                .collect();
            let mut sums = vec![0f64; dimension];
            for partial in partial {
                sums.iter_mut().zip(partial).for_each(|(sum, value)| *sum += value);
            }
            sums
        };
        let means: Vec<f64> = sums(&|_, x| f64::from(x)).into_iter().map(|sum| sum / count).collect();
        let factors = sums(&|d, x| (f64::from(x) - means[d]).powi(2))
            .into_iter()
            .zip(&means)
            .map(|(sum, mean)| {
                let deviation = (sum / count).sqrt();
                // A deviation below the rounding of the features is rounding and nothing else.
                if deviation > 1e-6 * mean.abs() && deviation > 0.0 { 1.0 / deviation } else { 0.0 }
            })
            .collect();
        Self { means, factors }
    }

    /// True if all components are constant.
    pub(super) fn is_constant(&self) -> bool {
        self.factors.iter().all(|&factor| factor == 0.0)
    }

    fn apply(&self, row: &[f32], out: &mut [f32]) {
        for (((out, &x), mean), factor) in out.iter_mut().zip(row).zip(&self.means).zip(&self.factors) {
            *out = ((f64::from(x) - mean) * factor) as f32;
        }
    }

    /// Weights (P, D) and biases (P) for unscaled features, from `parameters` for scaled features.
    pub(super) fn unfold(&self, parameters: &[f64], paths: usize) -> (Vec<f32>, Vec<f64>) {
        let dimension = self.means.len();
        let (weights, biases) = parameters.split_at(paths * dimension);
        let weights: Vec<f32> = weights
            .chunks_exact(dimension)
            .flat_map(|row| row.iter().zip(&self.factors).map(|(weight, factor)| (weight * factor) as f32))
            .collect();
        // From the rounded weights: the biases then make up for their rounding at the mean.
        let shift = |row: &[f32]| -> f64 {
            row.iter().zip(&self.means).map(|(&weight, mean)| f64::from(weight) * mean).sum()
        };
        let biases =
            weights.chunks_exact(dimension).zip(biases).map(|(row, bias)| bias - shift(row)).collect();
        (weights, biases)
    }
}

/// The function to minimise. Its parameters are the weights (P, D), row-major, for scaled features, then the biases (P).
pub(super) struct Objective<'a> {
    /// (N, D), row-major.
    pub(super) features: &'a [f32],
    /// (N).
    pub(super) targets: &'a [PathId],
    pub(super) scaling: &'a Scaling,
    /// P.
    pub(super) paths: usize,
}

impl Objective<'_> {
    fn dimension(&self) -> usize {
        self.scaling.means.len()
    }

    /// Number of parameters.
    pub(super) fn parameters(&self) -> usize {
        self.paths * (self.dimension() + 1)
    }

    /// Mean over the chosen rows of -ln of the probability of the target, plus penalty / 2 times the sum of the squared
    /// weights. Writes the gradient too if there is a buffer for it.
    pub(super) fn evaluate(
        &self,
        parameters: &[f64],
        penalty: f64,
        chosen: &dyn Fn(usize) -> bool,
        mut gradient: Option<&mut [f64]>,
    ) -> f64 {
        let (dimension, paths) = (self.dimension(), self.paths);
        let weights = parameters.len() - paths;
        let model = Model::new(parameters, paths);
        if let Some(gradient) = gradient.as_deref_mut() {
            gradient.fill(0.0);
        }
        let rows: Vec<usize> = (0..self.targets.len()).filter(|&row| chosen(row)).collect();
        let count = rows.len().max(1) as f64;
        let (mut loss, mut product) = (0f64, vec![0f32; weights]);
        for rows in rows.chunks(CHUNK) {
            let scaled = self.scaled(rows);
            let mut scores = model.logits(&scaled, dimension);
            // In place, each row becomes the softmax less 1 at the target: the gradient of its loss by its logits.
            let losses: Vec<f64> = scores
                .par_chunks_exact_mut(paths)
                .zip(rows)
                .map(|(scores, &row)| {
                    let target = self.targets[row].index();
                    let total = f64::from(kernel::log_sum_exp(scores));
                    let loss = total - f64::from(scores[target]);
                    scores.iter_mut().for_each(|score| *score = (f64::from(*score) - total).exp() as f32);
                    scores[target] -= 1.0;
                    loss
                })
                .collect();
            loss += losses.iter().sum::<f64>();
            if let Some(gradient) = gradient.as_deref_mut() {
                let shape = TransposedShape { depth: rows.len(), rows: paths, columns: dimension };
                kernel::transposed_product(&scores, &scaled, &mut product, shape);
                let (by_weight, by_bias) = gradient.split_at_mut(weights);
                by_weight.iter_mut().zip(&product).for_each(|(sum, &value)| *sum += f64::from(value));
                for row in scores.chunks_exact(paths) {
                    by_bias.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
                }
            }
        }
        let squares: f64 = parameters[..weights].iter().map(|weight| weight * weight).sum();
        if let Some(gradient) = gradient {
            gradient.iter_mut().for_each(|value| *value /= count);
            for (value, weight) in gradient.iter_mut().zip(&parameters[..weights]) {
                *value += penalty * weight;
            }
        }
        loss / count + penalty / 2.0 * squares
    }

    /// The logits (N / stride, P) of every `stride`-th row.
    pub(super) fn logits(&self, parameters: &[f64], stride: usize) -> Vec<f32> {
        let model = Model::new(parameters, self.paths);
        let rows: Vec<usize> = (0..self.targets.len()).step_by(stride).collect();
        rows.chunks(CHUNK).flat_map(|rows| model.logits(&self.scaled(rows), self.dimension())).collect()
    }

    /// Scaled features of some rows.
    fn scaled(&self, rows: &[usize]) -> Vec<f32> {
        let dimension = self.dimension();
        let mut scaled = vec![0f32; rows.len() * dimension];
        scaled.par_chunks_exact_mut(dimension).zip(rows).for_each(|(out, &row)| {
            self.scaling.apply(&self.features[row * dimension..][..dimension], out);
        });
        scaled
    }
}

/// Parameters in f32, for the products.
struct Model {
    weights: Vec<f32>,
    biases: Vec<f32>,
}

impl Model {
    fn new(parameters: &[f64], paths: usize) -> Self {
        let (weights, biases) = parameters.split_at(parameters.len() - paths);
        let narrow = |values: &[f64]| values.iter().map(|&value| value as f32).collect();
        Self { weights: narrow(weights), biases: narrow(biases) }
    }

    fn logits(&self, scaled: &[f32], dimension: usize) -> Vec<f32> {
        let paths = self.biases.len();
        let rows = scaled.len() / dimension;
        let mut logits = vec![0f32; rows * paths];
        kernel::linear(
            scaled,
            &self.weights,
            &mut logits,
            LinearShape { rows, inputs: dimension, outputs: paths },
        );
        logits.par_chunks_exact_mut(paths).for_each(|row| kernel::add_assign(row, &self.biases));
        logits
    }
}
