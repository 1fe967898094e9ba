//! A path trained on the CPU.

use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, ModuleWeights, Path, Phase, Profile, TokenBatch};
use dipaco_optim::{AdamWStep, MuonScratch, clip_scale, squared_norm};
use dipaco_topology::Topology;

use super::Compute;
use super::update::Update;
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
    pub(crate) fn new(
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        checkpointing: bool,
    ) -> Result<Self, PathError> {
        let load = |(level, weights)| {
            let load = if topology.trains(level) { Module::load_trainable } else { Module::load };
            load(weights, &Device::Cpu).map(Arc::new)
        };
        let modules = weights.iter().enumerate().map(load).collect::<Result<Vec<_>, _>>()?;
        let path = Path::compose(model, topology, &modules)?.with_checkpointing(checkpointing);
        Ok(Self { path, modules, profile: Profile::default(), scratch: MuonScratch::default() })
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
            let mut update = Update {
                config,
                step: AdamWStep { number: state.step + 1, learning_rate, gradient_scale, decay: true },
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

    fn set_profile(&mut self, profile: Profile) {
        self.path = self.path.clone().with_profile(profile.clone());
        self.profile = profile;
    }
}
