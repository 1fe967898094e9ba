//! How fast this machine multiplies matrices: what a training step is compared with.

use dipaco_model::{Dtype, Precision};

use crate::step_speed::now;

/// The best of so many tries counts.
const TRIES: usize = 20;

/// The product rate of all threads of the pool, in FLOP/s.
pub fn product_rate(dtype: Dtype) -> f64 {
    let precision = match dtype {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
    };
    dipaco_model::product_rate(precision, TRIES, now)
}
