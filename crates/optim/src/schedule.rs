//! The learning rate over a run.

use serde::{Deserialize, Serialize};

use crate::OptimConfigError;
use crate::config_error::require;

/// Linear warm-up, then a cosine from the peak down to a fraction of the peak, or a constant rate with a linear decay at the
/// end (warm-up, stable, decay: arXiv:2404.06395 §4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Steps of linear warm-up from 0 to the peak (default 50). A run with fewer steps never reaches the peak.
    pub warmup_steps: u64,
    /// The last step's learning rate as a fraction of the peak, 0 to 1 (default 0.1).
    pub final_fraction: f64,
    /// Last part of the run in which the learning rate falls, above 0 and at most 1; before it the rate stays at the peak.
    /// `None` for a cosine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_fraction: Option<f64>,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { warmup_steps: 50, final_fraction: 0.1, decay_fraction: None }
    }
}

impl ScheduleConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// The final fraction is not between 0 and 1, or the decay fraction not above 0 and at most 1.
    pub fn check(&self) -> Result<(), OptimConfigError> {
        let fraction = self.final_fraction;
        require((0.0..=1.0).contains(&fraction), "final_fraction", fraction, "from 0 to 1")?;
        let Some(decay) = self.decay_fraction else { return Ok(()) };
        require(decay > 0.0 && decay <= 1.0, "decay_fraction", decay, "above 0 and at most 1")
    }
}

/// Returns the learning rate of a step, counted from 0, in a run of `total_steps`.
///
/// During the warm-up it is `peak · (step + 1) / warmup`. Then it is `final + (peak - final) (1 + cos(π x)) / 2`, where
/// x goes from 0 at the end of the warm-up to 1 at the last step. With a decay fraction f it stays at the peak, and falls
/// linearly to the final value over the last `f · total_steps` steps, rounded up, without those of the warm-up. Later steps
/// have the final value.
#[must_use]
pub fn learning_rate(step: u64, total_steps: u64, peak: f64, config: &ScheduleConfig) -> f64 {
    if step < config.warmup_steps {
        return peak * (step as f64 + 1.0) / config.warmup_steps as f64;
    }
    let last = peak * config.final_fraction;
    if let Some(fraction) = config.decay_fraction {
        let after_warmup = total_steps.saturating_sub(config.warmup_steps).max(1);
        // A decimal fraction is rounded to binary, and so is the product: 0.07 · 100 is a little above 7. The last factor
        // takes off more than both roundings can add, so that they add no step.
        let steps = fraction * total_steps as f64 * (1.0 - 2.0 * f64::EPSILON);
        let decay = (steps.ceil() as u64).clamp(1, after_warmup);
        // The first step of the decay is already below the peak, so that the last one has the final value.
        let done = (step + 1).saturating_sub(total_steps.saturating_sub(decay)).min(decay);
        return peak - (peak - last) * (done as f64 / decay as f64);
    }
    let length = total_steps.saturating_sub(config.warmup_steps).saturating_sub(1).max(1);
    let x = ((step - config.warmup_steps) as f64 / length as f64).min(1.0);
    last + (peak - last) * 0.5 * (1.0 + (std::f64::consts::PI * x).cos())
}
