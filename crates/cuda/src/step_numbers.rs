//! Numbers that differ from step to step.

use dipaco_optim::AdamWConfig;

/// Numbers that differ from step to step; `StepNumbers` of the kernels. They are uploaded before a step, so that each step
/// consists of the same launches with the same arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct StepNumbers {
    /// Largest norm of the gradient; 0 does not clip.
    clip_norm: f64,
    /// Factor of each position's gradient: 1 / counted targets of the whole batch.
    scale: f32,
    /// 1 - rate · weight decay.
    keep: f32,
    /// rate / (1 - beta1^step).
    rate: f32,
    /// 1 / sqrt(1 - beta2^step).
    root: f32,
    beta1: f32,
    /// 1 - beta1.
    fresh1: f32,
    beta2: f32,
    /// 1 - beta2.
    fresh2: f32,
    epsilon: f32,
    padding: f32,
}

impl StepNumbers {
    /// Returns the numbers of the step with this number, from 1, and this rate on a batch with `counted` targets.
    pub(crate) fn new(adamw: &AdamWConfig, number: u64, learning_rate: f64, counted: usize) -> Self {
        let number = number as f64;
        Self {
            clip_norm: adamw.clip_norm,
            scale: 1.0 / counted.max(1) as f32,
            keep: (1.0 - learning_rate * adamw.weight_decay) as f32,
            rate: (learning_rate / (1.0 - adamw.beta1.powf(number))) as f32,
            root: (1.0 / (1.0 - adamw.beta2.powf(number)).sqrt()) as f32,
            beta1: adamw.beta1 as f32,
            fresh1: (1.0 - adamw.beta1) as f32,
            beta2: adamw.beta2 as f32,
            fresh2: (1.0 - adamw.beta2) as f32,
            epsilon: adamw.epsilon as f32,
            padding: 0.0,
        }
    }
}
