//! Delayed Nesterov momentum for asynchronous outer steps (arXiv:2401.09135 Algorithm 3).

use serde::{Deserialize, Serialize};

use crate::config_error::require;
use crate::{NesterovConfig, OptimConfigError};

/// The outer optimizer for outer gradients that arrive one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DelayedNesterovConfig {
    /// Learning rate and momentum.
    pub nesterov: NesterovConfig,
    /// N, outer gradients between two changes of the momentum (default 4). The number of workers is a good value.
    pub delay: u32,
    /// c, the share of the momentum that a step without such a change applies, 0 to 1/N (default 0).
    pub share: f64,
}

impl Default for DelayedNesterovConfig {
    fn default() -> Self {
        Self { nesterov: NesterovConfig::default(), delay: 4, share: 0.0 }
    }
}

impl DelayedNesterovConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// Names the first key whose value is out of range.
    pub fn check(&self) -> Result<(), OptimConfigError> {
        self.nesterov.check()?;
        require(self.delay > 0, "delay", f64::from(self.delay), "1 or more")?;
        let fits = self.share >= 0.0 && self.share * f64::from(self.delay) <= 1.0;
        require(fits, "share", self.share, "from 0 to 1/delay")
    }
}

/// State of the optimizer between two outer gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DelayedNesterov {
    /// The momentum m.
    pub momentum: Vec<f32>,
    /// Δ, the sum of the outer gradients since the momentum changed.
    pub buffer: Vec<f32>,
    /// Number of outer gradients applied so far.
    pub received: u64,
}

impl DelayedNesterov {
    /// Returns the state before the first outer gradient, for `parameters` parameters.
    #[must_use]
    pub fn new(parameters: usize) -> Self {
        Self { momentum: vec![0.0; parameters], buffer: vec![0.0; parameters], received: 0 }
    }
}

/// Applies one outer gradient in place (arXiv:2401.09135 Algorithm 3).
///
/// Elements past the end of the shortest slice keep their values.
pub fn delayed_nesterov_step(
    params: &mut [f32],
    outer_gradient: &[f32],
    state: &mut DelayedNesterov,
    config: &DelayedNesterovConfig,
) {
    let delay = config.delay.max(1);
    let (rate, mu) = (config.nesterov.learning_rate as f32, config.nesterov.momentum as f32);
    let (n, c) = (delay as f32, config.share as f32);
    state.received += 1;
    let full = state.received.is_multiple_of(u64::from(delay));
    let share = if full { 1.0 - c * n + c } else { c };
    let memory = state.momentum.iter_mut().zip(&mut state.buffer);
    for ((p, g), (m, sum)) in params.iter_mut().zip(outer_gradient).zip(memory) {
        *sum += g;
        if full {
            *m = mu * *m + *sum / n;
            *sum = 0.0;
        }
        *p -= rate * (share * mu * *m + g / n);
    }
}
