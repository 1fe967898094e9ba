//! Settings and result of an inner step.

use dipaco_config::{ScheduleAtPhase, TrainConfig};
use dipaco_optim::{AdamWConfig, Optimizer, ScheduleConfig};
use dipaco_protocol::WorkerPlan;

/// Settings of the inner loop besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct InnerConfig {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Settings of AdamW; Muon takes learning rate, weight decay and clipping from them.
    pub adamw: AdamWConfig,
    /// The learning rate over the whole run.
    pub schedule: ScheduleConfig,
    /// First step of the learning rate schedule, counted from the start of the run.
    pub first_step: u64,
    /// Steps so far that the path did not take, because it rested in their rounds.
    pub rested: u64,
    /// Number of inner steps of the schedule.
    pub total_steps: u64,
    /// B, sequences per step.
    pub batch: usize,
    /// Sequences per forward and backward pass; 0 means the whole batch.
    pub micro_batch: usize,
    /// T, tokens of the longest row. A GPU has memory for these.
    pub sequence_tokens: usize,
    /// True if blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
}

impl InnerConfig {
    /// The inner loop of a path's training.
    #[must_use]
    pub fn of_path(train: &TrainConfig, total_steps: u64) -> Self {
        Self {
            optimizer: train.optimizer,
            adamw: train.adamw.clone(),
            schedule: train.schedule.clone(),
            first_step: 0,
            rested: 0,
            total_steps,
            batch: train.batch,
            micro_batch: train.micro_batch,
            sequence_tokens: train.sequence_tokens,
            activation_checkpointing: train.activation_checkpointing,
        }
    }

    /// The inner loop of a lease in a phase that begins after `phase_step` inner steps.
    #[must_use]
    pub fn of_lease(plan: &WorkerPlan, phase_step: u64, rested: u64) -> Self {
        let first_step = match plan.train.schedule_at_phase {
            ScheduleAtPhase::Continue => 0,
            ScheduleAtPhase::Restart => phase_step,
        };
        let inner = Self::of_path(&plan.train, plan.total_steps().saturating_sub(first_step));
        let optimizer = plan.outer.optimizer.inner(inner.optimizer);
        Self { optimizer, first_step, rested, ..inner }
    }

    /// Sequences of a forward and backward pass.
    pub(crate) fn at_once(&self) -> usize {
        if self.micro_batch == 0 { self.batch } else { self.micro_batch }
    }
}

/// Result of one inner step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean cross entropy over the step's targets, in nats per token.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// Number of targets that count.
    pub tokens: u64,
}

impl StepReport {
    /// True if loss and gradient are finite.
    pub(crate) fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.gradient_norm.is_finite()
    }
}

#[cfg(test)]
mod tests {
    use dipaco_config::RunConfig;

    use super::*;

    #[test]
    fn a_schedule_that_restarts_spans_the_rest_of_the_run() {
        let mut config = RunConfig::default();
        (config.train.rounds, config.train.inner_steps) = (10, 30);
        let spans = |config: &RunConfig, phase_step| {
            let inner = InnerConfig::of_lease(&WorkerPlan::new(config), phase_step, 0);
            (inner.first_step, inner.total_steps)
        };
        assert_eq!(spans(&config, 60), (0, 300));
        config.train.schedule_at_phase = ScheduleAtPhase::Restart;
        assert_eq!(spans(&config, 0), (0, 300));
        assert_eq!(spans(&config, 60), (60, 240));
    }
}
