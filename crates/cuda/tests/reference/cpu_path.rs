//! A path on the CPU with AdamW, the reference for steps on a GPU.

use std::sync::Arc;

use dipaco_model::{
    Device, IGNORE, ModelConfig, Module, ModuleWeights, Path, TensorSpec, TokenBatch, TokenRows, init,
    path_specs, split,
};
use dipaco_optim::{AdamWConfig, AdamWMoments, AdamWStep, adamw_step, clip_scale, squared_norm};
use dipaco_topology::{Topology, TopologyConfig};

use super::Trained;

/// A path from a seed, and the moments of its trained parameters.
pub(crate) struct CpuPath {
    pub(crate) path: Path,
    pub(crate) trained: Trained,
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
    step: u64,
}

/// Result of a step on the CPU.
pub(crate) struct CpuStep {
    pub(crate) loss: f32,
    pub(crate) gradient_norm: f64,
    /// Of the trained parameters.
    pub(crate) gradient: Vec<f32>,
}

impl CpuPath {
    /// A path of which all trains.
    pub(crate) fn new(config: &ModelConfig, seed: u64) -> Self {
        Self::with_levels(config, &TopologyConfig::dense(config.blocks), seed)
    }

    /// A path with these levels, one module each, of which some may be frozen.
    pub(crate) fn with_levels(config: &ModelConfig, levels: &TopologyConfig, seed: u64) -> Self {
        let topology = Topology::new(levels, config.blocks).unwrap();
        let modules = split(config, &topology, &init(config, seed).unwrap()).unwrap();
        let load = |(level, weights): (usize, &ModuleWeights)| {
            let module = Module::load_view(weights.view(), topology.trains(level), &Device::Cpu);
            Arc::new(module.unwrap())
        };
        let modules: Vec<Arc<Module>> = modules.iter().enumerate().map(load).collect();
        let path = Path::compose(config, &topology, &modules).unwrap();
        let trains = |spec: &TensorSpec| topology.part_trains(spec.part);
        let trained = Trained::of(config, trains);
        let count = path_specs(config).iter().filter(|&spec| trains(spec)).map(TensorSpec::parameters).sum();
        Self { path, trained, first: vec![0.0; count], second: vec![0.0; count], step: 0 }
    }

    /// Returns the weights, flat in the order of `path_specs`.
    pub(crate) fn weights(&self) -> Vec<f32> {
        self.path.weights().unwrap().values
    }

    /// Takes one step, as the inner loop does.
    pub(crate) fn step(&mut self, batch: &TokenBatch, rate: f64, adamw: &AdamWConfig) -> CpuStep {
        let (loss, gradients) = self.path.gradients(batch, batch.rows()).unwrap();
        let gradient: Vec<f32> = gradients.tensors().flat_map(|(_, values)| values).copied().collect();
        let squared = squared_norm(&gradient);
        let gradient_scale = clip_scale(squared, adamw.clip_norm);
        self.step += 1;
        let mut next = 0;
        let (first, second, number) = (&mut self.first, &mut self.second, self.step);
        self.path
            .update(&gradients, |spec, values, gradient| {
                let at = next..next + values.len();
                next = at.end;
                let moments = AdamWMoments { first: &mut first[at.clone()], second: &mut second[at] };
                let step = AdamWStep { number, learning_rate: rate, gradient_scale, decay: spec.decay };
                adamw_step(values, gradient, moments, &step, adamw);
            })
            .unwrap();
        CpuStep { loss: loss.mean, gradient_norm: squared.sqrt(), gradient }
    }
}

/// A batch of `rows` rows as long as the context. It differs between steps, and some targets are not counted.
pub(crate) fn data(config: &ModelConfig, rows: usize, step: u32) -> TokenBatch {
    let count = (rows * config.context) as u32;
    let token = |i: u32| (i * i + 7 * i + 13 * step) % config.vocab_size as u32;
    let target = |i: u32| if i % 5 == 2 { IGNORE } else { token(i + 1) };
    batch((0..count).map(token).collect(), (0..count).map(target).collect(), rows, config.vocab_size)
}

/// A batch of these tokens and targets.
pub(crate) fn batch(tokens: Vec<u32>, targets: Vec<u32>, rows: usize, vocabulary: usize) -> TokenBatch {
    let tokens = TokenRows::new(tokens, rows, vocabulary).unwrap();
    TokenBatch::new(tokens, targets, vocabulary).unwrap()
}
