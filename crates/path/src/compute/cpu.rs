//! A path trained on the CPU.

use std::sync::Arc;

use dipaco_model::{Device, Gradients, Loss, ModelConfig, Module, ModuleWeights, Path, Phase, Profile};
use dipaco_optim::{AdamWMoments, AdamWStep, adamw_step, clip_scale, squared_norm};
use dipaco_topology::Topology;

use crate::PathError;
use crate::inner_step::{InnerConfig, StepReport};
use crate::layout::FragmentLayout;
use crate::state::PathState;

/// A path and its modules.
pub(crate) struct CpuPath {
    path: Path,
    modules: Vec<Arc<Module>>,
    /// First index of each tensor's moments in the flat arrays of the path's state, in the order of `path_specs`.
    offsets: Vec<usize>,
    profile: Profile,
}

impl CpuPath {
    pub(super) fn new(
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        checkpointing: bool,
    ) -> Result<Self, PathError> {
        let load = |weights| Module::load_trainable(weights, &Device::Cpu).map(Arc::new);
        let modules = weights.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let path = Path::compose(model, topology, &modules)?.with_checkpointing(checkpointing);
        let offsets = path
            .specs()
            .iter()
            .scan(0, |next, spec| {
                let offset = *next;
                *next += spec.parameters();
                Some(offset)
            })
            .collect();
        Ok(Self { path, modules, offsets, profile: Profile::default() })
    }

    pub(super) fn with_profile(mut self, profile: Profile) -> Self {
        self.path = self.path.with_profile(profile.clone());
        self.profile = profile;
        self
    }

    pub(super) fn step(
        &self,
        tokens: &[u32],
        targets: &[u32],
        config: &InnerConfig,
        learning_rate: f64,
        state: &mut PathState,
    ) -> Result<StepReport, PathError> {
        let (loss, gradients) = self.path.gradients(tokens, targets, config.batch, config.at_once())?;
        self.profile.time(Phase::Optimizer, || self.apply(loss, &gradients, config, learning_rate, state))
    }

    /// Clips the gradients and takes an AdamW step.
    fn apply(
        &self,
        loss: Loss,
        gradients: &Gradients,
        config: &InnerConfig,
        learning_rate: f64,
        state: &mut PathState,
    ) -> Result<StepReport, PathError> {
        let mut squared = 0.0;
        gradients.for_each(|_, gradient| squared += squared_norm(gradient))?;
        let report = StepReport {
            loss: loss.mean,
            gradient_norm: squared.sqrt(),
            learning_rate,
            tokens: loss.counted as u64,
        };
        if !report.is_finite() {
            return Ok(report);
        }
        let adamw = &config.adamw;
        let gradient_scale = clip_scale(squared, adamw.clip_norm);
        let number = state.step + 1;
        let (first, second) = (&mut state.first, &mut state.second);
        self.path.update(gradients, |index, spec, params, gradient| {
            let range = self.offsets[index]..self.offsets[index] + params.len();
            let moments = AdamWMoments { first: &mut first[range.clone()], second: &mut second[range] };
            let step = AdamWStep { number, learning_rate, gradient_scale, decay: spec.decay };
            adamw_step(params, gradient, moments, &step, adamw);
        })?;
        Ok(report)
    }

    pub(super) fn token_log_probs(
        &self,
        tokens: &[u32],
        targets: &[u32],
        rows: usize,
    ) -> Result<Vec<f32>, PathError> {
        Ok(self.path.token_log_probs(tokens, targets, rows)?)
    }

    pub(super) fn fragment(
        &self,
        level: usize,
        layout: &FragmentLayout,
    ) -> Result<Option<Vec<f32>>, PathError> {
        let module = self.modules.get(level);
        Ok(module.map(|module| module.with_values(|values| layout.gather(values))).transpose()?)
    }

    pub(super) fn weights(&self) -> Result<Vec<ModuleWeights>, PathError> {
        Ok(self.modules.iter().map(|module| module.weights()).collect::<Result<_, _>>()?)
    }
}
