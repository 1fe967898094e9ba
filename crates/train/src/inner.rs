//! The inner loop: AdamW steps of one path.

use std::sync::Arc;

use dipaco_config::TrainConfig;
use dipaco_model::{
    Device, Gradients, Loss, ModelConfig, Module, ModuleWeights, Path, Phase, Profile, keep_freed_memory,
    path_specs,
};
use dipaco_optim::{AdamWConfig, ScheduleConfig, adamw_step, clip_scale, learning_rate, squared_norm};
use dipaco_shards::Sampler;
use dipaco_topology::{PathId, Topology};

use crate::TrainError;
use crate::path_state::PathState;

/// What the inner loop needs to know besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct InnerConfig {
    /// AdamW's numbers.
    pub adamw: AdamWConfig,
    /// The learning rate over the whole run.
    pub schedule: ScheduleConfig,
    /// Inner steps that the schedule spans.
    pub total_steps: u64,
    /// B, sequences per step.
    pub batch: usize,
    /// Sequences per forward and backward pass; 0 takes the whole batch at once.
    pub micro_batch: usize,
    /// Whether blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
}

impl InnerConfig {
    /// The inner loop of a path's training.
    #[must_use]
    pub fn of_path(train: &TrainConfig, total_steps: u64) -> Self {
        Self {
            adamw: train.adamw.clone(),
            schedule: train.schedule.clone(),
            total_steps,
            batch: train.batch,
            micro_batch: train.micro_batch,
            activation_checkpointing: train.activation_checkpointing,
        }
    }
}

/// One path being trained: its weights on the device and its state.
pub struct Trainer {
    path: Path,
    modules: Vec<Arc<Module>>,
    /// Where each tensor's moments begin in the state's flat arrays, in `path_specs` order.
    offsets: Vec<usize>,
    config: InnerConfig,
    state: PathState,
    profile: Profile,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("step", &self.state.step)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What one inner step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean cross entropy over the step's targets, in nats per token.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// Targets that counted.
    pub tokens: u64,
}

impl Trainer {
    /// Composes a trainable path from its modules, one per level.
    ///
    /// # Errors
    /// When modules, state and model do not fit together.
    pub fn new(
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        state: PathState,
        config: InnerConfig,
    ) -> Result<Self, TrainError> {
        let specs = path_specs(model);
        let expected = dipaco_model::parameters(&specs);
        if state.first.len() != expected || state.second.len() != expected {
            return Err(TrainError::PathStateLength { expected, found: state.first.len() });
        }
        keep_freed_memory();
        let load = |weights| Module::load_trainable(weights, &Device::Cpu).map(Arc::new);
        let modules = weights.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let path =
            Path::compose(model, topology, &modules)?.with_checkpointing(config.activation_checkpointing);
        let offsets = specs
            .iter()
            .scan(0, |next, spec| {
                let offset = *next;
                *next += spec.parameters();
                Some(offset)
            })
            .collect();
        Ok(Self { path, modules, offsets, config, state, profile: Profile::default() })
    }

    /// The path as it is now.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state after the steps so far.
    #[must_use]
    pub fn state(&self) -> &PathState {
        &self.state
    }

    /// Consumes the trainer and keeps its state.
    #[must_use]
    pub fn into_state(self) -> PathState {
        self.state
    }

    /// The weights of the modules as they are now, one per level.
    ///
    /// # Errors
    /// When a tensor can't be read back.
    pub fn weights(&self) -> Result<Vec<ModuleWeights>, TrainError> {
        Ok(self.modules.iter().map(|module| module.weights()).collect::<Result<_, _>>()?)
    }

    /// The same trainer, adding up in `profile` where its time goes.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.path = self.path.with_profile(profile.clone());
        self.profile = profile;
        self
    }

    /// Takes one AdamW step on the next batch of the shard.
    ///
    /// # Errors
    /// When the data can't be read, or the loss or the gradient is not finite; the weights are unchanged then.
    pub fn step(&mut self, sampler: &Sampler, path: PathId) -> Result<StepReport, TrainError> {
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
    ) -> Result<StepReport, TrainError> {
        let InnerConfig { batch, micro_batch, .. } = self.config;
        let micro_batch = if micro_batch == 0 { batch } else { micro_batch };
        let (loss, gradients) = self.path.gradients(tokens, targets, batch, micro_batch)?;
        self.profile.clone().time(Phase::Optimizer, || self.apply(loss, &gradients, path))
    }

    /// Clips the gradients and lets AdamW take a step.
    fn apply(&mut self, loss: Loss, gradients: &Gradients, path: PathId) -> Result<StepReport, TrainError> {
        let mut squared = 0.0;
        gradients.for_each(|_, gradient| squared += squared_norm(gradient))?;
        let diverged = !loss.mean.is_finite() || !squared.is_finite();
        if diverged {
            return Err(TrainError::Diverged { path, step: self.state.step, loss: loss.mean });
        }
        let scale = clip_scale(squared, self.config.adamw.clip_norm);
        let rate = learning_rate(
            self.state.step,
            self.config.total_steps,
            self.config.adamw.learning_rate,
            &self.config.schedule,
        );
        let step = self.state.step + 1;
        let (offsets, adamw) = (&self.offsets, &self.config.adamw);
        let (first, second) = (&mut self.state.first, &mut self.state.second);
        self.path.update(gradients, |index, spec, params, gradient| {
            let range = offsets[index]..offsets[index] + params.len();
            let (first, second) = (&mut first[range.clone()], &mut second[range]);
            adamw_step(params, gradient, first, second, step, rate, scale, spec.decay, adamw);
        })?;
        self.state.step = step;
        self.state.position += self.config.batch as u64;
        Ok(StepReport {
            loss: loss.mean,
            gradient_norm: squared.sqrt(),
            learning_rate: rate,
            tokens: loss.counted as u64,
        })
    }
}
