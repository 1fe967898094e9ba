//! The shape of a path and where its tensors are in the flat arrays.

use crate::CudaError;

/// The shape of a path, as in `dipaco-model`'s `ModelConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct PathShape {
    /// D, the width of the residual stream.
    pub hidden_size: usize,
    /// Transformer blocks.
    pub blocks: usize,
    /// H, attention heads.
    pub heads: usize,
    /// Dh, elements per head; even and at most 256.
    pub head_dim: usize,
    /// F, the width of the feed-forward layer.
    pub ffn_size: usize,
    /// V, entries of the vocabulary.
    pub vocab_size: usize,
    /// T, the most tokens of a sequence.
    pub context: usize,
    /// The base of the rotary position embedding.
    pub rope_theta: f64,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// Whether the output projection is the token embedding.
    pub tie_embeddings: bool,
}

/// The arithmetic of matrix products and of what they read; weights, moments, gradients of weights, the residual stream
/// and all sums are f32 in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32, without TF32.
    F32,
    /// bf16 factors on the tensor cores, f32 accumulation.
    Bf16,
}

impl Precision {
    /// Bytes of a number that a product reads.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Where the tensors of a block begin, counted in numbers from the block's first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockOffsets {
    /// The input norm (D).
    pub(crate) input_norm: usize,
    /// Queries, keys and values (3 · H · Dh, D): three tensors that lie next to each other.
    pub(crate) qkv: usize,
    /// The attention's output projection (D, H · Dh).
    pub(crate) output: usize,
    /// The norm before the feed-forward layer (D).
    pub(crate) post_norm: usize,
    /// Gate and up projection (2F, D): two tensors next to each other.
    pub(crate) gate_up: usize,
    /// The down projection (D, F).
    pub(crate) down: usize,
    /// The block's numbers.
    pub(crate) length: usize,
}

impl PathShape {
    /// Checks what the kernels rely on.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        let error = |key, problem: String| Err(CudaError::Shape { key, problem });
        let sizes = [
            ("model.hidden_size", self.hidden_size, 16_384),
            ("model.blocks", self.blocks, 1 << 20),
            ("model.heads", self.heads, 1024),
            ("model.head_dim", self.head_dim, 256),
            ("model.ffn_size", self.ffn_size, 1 << 20),
            ("model.vocab_size", self.vocab_size, 1 << 24),
            ("model.context", self.context, 1 << 20),
        ];
        for (key, size, largest) in sizes {
            if size == 0 || size > largest {
                return error(key, format!("is {size}: on a GPU it must be from 1 to {largest}"));
            }
        }
        if !self.head_dim.is_multiple_of(2) {
            return error("model.head_dim", format!("is {}: it must be even", self.head_dim));
        }
        Ok(())
    }

    /// H · Dh.
    pub(crate) fn attention(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(crate) fn block(&self) -> BlockOffsets {
        let (d, a, f) = (self.hidden_size, self.attention(), self.ffn_size);
        let qkv = d;
        let output = qkv + 3 * a * d;
        let post_norm = output + d * a;
        let gate_up = post_norm + d;
        let down = gate_up + 2 * f * d;
        BlockOffsets { input_norm: 0, qkv, output, post_norm, gate_up, down, length: down + d * f }
    }

    /// Where block `i` begins; block `blocks` would begin at the final norm.
    pub(crate) fn block_start(&self, i: usize) -> usize {
        self.vocab_size * self.hidden_size + i * self.block().length
    }

    /// Where the final norm begins.
    pub(crate) fn final_norm(&self) -> usize {
        self.block_start(self.blocks)
    }

    /// Where the output projection (V, D) begins.
    pub(crate) fn head(&self) -> usize {
        if self.tie_embeddings { 0 } else { self.final_norm() + self.hidden_size }
    }

    /// The numbers of the path.
    #[must_use]
    pub fn parameters(&self) -> usize {
        let head = if self.tie_embeddings { 0 } else { self.vocab_size * self.hidden_size };
        self.final_norm() + self.hidden_size + head
    }

    /// The runs of numbers that weight decay treats alike, in order: (first, length, decays). Norms are not decayed.
    pub(crate) fn runs(&self) -> Vec<(usize, usize, bool)> {
        let mut norms = Vec::with_capacity(2 * self.blocks + 1);
        for start in (0..self.blocks).map(|i| self.block_start(i)) {
            norms.extend([start + self.block().input_norm, start + self.block().post_norm]);
        }
        norms.push(self.final_norm());
        let mut runs = Vec::with_capacity(2 * norms.len() + 1);
        let mut next = 0;
        for norm in norms {
            runs.push((next, norm - next, true));
            runs.push((norm, self.hidden_size, false));
            next = norm + self.hidden_size;
        }
        runs.push((next, self.parameters() - next, true));
        runs.retain(|&(_, length, _)| length > 0);
        runs
    }
}
