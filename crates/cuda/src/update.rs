//! Clipping and AdamW over all parameters.

use dipaco_model::Dtype;

use crate::CudaError;
use crate::device::{Address, Grid, KernelDevice};
use crate::engine::Engine;
use crate::kernels::SQUARES_CHUNK;

impl<D: KernelDevice> Engine<D> {
    /// Clips the gradient and takes a step. If the loss or the gradient is not finite, the kernels change nothing.
    pub(crate) fn update(&mut self) -> Result<(), CudaError> {
        let parameters = self.layout.parameters;
        let chunks = parameters.div_ceil(SQUARES_CHUNK);
        let (report, squares, numbers) = (self.arena.report, self.arena.squares, self.arena.numbers);
        let arguments = [squares.into(), self.arena.gradient.into(), (parameters as u64).into()];
        self.run("squared_norm", Grid::line(chunks), 256, &arguments)?;
        let arguments = [report.into(), squares.into(), (chunks as i32).into(), numbers.into()];
        self.run("clip", Grid::line(1), 256, &arguments)?;
        let arena = &self.arena;
        let bf16 = self.config.dtype == Dtype::Bf16;
        let arguments = [
            arena.weights.into(),
            arena.first.into(),
            arena.second.into(),
            if bf16 { arena.copy } else { Address::NULL }.into(),
            arena.gradient.into(),
            arena.segments.into(),
            report.into(),
            numbers.into(),
        ];
        self.run("adamw", Grid::line(self.segments), 512, &arguments)
    }
}
