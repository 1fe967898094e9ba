//! The inner loop: the optimizer's steps of one path.

use dipaco_model::{ModelConfig, ModuleView, ModuleWeights, Profile, TokenBatch, parameters};
use dipaco_optim::learning_rate;
use dipaco_topology::{PathId, Topology};

#[cfg(feature = "cuda")]
use crate::compute::GpuPath;
use crate::compute::{Compute, CpuPath};
use crate::device::TrainDevice;
use crate::inner_step::{InnerConfig, StepReport};
use crate::layout::FragmentLayout;
use crate::state::PathState;
use crate::trainer_memory::TrainerMemory;
use crate::{MomentSpecs, PathError};

/// A path in training: its weights on the device, and its state.
pub struct Trainer {
    compute: Box<dyn Compute>,
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

impl Trainer {
    /// Composes a trainable path from its modules, one per level, on a device.
    ///
    /// # Errors
    /// When modules, state and model do not fit together, or the device can't take the path. A GPU takes neither
    /// Muon nor `outer.optimizer = "adamw"`.
    pub fn new(
        device: &TrainDevice,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        state: PathState,
        config: InnerConfig,
    ) -> Result<Self, PathError> {
        let views: Vec<_> = weights.iter().map(ModuleWeights::view).collect();
        Self::reusing(&TrainerMemory::default(), device, model, topology, &views, state, config)
    }

    /// [`Trainer::new`] in the memory that an earlier trainer left with [`Trainer::end`].
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn reusing(
        memory: &TrainerMemory,
        device: &TrainDevice,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleView<'_>],
        state: PathState,
        config: InnerConfig,
    ) -> Result<Self, PathError> {
        let moments = MomentSpecs::new(model, topology, config.optimizer);
        if [state.first.len(), state.second.len()] != [moments.first(), moments.second()].map(parameters) {
            let (expected, found) = (moments.values(), state.first.len() + state.second.len());
            return Err(PathError::StateLength { expected, found });
        }
        let compute: Box<dyn Compute> = match device {
            TrainDevice::Cpu => {
                let checkpointing = config.activation_checkpointing;
                Box::new(CpuPath::new(memory.take_cpu(), model, topology, weights, checkpointing)?)
            }
            #[cfg(feature = "cuda")]
            TrainDevice::Cuda(gpu) => {
                let earlier = memory.take_gpu();
                Box::new(GpuPath::new(earlier, gpu, model, topology, weights, &state, &config)?)
            }
        };
        Ok(Self { compute, config, state })
    }

    /// Number of steps of the path, including steps before this trainer.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state.step
    }

    /// Position of the next batch in the order of the path's sequences.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.state.position
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

    /// [`Trainer::into_state`]; leaves its memory to the next trainer.
    ///
    /// # Errors
    /// As [`Trainer::into_state`].
    pub fn end(mut self, memory: &TrainerMemory) -> Result<PathState, PathError> {
        self.compute.refresh(&mut self.state)?;
        memory.give(self.compute.into_kept());
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
        self.compute.set_profile(profile);
        self
    }

    /// `ln p(target)` in nats of each position (B, T), 0 where the target is [`dipaco_model::IGNORE`].
    ///
    /// # Errors
    /// When the sequences do not fit the model, or the device fails.
    pub fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, PathError> {
        self.compute.token_log_probs(batch)
    }

    /// Sequences that a step reads at once, at least 1.
    pub(crate) fn at_once(&self) -> usize {
        self.config.at_once().max(1)
    }

    /// Takes one step of the optimizer on a batch, and moves the position behind it.
    ///
    /// # Errors
    /// When the sequences do not fit the model, the device fails, or the loss or the gradient is not finite; the weights
    /// are unchanged then.
    pub fn step(&mut self, batch: &TokenBatch, path: PathId) -> Result<StepReport, PathError> {
        let InnerConfig { adamw, schedule, first_step, total_steps, .. } = &self.config;
        let step = self.state.step.saturating_sub(*first_step);
        let rate = learning_rate(step, *total_steps, adamw.learning_rate, schedule);
        let report = self.compute.step(batch, &self.config, rate, &mut self.state)?;
        if !report.is_finite() {
            return Err(PathError::Diverged { path, step: self.state.step, loss: report.loss });
        }
        self.state.step += 1;
        self.state.position += batch.rows() as u64;
        Ok(report)
    }
}
