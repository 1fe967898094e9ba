//! A path trained on an NVIDIA GPU.

use std::sync::Arc;

use dipaco_cuda::{CudaOptions, CudaPath, Gpu, PathUpload, Trained};
use dipaco_model::{ModelConfig, ModuleView, ModuleWeights, TensorSpec, TokenBatch, join, split};
use dipaco_optim::Optimizer;
use dipaco_topology::Topology;

use super::{Compute, KeptPath};
use crate::PathError;
use crate::device::shape_for_rows;
use crate::inner_step::{InnerConfig, StepReport};
use crate::layout::FragmentLayout;
use crate::state::PathState;

/// A path on the GPU, with the shape and the topology that cut its weights into modules.
pub(crate) struct GpuPath {
    path: CudaPath,
    model: ModelConfig,
    topology: Topology,
    specs: Arc<[TensorSpec]>,
    /// True if a step was taken since the moments were last copied from the GPU.
    stepped: bool,
    /// The weights of the modules, if a fragment was read since the last step.
    read: Option<Vec<ModuleWeights>>,
}

impl GpuPath {
    /// Puts a path on the GPU, into the memory of `earlier` if that has the same shape.
    pub(crate) fn new(
        earlier: Option<Self>,
        gpu: &Gpu,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleView<'_>],
        state: &PathState,
        config: &InnerConfig,
    ) -> Result<Self, PathError> {
        let setting = match config.optimizer {
            Optimizer::AdamW => None,
            Optimizer::Muon => Some("optimizer = \"muon\""),
            Optimizer::Gradient => Some("outer.optimizer = \"adamw\""),
        };
        if let Some(setting) = setting {
            return Err(PathError::NotOnGpu { setting: setting.to_owned() });
        }
        let weights: Vec<ModuleWeights> = weights.iter().map(|module| module.to_weights()).collect();
        let whole = join(model, topology, &weights)?;
        let options =
            CudaOptions { micro_batch: config.at_once(), checkpointing: config.activation_checkpointing };
        let upload = PathUpload {
            weights: &whole.values,
            trained: &Trained::of(model, |spec| topology.part_trains(spec.part)),
            first: &state.first,
            second: &state.second,
            step: state.step.saturating_sub(config.rested),
        };
        let shape = shape_for_rows(model, config.sequence_tokens);
        let path = match earlier.filter(|earlier| earlier.path.has_shape(gpu, &shape, options)) {
            Some(Self { mut path, .. }) => {
                path.reload(&upload)?;
                path
            }
            None => CudaPath::new(gpu, shape, options, &upload)?,
        };
        let (model, topology) = (model.clone(), topology.clone());
        Ok(Self { path, model, topology, specs: whole.specs, stepped: false, read: None })
    }

    /// The weights of the modules, which are copied from the GPU if they were not read since the last step.
    fn take_modules(&mut self) -> Result<Vec<ModuleWeights>, PathError> {
        if let Some(modules) = self.read.take() {
            return Ok(modules);
        }
        let whole = ModuleWeights::new(self.specs.clone(), self.path.weights()?)?;
        Ok(split(&self.model, &self.topology, &whole)?)
    }
}

impl Compute for GpuPath {
    fn step(
        &mut self,
        batch: &TokenBatch,
        config: &InnerConfig,
        learning_rate: f64,
        _state: &mut PathState,
    ) -> Result<StepReport, PathError> {
        (self.stepped, self.read) = (true, None);
        let done = self.path.step(batch, &config.adamw, learning_rate)?;
        Ok(StepReport {
            loss: done.loss.mean,
            gradient_norm: done.gradient_norm,
            learning_rate,
            tokens: done.loss.counted as u64,
        })
    }

    fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, PathError> {
        Ok(self.path.token_log_probs(batch)?)
    }

    fn weights(&mut self) -> Result<Vec<ModuleWeights>, PathError> {
        self.take_modules()
    }

    fn fragment(&mut self, level: usize, layout: &FragmentLayout) -> Result<Option<Vec<f32>>, PathError> {
        // The other fragments of the path follow.
        let modules = self.take_modules()?;
        let modules = self.read.insert(modules);
        Ok(modules.get(level).map(|module| layout.gather(&module.values)))
    }

    fn refresh(&mut self, state: &mut PathState) -> Result<(), PathError> {
        if self.stepped {
            self.path.moments_into(&mut state.first, &mut state.second)?;
            self.stepped = false;
        }
        Ok(())
    }

    fn into_kept(self: Box<Self>) -> KeptPath {
        KeptPath::Gpu(self)
    }
}
