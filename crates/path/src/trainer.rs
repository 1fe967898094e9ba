//! The inner loop: AdamW steps of one path.

use dipaco_config::{ScheduleAtPhase, TrainConfig};
use dipaco_model::{ModelConfig, ModuleWeights, Profile, path_specs};
use dipaco_optim::{AdamWConfig, ScheduleConfig, learning_rate};
use dipaco_protocol::WorkerPlan;
use dipaco_shards::Sampler;
use dipaco_topology::{PathId, Topology};

use crate::PathError;
use crate::compute::Compute;
use crate::device::TrainDevice;
use crate::layout::FragmentLayout;
use crate::state::PathState;

/// Settings of the inner loop besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct InnerConfig {
    /// Settings of AdamW.
    pub adamw: AdamWConfig,
    /// The learning rate over the whole run.
    pub schedule: ScheduleConfig,
    /// First step of the learning rate schedule, counted from the start of the run.
    pub first_step: u64,
    /// Number of inner steps of the schedule.
    pub total_steps: u64,
    /// B, sequences per step.
    pub batch: usize,
    /// Sequences per forward and backward pass; 0 means the whole batch.
    pub micro_batch: usize,
    /// True if blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
}

impl InnerConfig {
    /// The inner loop of a path's training.
    #[must_use]
    pub fn of_path(train: &TrainConfig, total_steps: u64) -> Self {
        Self {
            adamw: train.adamw.clone(),
            schedule: train.schedule.clone(),
            first_step: 0,
            total_steps,
            batch: train.batch,
            micro_batch: train.micro_batch,
            activation_checkpointing: train.activation_checkpointing,
        }
    }

    /// The inner loop of a lease in a phase that begins after `phase_step` inner steps.
    #[must_use]
    pub fn of_lease(plan: &WorkerPlan, phase_step: u64) -> Self {
        let first_step = match plan.train.schedule_at_phase {
            ScheduleAtPhase::Continue => 0,
            ScheduleAtPhase::Restart => phase_step,
        };
        let inner = Self::of_path(&plan.train, plan.total_steps().saturating_sub(first_step));
        Self { first_step, ..inner }
    }

    /// Sequences of a forward and backward pass.
    pub(crate) fn at_once(&self) -> usize {
        if self.micro_batch == 0 { self.batch } else { self.micro_batch }
    }
}

/// A path in training: its weights on the device, and its state.
pub struct Trainer {
    compute: Compute,
    config: InnerConfig,
    /// Its moments may be older than the moments on the device.
    state: PathState,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("step", &self.state.step)
            .field("config", &self.config)
            .finish_non_exhaustive()
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

impl Trainer {
    /// Composes a trainable path from its modules, one per level, on a device.
    ///
    /// # Errors
    /// When modules, state and model do not fit together, or the device can't take the path.
    pub fn new(
        device: &TrainDevice,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        state: PathState,
        config: InnerConfig,
    ) -> Result<Self, PathError> {
        let expected = dipaco_model::parameters(&path_specs(model));
        if state.first.len() != expected || state.second.len() != expected {
            return Err(PathError::StateLength { expected, found: state.first.len() });
        }
        let compute = Compute::new(device, model, topology, weights, &state, &config)?;
        Ok(Self { compute, config, state })
    }

    /// Number of steps of the path, including steps before this trainer.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state.step
    }

    /// The state after the steps so far.
    ///
    /// # Errors
    /// When the moments can't be copied from the device.
    pub fn state(&mut self) -> Result<&PathState, PathError> {
        self.compute.refresh(&mut self.state)?;
        Ok(&self.state)
    }

    /// Consumes the trainer and keeps its state.
    ///
    /// # Errors
    /// When the moments can't be copied from the device.
    pub fn into_state(mut self) -> Result<PathState, PathError> {
        self.compute.refresh(&mut self.state)?;
        Ok(self.state)
    }

    /// Copies the current weights of the modules, one per level.
    ///
    /// # Errors
    /// When a tensor can't be read back.
    pub fn weights(&mut self) -> Result<Vec<ModuleWeights>, PathError> {
        self.compute.weights()
    }

    /// Copies the weights of one fragment of the module of a level; `None` if there is no such level.
    ///
    /// # Errors
    /// When the fragment can't be read back.
    pub fn fragment(&mut self, level: usize, layout: &FragmentLayout) -> Result<Option<Vec<f32>>, PathError> {
        self.compute.fragment(level, layout)
    }

    /// The same trainer, with the CPU's time added up in `profile`; a GPU adds nothing.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.compute = self.compute.with_profile(profile);
        self
    }

    /// `ln p(target)` in nats of each position, 0 where the target is [`dipaco_shards::IGNORE`]: `tokens` and `targets`
    /// are (B, T), row-major, B = `rows`.
    ///
    /// # Errors
    /// When the sequences do not fit the model, or the device fails.
    pub fn token_log_probs(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        rows: usize,
    ) -> Result<Vec<f32>, PathError> {
        self.compute.token_log_probs(tokens, targets, rows)
    }

    /// Takes one AdamW step on the next batch of the shard.
    ///
    /// # Errors
    /// When the data can't be read, the device fails, or the loss or the gradient is not finite; the weights are
    /// unchanged then.
    pub fn step(&mut self, sampler: &Sampler, path: PathId) -> Result<StepReport, PathError> {
        let batch = sampler.batch(self.state.position, self.config.batch)?;
        self.step_batch(&batch.tokens, &batch.targets, path)
    }

    /// Takes one AdamW step on B sequences: `tokens` and `targets` are (B, T), row-major.
    ///
    /// # Errors
    /// As [`step`](Self::step), and when the sequences do not fit the model.
    pub fn step_batch(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        path: PathId,
    ) -> Result<StepReport, PathError> {
        let InnerConfig { adamw, schedule, first_step, total_steps, .. } = &self.config;
        let step = self.state.step.saturating_sub(*first_step);
        let rate = learning_rate(step, *total_steps, adamw.learning_rate, schedule);
        let report = self.compute.step(tokens, targets, &self.config, rate, &mut self.state)?;
        if !report.is_finite() {
            return Err(PathError::Diverged { path, step: self.state.step, loss: report.loss });
        }
        self.state.step += 1;
        self.state.position += self.config.batch as u64;
        Ok(report)
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
            let inner = InnerConfig::of_lease(&WorkerPlan::new(config), phase_step);
            (inner.first_step, inner.total_steps)
        };
        assert_eq!(spans(&config, 60), (0, 300));
        config.train.schedule_at_phase = ScheduleAtPhase::Restart;
        assert_eq!(spans(&config, 0), (0, 300));
        assert_eq!(spans(&config, 60), (60, 240));
    }
}
