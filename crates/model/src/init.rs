//! Initial weights from a random seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::{ModelConfig, ModelError, ModuleWeights, TensorSpec, path_specs};

/// Returns the initial weights of a whole path: norms are 1, all other tensors are normally distributed around 0.
///
/// Their standard deviation is `model.init_std`. Without that key a matrix has 1/√(3 · inputs) (PyTorch's rule for a linear
/// map, arXiv:1502.01852 with a = √5). The token embedding counts as a matrix with D inputs.
///
/// The two projections that write to the residual stream are scaled by 1/√(2 · blocks) (GPT-2's rule), so that the
/// variance of the stream does not grow with depth. Each tensor has its own random stream, so the same seed gives the
/// same bits in any order.
///
/// # Errors
/// The configuration does not pass [`ModelConfig::check`], or its vocabulary is not known.
pub fn init(config: &ModelConfig, seed: u64) -> Result<ModuleWeights, ModelError> {
    config.check_complete()?;
    let specs = path_specs(config);
    let residual = 1.0 / (2.0 * config.blocks as f64).sqrt();
    let tensor = |(index, spec): (usize, &TensorSpec)| {
        // Only norms have a single dimension.
        if spec.shape.len() == 1 {
            return vec![1.0; spec.parameters()];
        }
        let writes = spec.name.ends_with("o_proj.weight") || spec.name.ends_with("down_proj.weight");
        // Matrices are (outputs, inputs), the embedding is (V, D).
        let inputs = spec.shape.last().copied().unwrap_or(1);
        let std = matrix_deviation(config, inputs) * if writes { residual } else { 1.0 };
        normal(seed, index as u64, spec.parameters(), std)
    };
    let values = specs.par_iter().enumerate().map(tensor).collect::<Vec<_>>().concat();
    ModuleWeights::new(specs.into(), values)
}

/// Returns the standard deviation of the initial values of a matrix with this number of inputs.
pub(crate) fn matrix_deviation(config: &ModelConfig, inputs: usize) -> f64 {
    config.init_std.unwrap_or_else(|| 1.0 / (3.0 * inputs as f64).sqrt())
}

/// Returns normally distributed numbers, by the Box-Muller transform.
fn normal(seed: u64, stream: u64, count: usize, std: f64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        // 1 - u is in (0, 1], so its logarithm is finite.
        let (u, v): (f64, f64) = (random.random(), random.random());
        let (radius, angle) = ((-2.0 * (1.0 - u).ln()).sqrt() * std, std::f64::consts::TAU * v);
        values.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
    }
    values.truncate(count);
    values
}
