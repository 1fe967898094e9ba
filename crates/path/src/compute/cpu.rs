//! A path trained on the CPU.

use std::sync::Arc;

use dipaco_model::{
    Device, ModelConfig, Module, ModuleView, ModuleWeights, Path, Phase, Profile, TokenBatch,
};
use dipaco_optim::{AdamWStep, MuonScratch, clip_scale, squared_norm};
use dipaco_topology::Topology;

use super::update::Update;
use super::{Compute, KeptPath};
use crate::PathError;
use crate::inner_step::{InnerConfig, StepReport};
use crate::layout::FragmentLayout;
use crate::state::PathState;

/// A path and its modules.
pub(crate) struct CpuPath {
    path: Path,
    modules: Vec<Arc<Module>>,
    profile: Profile,
    scratch: MuonScratch,
}

impl CpuPath {
    /// Loads a path, into the memory of `earlier` if that has the same shape.
    pub(crate) fn new(
        earlier: Option<Self>,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleView<'_>],
        checkpointing: bool,
    ) -> Result<Self, PathError> {
        if let Some(earlier) = earlier.filter(|earlier| earlier.has_shape(model, topology, weights)) {
            return earlier.reloaded(weights, checkpointing);
        }
        let load = |(level, weights): (usize, &ModuleView<'_>)| {
            Module::load_view(*weights, topology.trains(level), &Device::Cpu).map(Arc::new)
        };
        let modules = weights.iter().enumerate().map(load).collect::<Result<Vec<_>, _>>()?;
        let path = Path::compose(model, topology, &modules)?.with_checkpointing(checkpointing);
        Ok(Self { path, modules, profile: Profile::default(), scratch: MuonScratch::default() })
    }

    /// True if modules with these weights have the shape of this path's modules.
    fn has_shape(&self, model: &ModelConfig, topology: &Topology, weights: &[ModuleView<'_>]) -> bool {
        let same = |(level, (module, weights)): (usize, (&Arc<Module>, &ModuleView<'_>))| {
            module.trains() == topology.trains(level) && module.specs() == weights.specs
        };
        self.path.config() == model
            && self.modules.len() == weights.len()
            && self.modules.iter().zip(weights).enumerate().all(same)
    }

    /// Where the weights of the first module lie.
    #[cfg(test)]
    pub(crate) fn place(&self) -> *const f32 {
        self.modules[0].with_values(<[f32]>::as_ptr).unwrap()
    }

    /// Replaces the weights where they lie. Gradients and activations are written before they are read.
    fn reloaded(self, weights: &[ModuleView<'_>], checkpointing: bool) -> Result<Self, PathError> {
        for (module, weights) in self.modules.iter().zip(weights) {
            module.overwrite(*weights)?;
        }
        let profile = Profile::default();
        let path = self.path.with_checkpointing(checkpointing).with_profile(profile.clone());
        Ok(Self { path, profile, ..self })
    }
}

impl Compute for CpuPath {
    fn step(
        &mut self,
        batch: &TokenBatch,
        config: &InnerConfig,
        learning_rate: f64,
        state: &mut PathState,
    ) -> Result<StepReport, PathError> {
        let (loss, gradients) = self.path.gradients(batch, config.at_once())?;
        self.profile.time(Phase::Optimizer, || {
            let squared: f64 = gradients.tensors().map(|(_, gradient)| squared_norm(gradient)).sum();
            let tokens = loss.counted as u64;
            let report = StepReport { loss: loss.mean, gradient_norm: squared.sqrt(), learning_rate, tokens };
            if !report.is_finite() {
                return Ok(report);
            }
            let gradient_scale = clip_scale(squared, config.adamw.clip_norm);
            // Bias correction counts the steps that the moments have seen.
            let number = state.step.saturating_sub(config.rested) + 1;
            let mut update = Update {
                config,
                step: AdamWStep { number, learning_rate, gradient_scale, decay: true },
                first: &mut state.first,
                second: &mut state.second,
                scratch: &mut self.scratch,
            };
            self.path.update(&gradients, |spec, params, gradient| update.tensor(spec, params, gradient))?;
            Ok(report)
        })
    }

    fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, PathError> {
        Ok(self.path.token_log_probs(batch)?)
    }

    fn weights(&mut self) -> Result<Vec<ModuleWeights>, PathError> {
        Ok(self.modules.iter().map(|module| module.weights()).collect::<Result<_, _>>()?)
    }

    /// Reads the fragment where it lies, without a copy of its module.
    fn fragment(&mut self, level: usize, layout: &FragmentLayout) -> Result<Option<Vec<f32>>, PathError> {
        let module = self.modules.get(level);
        Ok(module.map(|module| module.with_values(|values| layout.gather(values))).transpose()?)
    }

    fn into_kept(self: Box<Self>) -> KeptPath {
        KeptPath::Cpu(self)
    }

    fn set_profile(&mut self, profile: Profile) {
        self.path = self.path.clone().with_profile(profile.clone());
        self.profile = profile;
    }
}
