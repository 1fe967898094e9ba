//! The rate of matrix products on this machine, the bound on the rate of a training step.

use dipaco_model::{Dtype, Precision};

use crate::step_speed::now;

/// Number of tries, of which the best counts.
const TRIES: usize = 20;

/// The rate of matrix products with all threads of the pool, in FLOP/s.
pub fn product_rate(dtype: Dtype) -> f64 {
    let precision = match dtype {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
    };
    dipaco_model::product_rate(precision, TRIES, now)
}
