//! AdamW (arXiv:1711.05101), with PyTorch's semantics.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config_error::require;
use crate::vector::vectorized;
use crate::{CHUNK, OptimConfigError};

/// Least [`AdamWConfig::epsilon`]. A step casts epsilon to f32, where less than 1e-45 is 0: a parameter without a gradient
/// would become NaN. What a second moment loses below the normal numbers of f32 is worth about 1e-18 in its root with the
/// default decays. A peer's state may thus have a first moment of this size beside a second moment of 0 (the bounds of
/// moments in `dipaco-path`). Divided by a far smaller epsilon, it would move a weight by many learning rates.
const LEAST_EPSILON: f64 = 1e-16;

/// The inner optimizer. The defaults are DiPaCo's where it names them (arXiv:2403.10616 §4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamWConfig {
    /// Peak learning rate, reached after the warm-up (default 4e-4). A rate that is too large makes training diverge;
    /// with one that is too small the model learns nothing.
    pub learning_rate: f64,
    /// Decay of the first moment per step, 0 to 1 (default 0.9).
    pub beta1: f64,
    /// Decay of the second moment per step, 0 to 1 (default 0.95).
    pub beta2: f64,
    /// Added to the root of the second moment (default 1e-8); must be at least 1e-16.
    pub epsilon: f64,
    /// Decoupled weight decay per step and unit of learning rate (default 0.1). Norms are not decayed.
    pub weight_decay: f64,
    /// Largest Euclidean norm of a step's gradient over all parameters of the path (default 1). 0 turns clipping off.
    pub clip_norm: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            learning_rate: 4e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        }
    }
}

impl AdamWConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// Names the first key whose value is out of range.
    pub fn check(&self) -> Result<(), OptimConfigError> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        require(positive(self.learning_rate), "learning_rate", self.learning_rate, "above 0")?;
        for (key, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            require((0.0..1.0).contains(&beta), key, beta, "at least 0 and below 1")?;
        }
        let epsilon = self.epsilon;
        let allowed = epsilon.is_finite() && epsilon >= LEAST_EPSILON;
        require(allowed, "epsilon", epsilon, "at least 1e-16")?;
        require(not_negative(self.weight_decay), "weight_decay", self.weight_decay, "0 or more")?;
        require(not_negative(self.clip_norm), "clip_norm", self.clip_norm, "0 (no clipping) or more")
    }
}

/// AdamW's two moments of some parameters, borrowed from the caller. Both start at 0.
#[derive(Debug)]
pub struct AdamWMoments<'a> {
    /// Running mean of the gradient, m.
    pub first: &'a mut [f32],
    /// Running mean of the squared gradient, v.
    pub second: &'a mut [f32],
}

/// Numbers that change from step to step or from tensor to tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// Number of the step, from 1; 0 counts as 1.
    pub number: u64,
    /// Learning rate of the step. [`AdamWConfig::learning_rate`] is the peak, and [`adamw_step`] does not read it.
    pub learning_rate: f64,
    /// Factor for the gradient, as [`crate::clip_scale`] returns it.
    pub gradient_scale: f64,
    /// True if weight decay applies to these parameters.
    pub decay: bool,
}

/// Takes one step in place: `p ← p (1 - lr · wd)`, then `p ← p - lr · m̂ / (√v̂ + ε)` with bias-corrected moments
/// (arXiv:1711.05101 Algorithm 2, with PyTorch's order of operations).
///
/// `params`, `gradient` and both moments have one element for each parameter. Elements past the end of the shortest of
/// the four slices keep their values.
pub fn adamw_step(
    params: &mut [f32],
    gradient: &[f32],
    moments: AdamWMoments<'_>,
    step: &AdamWStep,
    config: &AdamWConfig,
) {
    let (number, learning_rate) = (step.number.max(1) as f64, step.learning_rate);
    let keep = if step.decay { 1.0 - learning_rate * config.weight_decay } else { 1.0 } as f32;
    // m̂ / (√v̂ + ε) = (m / c1) / (√v / √c2 + ε)
    let rate = (learning_rate / (1.0 - config.beta1.powf(number))) as f32;
    let root = (1.0 / (1.0 - config.beta2.powf(number)).sqrt()) as f32;
    let (beta1, beta2) = (config.beta1 as f32, config.beta2 as f32);
    let (fresh1, fresh2) = ((1.0 - config.beta1) as f32, (1.0 - config.beta2) as f32);
    let (scale, epsilon) = (step.gradient_scale as f32, config.epsilon as f32);
    let moments = moments.first.par_chunks_mut(CHUNK).zip(moments.second.par_chunks_mut(CHUNK));
    let state = params.par_chunks_mut(CHUNK).zip(moments);
    state.zip(gradient.par_chunks(CHUNK)).for_each(|((params, (first, second)), gradient)| {
        vectorized(
            #[inline(always)]
            || {
                for (((p, m), v), g) in params.iter_mut().zip(first).zip(second).zip(gradient) {
                    let g = g * scale;
                    *m = beta1 * *m + fresh1 * g;
                    *v = beta2 * *v + fresh2 * g * g;
                    *p = *p * keep - rate * *m / (v.sqrt() * root + epsilon);
                }
            },
        );
    });
}
