//! The parameters of a block and their gradients, as they lie in memory.

use super::BlockShape;

/// A block's parameters in their order in memory: input norm (D), q (H·Dh, D), k and v (Hkv·Dh, D each), o (D, H·Dh),
/// post-attention norm (D), gate and up (F, D each), down (D, F). Neighbours that multiply the same input are one matrix.
#[derive(Clone, Copy, Debug)]
pub struct BlockWeights<'a> {
    /// (D).
    pub input_norm: &'a [f32],
    /// Queries, keys and values ((H + 2 · Hkv)·Dh, D).
    pub qkv: &'a [f32],
    /// (D, H·Dh).
    pub o: &'a [f32],
    /// (D).
    pub post_norm: &'a [f32],
    /// Gate and up (2, F, D).
    pub gate_up: &'a [f32],
    /// (D, F).
    pub down: &'a [f32],
}

impl<'a> BlockWeights<'a> {
    /// The parts of a block's flat parameters.
    ///
    /// # Panics
    /// When there are fewer than [`BlockShape::parameters`].
    #[must_use]
    pub fn new(shape: &BlockShape, weights: &'a [f32]) -> Self {
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let (input_norm, rest) = weights.split_at(d);
        let (qkv, rest) = rest.split_at(shape.qkv() * d);
        let (o, rest) = rest.split_at(d * a);
        let (post_norm, rest) = rest.split_at(d);
        let (gate_up, rest) = rest.split_at(2 * f * d);
        Self { input_norm, qkv, o, post_norm, gate_up, down: &rest[..d * f] }
    }
}

/// The gradients of a block's parameters, in the order of [`BlockWeights`].
pub(crate) struct BlockGradients<'a> {
    pub(super) input_norm: &'a mut [f32],
    pub(super) qkv: &'a mut [f32],
    pub(super) o: &'a mut [f32],
    pub(super) post_norm: &'a mut [f32],
    pub(super) gate_up: &'a mut [f32],
    pub(super) down: &'a mut [f32],
    /// True if the contents are arbitrary and to be overwritten, false if a backward pass adds to them.
    pub(super) fresh: bool,
}

impl<'a> BlockGradients<'a> {
    /// The parts of a block's flat gradient.
    ///
    /// # Panics
    /// When it is shorter than [`BlockShape::parameters`].
    pub(crate) fn new(shape: &BlockShape, gradients: &'a mut [f32], fresh: bool) -> Self {
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let (input_norm, rest) = gradients.split_at_mut(d);
        let (qkv, rest) = rest.split_at_mut(shape.qkv() * d);
        let (o, rest) = rest.split_at_mut(d * a);
        let (post_norm, rest) = rest.split_at_mut(d);
        let (gate_up, rest) = rest.split_at_mut(2 * f * d);
        Self { input_norm, qkv, o, post_norm, gate_up, down: &mut rest[..d * f], fresh }
    }
}
