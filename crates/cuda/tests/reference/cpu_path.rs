//! A path on the CPU with AdamW: what steps on a GPU are compared with.

use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, Path, init, path_specs, split};
use dipaco_optim::{AdamWConfig, adamw_step, clip_scale, squared_norm};
use dipaco_topology::{Topology, TopologyConfig};

/// A dense path from a seed.
pub(crate) struct CpuPath {
    pub(crate) path: Path,
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
    step: u64,
}

/// What a step on the CPU found.
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

    /// The weights, flat in the order of `path_specs`.
    pub(crate) fn weights(&self) -> Vec<f32> {
        self.path.weights().unwrap().values
    }

    /// One step as the inner loop takes it.
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
        let scale = clip_scale(squared, adamw.clip_norm);
        self.step += 1;
        let mut next = 0;
        let (first, second, step) = (&mut self.first, &mut self.second, self.step);
        self.path
            .update(&gradients, |_, spec, values, gradient| {
                let at = next..next + values.len();
                next = at.end;
                let (first, second) = (&mut first[at.clone()], &mut second[at]);
                adamw_step(values, gradient, first, second, step, rate, scale, spec.decay, adamw);
            })
            .unwrap();
        CpuStep { loss: loss.mean, gradient_norm: squared.sqrt(), gradient }
    }
}
