//! A path trained on an NVIDIA GPU.

use std::sync::Arc;

use dipaco_cuda::{AdamW, CudaOptions, CudaPath, Gpu, PathShape, Precision};
use dipaco_model::{Dtype, ModelConfig, ModuleWeights, TensorSpec, join, split};
use dipaco_topology::Topology;

use crate::PathError;
use crate::state::PathState;
use crate::trainer::{InnerConfig, StepReport};

/// A path on the GPU, and what cuts its weights into modules.
pub(crate) struct GpuPath {
    path: CudaPath,
    model: ModelConfig,
    topology: Topology,
    specs: Arc<[TensorSpec]>,
    /// Whether steps were taken since the moments were last read.
    stepped: bool,
}

impl GpuPath {
    pub(super) fn new(
        gpu: &Gpu,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        state: &PathState,
        config: &InnerConfig,
    ) -> Result<Self, PathError> {
        let whole = join(model, topology, weights)?;
        let options = CudaOptions {
            precision: match model.dtype {
                Dtype::F32 => Precision::F32,
                Dtype::Bf16 => Precision::Bf16,
            },
            micro_batch: config.at_once(),
            checkpointing: config.activation_checkpointing,
        };
        let numbers = dipaco_cuda::PathState {
            weights: &whole.values,
            first: &state.first,
            second: &state.second,
            step: state.step,
        };
        let path = CudaPath::new(gpu, shape(model), options, &numbers)?;
        let (model, topology) = (model.clone(), topology.clone());
        Ok(Self { path, model, topology, specs: whole.specs, stepped: false })
    }

    pub(super) fn step(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        config: &InnerConfig,
        learning_rate: f64,
    ) -> Result<StepReport, PathError> {
        let adamw = AdamW {
            learning_rate,
            beta1: config.adamw.beta1,
            beta2: config.adamw.beta2,
            epsilon: config.adamw.epsilon,
            weight_decay: config.adamw.weight_decay,
            clip_norm: config.adamw.clip_norm,
        };
        self.stepped = true;
        let done = self.path.step(tokens, targets, config.batch, &adamw)?;
        let dipaco_cuda::StepReport { loss, gradient_norm, counted } = done;
        Ok(StepReport { loss, gradient_norm, learning_rate, tokens: counted })
    }

    pub(super) fn token_log_probs(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        rows: usize,
    ) -> Result<Vec<f32>, PathError> {
        Ok(self.path.token_log_probs(tokens, targets, rows)?)
    }

    pub(super) fn weights(&mut self) -> Result<Vec<ModuleWeights>, PathError> {
        let whole = ModuleWeights::new(self.specs.clone(), self.path.weights()?)?;
        Ok(split(&self.model, &self.topology, &whole)?)
    }

    pub(super) fn refresh(&mut self, state: &mut PathState) -> Result<(), PathError> {
        if self.stepped {
            (state.first, state.second) = self.path.moments()?;
            self.stepped = false;
        }
        Ok(())
    }
}

fn shape(model: &ModelConfig) -> PathShape {
    PathShape {
        hidden_size: model.hidden_size,
        blocks: model.blocks,
        heads: model.heads,
        head_dim: model.head_dim,
        ffn_size: model.ffn_size,
        vocab_size: model.vocab_size,
        context: model.context,
        rope_theta: model.rope_theta,
        rms_norm_eps: model.rms_norm_eps,
        tie_embeddings: model.tie_embeddings,
    }
}
