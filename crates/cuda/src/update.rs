//! Clipping and AdamW over all parameters.

use crate::device::{Address, Device};
use crate::engine::Engine;
use crate::kernels::SQUARES_CHUNK;
use crate::{AdamW, CudaError, Precision};

/// Clips the gradient and takes step number `step`, from 1; nothing changes when loss or gradient are not finite.
pub(crate) fn update<D: Device>(engine: &mut Engine<D>, adamw: &AdamW, step: u64) -> Result<(), CudaError> {
    let parameters = engine.shape.parameters();
    let chunks = parameters.div_ceil(SQUARES_CHUNK);
    let arena = &engine.arena;
    let (report, squares) = (arena.report, arena.squares);
    let arguments = [squares.into(), arena.gradient.into(), (parameters as u64).into()];
    engine.run("squared_norm", (chunks, 1), 256, &arguments)?;
    let arguments = [report.into(), squares.into(), (chunks as i32).into(), adamw.clip_norm.into()];
    engine.run("clip", (1, 1), 256, &arguments)?;
    let arena = &engine.arena;
    let bf16 = engine.options.precision == Precision::Bf16;
    let step = step as f64;
    let arguments = [
        arena.weights.into(),
        arena.first.into(),
        arena.second.into(),
        if bf16 { arena.copy } else { Address::NULL }.into(),
        arena.gradient.into(),
        arena.segments.into(),
        report.into(),
        ((1.0 - adamw.learning_rate * adamw.weight_decay) as f32).into(),
        ((adamw.learning_rate / (1.0 - adamw.beta1.powf(step))) as f32).into(),
        ((1.0 / (1.0 - adamw.beta2.powf(step)).sqrt()) as f32).into(),
        (adamw.beta1 as f32).into(),
        ((1.0 - adamw.beta1) as f32).into(),
        (adamw.beta2 as f32).into(),
        ((1.0 - adamw.beta2) as f32).into(),
        (adamw.epsilon as f32).into(),
    ];
    engine.run("adamw", (arena.segment_count, 1), 512, &arguments)
}
