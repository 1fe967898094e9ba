//! A path on the CPU with AdamW, the reference for steps on a GPU.

use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, Path, init, path_specs, split};
use dipaco_optim::{AdamWConfig, AdamWMoments, AdamWStep, adamw_step, clip_scale, squared_norm};
use dipaco_topology::{Topology, TopologyConfig};

/// A dense path from a seed.
pub(crate) struct CpuPath {
    pub(crate) path: Path,
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
    step: u64,
}

/// Result of a step on the CPU.
pub(crate) struct CpuStep {
    pub(crate) loss: f32,
    pub(crate) gradient_norm: f64,
    pub(crate) gradient: Vec<f32>,
}

impl CpuPath {
    pub(crate) fn new(config: &ModelConfig, seed: u64) -> Self {
        let topology = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks).unwrap();
        let modules = split(config, &topology, &init(config, seed).unwrap()).unwrap();
        let load = |weights| Arc::new(Module::load_trainable(weights, &Device::Cpu).unwrap());
        let modules: Vec<Arc<Module>> = modules.iter().map(load).collect();
        let path = Path::compose(config, &topology, &modules).unwrap();
        let count = dipaco_model::parameters(&path_specs(config));
        Self { path, first: vec![0.0; count], second: vec![0.0; count], step: 0 }
    }

    /// Returns the weights, flat in the order of `path_specs`.
    pub(crate) fn weights(&self) -> Vec<f32> {
        self.path.weights().unwrap().values
    }

    /// Takes one step, as the inner loop does.
    pub(crate) fn step(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        batch: usize,
        rate: f64,
        adamw: &AdamWConfig,
    ) -> CpuStep {
        let (loss, gradients) = self.path.gradients(tokens, targets, batch, batch).unwrap();
        let mut gradient = Vec::new();
        gradients.for_each(|_, values| gradient.extend_from_slice(values)).unwrap();
        let squared = squared_norm(&gradient);
        let gradient_scale = clip_scale(squared, adamw.clip_norm);
        self.step += 1;
        let mut next = 0;
        let (first, second, number) = (&mut self.first, &mut self.second, self.step);
        self.path
            .update(&gradients, |_, spec, values, gradient| {
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
