//! Clipping a gradient by its norm.

use rayon::prelude::*;

use crate::CHUNK;
use crate::vector::vectorized;

/// Returns the sum of the squares of `values`, in f64.
#[must_use]
pub fn squared_norm(values: &[f32]) -> f64 {
    let chunks = values.par_chunks(CHUNK).map(|chunk| {
        vectorized(
            #[inline(always)]
            || {
                let mut lanes = [0f64; 16];
                let (parts, rest) = chunk.as_chunks::<16>();
                for part in parts {
                    for (lane, &value) in lanes.iter_mut().zip(part) {
                        *lane += f64::from(value) * f64::from(value);
                    }
                }
                for (lane, &value) in lanes.iter_mut().zip(rest) {
                    *lane += f64::from(value) * f64::from(value);
                }
                lanes.iter().sum::<f64>()
            },
        )
    });
    // Collected first: rayon's own sum would group the chunks by thread.
    chunks.collect::<Vec<f64>>().into_iter().sum()
}

/// Returns the factor that scales a gradient of this squared norm to a norm of at most `clip_norm`, as PyTorch's
/// `clip_grad_norm_` does. Returns 1 if `clip_norm` is 0.
#[must_use]
pub fn clip_scale(total_squared_norm: f64, clip_norm: f64) -> f64 {
    if clip_norm > 0.0 { (clip_norm / (total_squared_norm.sqrt() + 1e-6)).min(1.0) } else { 1.0 }
}
