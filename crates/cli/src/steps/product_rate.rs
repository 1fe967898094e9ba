//! How fast this machine multiplies matrices: what a training step is compared with.

use std::time::Instant;

use dipaco_model::{Device, Dtype, Tensor};

use crate::steps::error::StepError;

/// The best of so many tries counts.
const TRIES: usize = 5;
/// Rows and columns of the matrices: large enough for the products to be at their limit, small enough to be quick.
const SIZE: usize = 1536;

/// The product rate of all threads of the pool, in FLOP/s.
//
// PLUG IN: `dipaco_ops::product_rate(precision, TRIES, now)` takes the place of the body; until then products are f32.
pub(crate) fn product_rate(_dtype: Dtype) -> Result<f64, StepError> {
    let values: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 7) as f32 * 0.25 - 0.5).collect();
    let matrix =
        Tensor::from_vec(values, (SIZE, SIZE), &Device::Cpu).map_err(dipaco_model::ModelError::from)?;
    let mut best = f64::MAX;
    for _ in 0..TRIES {
        let begin = Instant::now();
        dipaco_ops::linear(&matrix, &matrix).map_err(dipaco_model::ModelError::from)?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best)
}
