//! Nesterov momentum, the outer optimizer (arXiv:2311.08105 Algorithm 1).

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config_error::require;
use crate::vector::vectorized;
use crate::{CHUNK, OptimConfigError, Optimizer};

/// The optimizer of outer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OuterOptimizer {
    /// Nesterov momentum, or delayed Nesterov momentum.
    #[default]
    Nesterov,
    /// AdamW on the gradients of single steps: synchronous training (arXiv:2403.10616 §4.5).
    AdamW,
}

impl OuterOptimizer {
    /// True for Nesterov momentum, the default.
    #[must_use]
    pub fn is_nesterov(&self) -> bool {
        *self == Self::Nesterov
    }

    /// The optimizer of inner steps, if the configuration asks for `inner`.
    #[must_use]
    pub fn inner(self, inner: Optimizer) -> Optimizer {
        match self {
            Self::Nesterov => inner,
            Self::AdamW => Optimizer::Gradient,
        }
    }
}

/// Nesterov momentum as outer optimizer. The rate is that of DiLoCo and DiPaCo (arXiv:2403.10616 §4), which take a momentum of 0.9.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NesterovConfig {
    /// Outer learning rate (default 0.7). With a rate of 1, the first step overshoots the mean of the paths by the
    /// momentum.
    pub learning_rate: f64,
    /// Decay of the momentum per outer step, at least 0 and below 1 (default 0.5). 0 is plain gradient descent.
    pub momentum: f64,
}

impl Default for NesterovConfig {
    fn default() -> Self {
        Self { learning_rate: 0.7, momentum: 0.5 }
    }
}

impl NesterovConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// Names the first key whose value is out of range.
    pub fn check(&self) -> Result<(), OptimConfigError> {
        let rate = self.learning_rate;
        require(rate.is_finite() && rate > 0.0, "learning_rate", rate, "above 0")?;
        require((0.0..1.0).contains(&self.momentum), "momentum", self.momentum, "at least 0 and below 1")
    }
}

/// Takes one step in place: `m ← μ m + g`, `θ ← θ - lr (g + μ m)` (PyTorch's SGD with `nesterov=True`).
///
/// Elements past the end of the shortest of the three slices keep their values.
pub fn nesterov_step(
    params: &mut [f32],
    outer_gradient: &[f32],
    momentum: &mut [f32],
    config: &NesterovConfig,
) {
    let (rate, mu) = (config.learning_rate as f32, config.momentum as f32);
    let state = params.par_chunks_mut(CHUNK).zip(momentum.par_chunks_mut(CHUNK));
    state.zip(outer_gradient.par_chunks(CHUNK)).for_each(|((params, momentum), gradient)| {
        vectorized(
            #[inline(always)]
            || {
                for ((p, m), g) in params.iter_mut().zip(momentum).zip(gradient) {
                    *m = mu * *m + g;
                    *p -= rate * (g + mu * *m);
                }
            },
        );
    });
}
