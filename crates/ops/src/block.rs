//! A transformer block: its shape, its forward and its backward pass.

mod activations;
mod backward;
mod forward;
mod parameters;

use crate::attention::AttentionShape;
use crate::buffer::Workspace;
use crate::element::Precision;
use crate::profile::Profile;
use crate::rope::RopeTable;

pub(crate) use activations::{Activations, activations_len};
pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use parameters::BlockGradients;
pub use parameters::BlockWeights;

/// The sizes of a block. All blocks of a path have the same.
#[derive(Clone, Debug)]
pub struct BlockShape {
    /// D, the width of the residual stream.
    pub width: usize,
    /// H, the number of attention heads.
    pub heads: usize,
    /// Hkv, the number of heads of keys and values, a divisor of H. H / Hkv query heads in a row share a head of keys and
    /// values (grouped-query attention, arXiv:2305.13245).
    pub kv_heads: usize,
    /// F, the width of the feed-forward layer.
    pub ffn: usize,
    /// Added to the mean square in RMSNorm.
    pub epsilon: f32,
    /// The rotations of queries and keys, for heads of Dh elements.
    pub rope: RopeTable,
}

impl BlockShape {
    /// H × Dh.
    pub(crate) fn attention(&self) -> usize {
        self.heads * self.rope.head_dim()
    }

    /// (H + 2 · Hkv) × Dh: queries, keys and values of a position.
    pub(crate) fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.rope.head_dim()
    }

    /// Number of parameters of a block: see [`BlockWeights`].
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.width * (2 + self.attention() + self.qkv() + 3 * self.ffn)
    }
}

/// How the blocks of a path are computed, and the memory that they share.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The shape of each block.
    pub shape: BlockShape,
    /// How products are computed.
    pub precision: Precision,
    /// True if only each block's input is saved for the backward pass, which then computes the other activations once
    /// more (activation checkpointing, arXiv:1604.06174): less memory for a third more time.
    pub checkpointing: bool,
    /// The memory of activations, gradients and packed operands.
    pub workspace: Workspace,
    /// The clock of the phases of a step.
    pub profile: Profile,
}

impl Stack {
    fn attention_shape(&self, batch: BatchShape) -> AttentionShape {
        let BlockShape { heads, kv_heads, ref rope, .. } = self.shape;
        AttentionShape { time: batch.time, heads, kv_heads, head_dim: rope.head_dim() }
    }
}

/// The positions of a batch: B · T rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchShape {
    /// B.
    pub(crate) sequences: usize,
    /// T.
    pub(crate) time: usize,
}

impl BatchShape {
    pub(crate) fn rows(self) -> usize {
        self.sequences * self.time
    }
}

/// One block and its input: the arguments that both passes share.
#[derive(Clone, Copy)]
pub(crate) struct BlockInput<'a> {
    pub(crate) stack: &'a Stack,
    pub(crate) weights: BlockWeights<'a>,
    /// (rows, D).
    pub(crate) x: &'a [f32],
    pub(crate) batch: BatchShape,
}
