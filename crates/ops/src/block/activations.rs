//! The activations that a block saves between its passes.

use half::bf16;

use super::{BatchShape, BlockShape};
use crate::element::{Element, Precision};
use crate::scratch::whole_lines;

/// The activations that the backward pass of a block needs, besides its input.
pub(crate) struct Activations<'a, E> {
    /// The residual stream between attention and the feed-forward layer (rows, D).
    pub(super) middle: &'a mut [f32],
    /// Rotated queries and keys, and values (rows, H + 2 · Hkv, Dh).
    pub(super) qkv: &'a mut [E],
    /// The result of attention (rows, H, Dh).
    pub(super) y: &'a mut [E],
    /// Gate and up (rows, 2, F).
    pub(super) gate_up: &'a mut [E],
    /// The logarithm of each attention row's sum of exponentials (B, H, T).
    pub(super) log_sums: &'a mut [f32],
}

impl<'a, E: Element> Activations<'a, E> {
    /// Divides memory of [`activations_len`] f32.
    pub(crate) fn new(shape: &BlockShape, batch: BatchShape, memory: &'a mut [f32]) -> Self {
        let (lengths, rows) = (Lengths::new::<E>(shape, batch), batch.rows());
        let (middle, rest) = memory.split_at_mut(lengths.middle);
        let (qkv, rest) = rest.split_at_mut(lengths.qkv);
        let (y, rest) = rest.split_at_mut(lengths.y);
        let (gate_up, rest) = rest.split_at_mut(lengths.gate_up);
        Self {
            middle: &mut middle[..rows * shape.width],
            qkv: &mut E::of_mut(qkv)[..rows * shape.qkv()],
            y: &mut E::of_mut(y)[..rows * shape.attention()],
            gate_up: &mut E::of_mut(gate_up)[..rows * 2 * shape.ffn],
            log_sums: &mut rest[..lengths.log_sums],
        }
    }
}

/// Number of f32 values that hold a block's [`Activations`].
pub(crate) fn activations_len(shape: &BlockShape, batch: BatchShape, precision: Precision) -> usize {
    match precision {
        Precision::F32 => Lengths::new::<f32>(shape, batch).total(),
        Precision::Bf16 => Lengths::new::<bf16>(shape, batch).total(),
    }
}

/// Memory of each part of [`Activations`], in f32 values.
struct Lengths {
    middle: usize,
    qkv: usize,
    y: usize,
    gate_up: usize,
    log_sums: usize,
}

impl Lengths {
    fn new<E: Element>(shape: &BlockShape, batch: BatchShape) -> Self {
        let rows = batch.rows();
        Self {
            middle: whole_lines(rows * shape.width),
            qkv: whole_lines(E::room(rows * shape.qkv())),
            y: whole_lines(E::room(rows * shape.attention())),
            gate_up: whole_lines(E::room(rows * 2 * shape.ffn)),
            log_sums: rows * shape.heads,
        }
    }

    fn total(&self) -> usize {
        self.middle + self.qkv + self.y + self.gate_up + self.log_sums
    }
}
