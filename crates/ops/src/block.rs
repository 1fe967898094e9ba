//! A transformer block as one operation: its forward pass, what it keeps, and its backward pass.

mod backward;
mod forward;

use crate::attention;
use crate::buffer::Workspace;
use crate::element::{Element, Precision};
use crate::profile::Profile;
use crate::rope::RopeTable;

pub(crate) use backward::backward;
pub(crate) use forward::forward;

/// The sizes of a block and how it is computed. All blocks of a path have the same.
#[derive(Clone, Debug)]
pub struct BlockShape {
    /// D, the width of the residual stream.
    pub width: usize,
    /// H, attention heads.
    pub heads: usize,
    /// F, the width of the feed-forward layer.
    pub ffn: usize,
    /// Added to the mean square in RMSNorm.
    pub epsilon: f32,
    /// The rotations; its heads have the size Dh.
    pub rope: RopeTable,
}

impl BlockShape {
    /// H × Dh.
    pub(crate) fn attention(&self) -> usize {
        self.heads * self.rope.head_dim()
    }

    /// Parameters of a block: see [`BlockWeights`].
    #[must_use]
    pub fn parameters(&self) -> usize {
        2 * self.width + 4 * self.width * self.attention() + 3 * self.width * self.ffn
    }

    /// f32 values that a block of `rows` = B · T positions keeps for its backward pass, besides its input.
    pub(crate) fn kept(&self, rows: usize, batch: usize, precision: Precision) -> usize {
        match precision {
            Precision::F32 => Sizes::new::<f32>(self, rows, batch).total(),
            Precision::Bf16 => Sizes::new::<half::bf16>(self, rows, batch).total(),
        }
    }
}

/// What the blocks of a path share while they run.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The shape of each block.
    pub shape: BlockShape,
    /// How products are computed.
    pub precision: Precision,
    /// Whether only each block's input is kept for the backward pass, and the rest computed once more (activation
    /// checkpointing, arXiv:1604.06174): less memory for a third more time.
    pub checkpointing: bool,
    /// Memory.
    pub workspace: Workspace,
    /// Where the time goes.
    pub profile: Profile,
}

/// A block's parameters in their order in memory: input norm (D), q, k, v (H·Dh, D each), o (D, H·Dh), post-attention
/// norm (D), gate and up (F, D each), down (D, F). Neighbours that multiply the same input are one matrix.
#[derive(Clone, Copy, Debug)]
pub struct BlockWeights<'a> {
    /// (D).
    pub input_norm: &'a [f32],
    /// Queries, keys and values (3, H·Dh, D).
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
        let (qkv, rest) = rest.split_at(3 * a * d);
        let (o, rest) = rest.split_at(d * a);
        let (post_norm, rest) = rest.split_at(d);
        let (gate_up, rest) = rest.split_at(2 * f * d);
        Self { input_norm, qkv, o, post_norm, gate_up, down: &rest[..d * f] }
    }
}

/// The gradients of a block's parameters, in the same order.
struct BlockGradients<'a> {
    input_norm: &'a mut [f32],
    qkv: &'a mut [f32],
    o: &'a mut [f32],
    post_norm: &'a mut [f32],
    gate_up: &'a mut [f32],
    down: &'a mut [f32],
}

impl<'a> BlockGradients<'a> {
    fn new(shape: &BlockShape, gradients: &'a mut [f32]) -> Self {
        let (d, a, f) = (shape.width, shape.attention(), shape.ffn);
        let (input_norm, rest) = gradients.split_at_mut(d);
        let (qkv, rest) = rest.split_at_mut(3 * a * d);
        let (o, rest) = rest.split_at_mut(d * a);
        let (post_norm, rest) = rest.split_at_mut(d);
        let (gate_up, rest) = rest.split_at_mut(2 * f * d);
        Self { input_norm, qkv, o, post_norm, gate_up, down: &mut rest[..d * f] }
    }
}

/// How much memory each of the kept activations takes, in f32 values.
struct Sizes {
    middle: usize,
    qkv: usize,
    y: usize,
    gate_up: usize,
    log_sums: usize,
}

impl Sizes {
    fn new<E: Element>(shape: &BlockShape, rows: usize, batch: usize) -> Self {
        // Whole cache lines, so that each part is aligned.
        let line = |size: usize| size.next_multiple_of(16);
        Self {
            middle: line(rows * shape.width),
            qkv: line(E::room(rows * 3 * shape.attention())),
            y: line(E::room(rows * shape.attention())),
            gate_up: line(E::room(rows * 2 * shape.ffn)),
            log_sums: batch * shape.heads * (rows / batch.max(1)),
        }
    }

    fn total(&self) -> usize {
        self.middle + self.qkv + self.y + self.gate_up + self.log_sums
    }
}

/// What a block keeps between its passes.
pub(crate) struct Kept<'a, E> {
    /// The residual stream between attention and the feed-forward layer (rows, D).
    middle: &'a mut [f32],
    /// Rotated queries and keys, and values (rows, 3, H, Dh).
    qkv: &'a mut [E],
    /// The result of attention (rows, H, Dh).
    y: &'a mut [E],
    /// Gate and up (rows, 2, F).
    gate_up: &'a mut [E],
    /// (B, H, T).
    log_sums: &'a mut [f32],
}

impl<'a, E: Element> Kept<'a, E> {
    pub(crate) fn new(shape: &BlockShape, rows: usize, batch: usize, memory: &'a mut [f32]) -> Self {
        let sizes = Sizes::new::<E>(shape, rows, batch);
        let (middle, rest) = memory.split_at_mut(sizes.middle);
        let (qkv, rest) = rest.split_at_mut(sizes.qkv);
        let (y, rest) = rest.split_at_mut(sizes.y);
        let (gate_up, rest) = rest.split_at_mut(sizes.gate_up);
        Self {
            middle: &mut middle[..rows * shape.width],
            qkv: &mut E::of_mut(qkv)[..rows * 3 * shape.attention()],
            y: &mut E::of_mut(y)[..rows * shape.attention()],
            gate_up: &mut E::of_mut(gate_up)[..rows * 2 * shape.ffn],
            log_sums: &mut rest[..sizes.log_sums],
        }
    }
}

/// The positions of a batch: B · T rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) batch: usize,
    pub(crate) time: usize,
}

impl Batch {
    pub(crate) fn rows(self) -> usize {
        self.batch * self.time
    }
}

impl Stack {
    fn attention_shape(&self, batch: Batch) -> attention::Shape {
        attention::Shape { time: batch.time, heads: self.shape.heads, head_dim: self.shape.rope.head_dim() }
    }
}
