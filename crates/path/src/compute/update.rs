//! The optimizer's step of a path on the CPU.

use dipaco_model::TensorSpec;
use dipaco_ops::kernel::{self, LinearShape, TransposedShape};
use dipaco_optim::{
    AdamWMoments, AdamWStep, MuonScratch, MuonStep, Optimizer, ProductShape, Products, adamw_step, muon_step,
};

use crate::inner_step::InnerConfig;
use crate::moment_specs::muon_matrix;

/// The step of all tensors of a path, one after the other.
pub(super) struct Update<'a> {
    pub(super) config: &'a InnerConfig,
    /// Learning rate, gradient scale and number of the step.
    pub(super) step: AdamWStep,
    /// The first moments of the tensors that are left.
    pub(super) first: &'a mut [f32],
    /// The second moments of the tensors that are left.
    pub(super) second: &'a mut [f32],
    pub(super) scratch: &'a mut MuonScratch,
}

impl Update<'_> {
    /// Steps the next tensor. Its moments are the next ones.
    pub(super) fn tensor(&mut self, spec: &TensorSpec, params: &mut [f32], gradient: &[f32]) {
        let (config, decay) = (self.config, spec.decay);
        if config.optimizer == Optimizer::Gradient {
            let scale = self.step.gradient_scale as f32;
            params.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= scale * gradient);
            return;
        }
        let first = self.first.split_off_mut(..params.len()).unwrap_or_default();
        if let Some((rows, columns)) = muon_matrix(config.optimizer, spec) {
            let AdamWStep { learning_rate, gradient_scale, .. } = self.step;
            let weight_decay = if decay { config.adamw.weight_decay } else { 0.0 };
            let step = MuonStep { rows, columns, learning_rate, gradient_scale, weight_decay };
            muon_step(params, gradient, first, &step, &Engine, self.scratch);
        } else {
            let second = self.second.split_off_mut(..params.len()).unwrap_or_default();
            let step = AdamWStep { decay, ..self.step };
            adamw_step(params, gradient, AdamWMoments { first, second }, &step, &config.adamw);
        }
    }
}

/// The engine of a path's products, in f32. It gives the same bits for any number of threads.
struct Engine;

impl Products for Engine {
    fn by_transposed(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape) {
        let ProductShape { rows, depth, columns } = shape;
        kernel::linear(a, b, c, LinearShape { rows, inputs: depth, outputs: columns });
    }

    fn transposed_by(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape) {
        let ProductShape { rows, depth, columns } = shape;
        kernel::transposed_product(a, b, c, TransposedShape { depth, rows, columns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn the_products_are_those_of_the_definition() {
        for (rows, depth, columns) in [(3, 5, 3), (70, 33, 129), (1, 64, 1)] {
            let shape = ProductShape { rows, depth, columns };
            let (a, b) = (numbers(1, rows * depth), numbers(2, depth * columns));
            let mut c = vec![f32::NAN; rows * columns];
            let close = |c: &[f32], sum: &dyn Fn(usize, usize) -> f32| {
                (0..rows * columns).all(|i| (c[i] - sum(i / columns, i % columns)).abs() < 1e-4)
            };
            Engine.by_transposed(&a, &b, &mut c, shape);
            let sum = |i, j| (0..depth).map(|k| a[i * depth + k] * b[j * depth + k]).sum();
            assert!(close(&c, &sum), "{shape:?}");
            c.fill(f32::NAN);
            Engine.transposed_by(&a, &b, &mut c, shape);
            let sum = |i, j| (0..depth).map(|k| a[k * rows + i] * b[k * columns + j]).sum();
            assert!(close(&c, &sum), "{shape:?}");
        }
    }

    #[test]
    fn a_step_of_muon_has_the_same_bits_with_any_number_of_threads() {
        for (rows, columns) in [(96, 256), (256, 96)] {
            let step = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut params = numbers(3, rows * columns);
                let mut momentum = numbers(4, rows * columns);
                let step =
                    MuonStep { rows, columns, learning_rate: 0.01, gradient_scale: 0.5, weight_decay: 0.1 };
                let gradient = numbers(5, rows * columns);
                pool.install(|| {
                    let mut scratch = MuonScratch::default();
                    muon_step(&mut params, &gradient, &mut momentum, &step, &Engine, &mut scratch);
                });
                (params, momentum)
            };
            let one = step(1);
            assert!(one.0.iter().all(|value| value.is_finite()));
            assert!(step(2) == one && step(5) == one);
        }
    }
}
