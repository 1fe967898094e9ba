//! Clipping and AdamW over all parameters.

use dipaco_model::Dtype;
use dipaco_optim::AdamWConfig;

use crate::CudaError;
use crate::device::{Address, Grid, KernelDevice};
use crate::engine::Engine;
use crate::kernels::SQUARES_CHUNK;
use crate::operands::Step;

impl<D: KernelDevice> Engine<D> {
    /// Clips the gradient and takes a step. If the loss or the gradient is not finite, the kernels change nothing.
    pub(crate) fn update(&mut self, adamw: &AdamWConfig, step: Step) -> Result<(), CudaError> {
        let parameters = self.layout.parameters;
        let chunks = parameters.div_ceil(SQUARES_CHUNK);
        let (report, squares) = (self.arena.report, self.arena.squares);
        let arguments = [squares.into(), self.arena.gradient.into(), (parameters as u64).into()];
        self.run("squared_norm", Grid::line(chunks), 256, &arguments)?;
        let arguments = [report.into(), squares.into(), (chunks as i32).into(), adamw.clip_norm.into()];
        self.run("clip", Grid::line(1), 256, &arguments)?;
        let arena = &self.arena;
        let bf16 = self.config.dtype == Dtype::Bf16;
        let number = step.number as f64;
        let arguments = [
            arena.weights.into(),
            arena.first.into(),
            arena.second.into(),
            if bf16 { arena.copy } else { Address::NULL }.into(),
            arena.gradient.into(),
            arena.segments.into(),
            report.into(),
            ((1.0 - step.learning_rate * adamw.weight_decay) as f32).into(),
            ((step.learning_rate / (1.0 - adamw.beta1.powf(number))) as f32).into(),
            ((1.0 / (1.0 - adamw.beta2.powf(number)).sqrt()) as f32).into(),
            (adamw.beta1 as f32).into(),
            ((1.0 - adamw.beta1) as f32).into(),
            (adamw.beta2 as f32).into(),
            ((1.0 - adamw.beta2) as f32).into(),
            (adamw.epsilon as f32).into(),
        ];
        self.run("adamw", Grid::line(self.segments), 512, &arguments)
    }
}
