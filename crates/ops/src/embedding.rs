//! Looking up token embeddings.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use dipaco_tokens::TokenRows;

use crate::OpsError;
use crate::check::{check_slot, check_vocabulary, check_weights};
use crate::error::shape;
use crate::gradient_slot::GradientSlot;
use crate::memory::{elements, read};

/// The embedding matrix (V, D) within a flat group of weights.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingPlace {
    /// Where the matrix begins.
    pub at: usize,
    /// V.
    pub vocabulary: usize,
    /// D.
    pub width: usize,
}

/// The rows of the embedding matrix for `tokens` (B, T) as a tensor (B, T, D), f32. With a slot, the backward pass adds to
/// the matrix's gradient (V, D), in the order of the positions.
///
/// # Errors
/// When the vocabulary of the tokens is larger than V, or the weights are too short.
pub fn embedding(
    weights: &Tensor,
    place: EmbeddingPlace,
    tokens: &TokenRows,
    gradient: Option<&GradientSlot>,
) -> Result<Tensor, OpsError> {
    let EmbeddingPlace { at, vocabulary, width } = place;
    if width == 0 {
        return Err(shape("embedding", "the rows of the embedding matrix have 0 elements"));
    }
    check_weights("embedding", weights, at, vocabulary.saturating_mul(width))?;
    check_slot("embedding", gradient, vocabulary * width)?;
    check_vocabulary("embedding", tokens.vocabulary(), vocabulary)?;
    let op = Embedding { place, tokens: tokens.clone(), gradient: gradient.cloned() };
    // Without a slot there is no backward pass, so candle must not keep the operation.
    Ok(if gradient.is_some() { weights.apply_op1(op)? } else { weights.apply_op1_no_bwd(&op)? })
}

/// candle's view of [`embedding`].
struct Embedding {
    place: EmbeddingPlace,
    tokens: TokenRows,
    gradient: Option<GradientSlot>,
}

impl CustomOp1 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, weights: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let EmbeddingPlace { at, width, .. } = self.place;
        let shape = (self.tokens.rows(), self.tokens.time(), width);
        let mut y = vec![0.0; shape.0 * shape.1 * width];
        copy_rows(&elements(weights, layout)?[at..], self.tokens.ids(), width, &mut y);
        Ok((CpuStorage::F32(y), Shape::from(shape)))
    }

    fn bwd(&self, _weights: &Tensor, _y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let Some(gradient) = &self.gradient else {
            candle_core::bail!("the embedding has no slot for its gradient");
        };
        read(&dy.contiguous()?, |dy| {
            gradient.add(|dw, fresh| {
                if fresh {
                    dw.fill(0.0);
                }
                // One thread, in the order of the positions: the sums for repeated tokens always have the same bits.
                let width = self.place.width;
                for (dy, &token) in dy.chunks_exact(width).zip(self.tokens.ids()) {
                    for (dw, dy) in dw[token as usize * width..][..width].iter_mut().zip(dy) {
                        *dw += dy;
                    }
                }
            });
        })?;
        // The slot holds the gradient; a tensor for candle would be as large as all weights.
        Ok(None)
    }
}

/// Copies the rows of `weight` (V, D) for the tokens into `y` (tokens, D).
pub(crate) fn copy_rows(weight: &[f32], tokens: &[u32], width: usize, y: &mut [f32]) {
    for (y, &token) in y.chunks_exact_mut(width).zip(tokens) {
        y.copy_from_slice(&weight[token as usize * width..][..width]);
    }
}
