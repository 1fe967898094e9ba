//! The learning rate over a run.

use serde::{Deserialize, Serialize};

use crate::OptimConfigError;
use crate::config_error::require;

/// Linear warm-up, then a cosine from the peak down to a fraction of the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Steps of linear warm-up from 0 to the peak (default 50). A run with fewer steps never reaches the peak.
    pub warmup_steps: u64,
    /// The last step's learning rate as a fraction of the peak, 0 to 1 (default 0.1).
    pub final_fraction: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { warmup_steps: 50, final_fraction: 0.1 }
    }
}

impl ScheduleConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// The final fraction is not between 0 and 1.
    pub fn check(&self) -> Result<(), OptimConfigError> {
        let fraction = self.final_fraction;
        require((0.0..=1.0).contains(&fraction), "final_fraction", fraction, "from 0 to 1")
    }
}

/// Returns the learning rate of a step, counted from 0, in a run of `total_steps`.
///
/// During the warm-up it is `peak · (step + 1) / warmup`. Then it is `final + (peak - final) (1 + cos(π x)) / 2`, where
/// x goes from 0 at the end of the warm-up to 1 at the last step. Later steps have the final value.
#[must_use]
pub fn learning_rate(step: u64, total_steps: u64, peak: f64, config: &ScheduleConfig) -> f64 {
    if step < config.warmup_steps {
        return peak * (step as f64 + 1.0) / config.warmup_steps as f64;
    }
    let length = total_steps.saturating_sub(config.warmup_steps).saturating_sub(1).max(1);
    let x = ((step - config.warmup_steps) as f64 / length as f64).min(1.0);
    let last = peak * config.final_fraction;
    last + (peak - last) * 0.5 * (1.0 + (std::f64::consts::PI * x).cos())
}
