//! Looking up token embeddings.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::OpsError;
use crate::error::shape;
use crate::memory::{elements, read};

/// The rows of `weight` (V, D) for `tokens` (B × T, row-major): (B, T, D), f32. The gradient adds up repeated tokens
/// in the order of their positions.
///
/// # Errors
/// When `tokens` is not a whole number of `batch` rows, or a token is not below V.
pub fn embedding(weight: &Tensor, tokens: &[u32], batch: usize) -> Result<Tensor, OpsError> {
    let (vocabulary, _) = weight.dims2()?;
    if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
        return Err(shape(
            "embedding",
            format!("{} tokens are not {batch} rows of one length", tokens.len()),
        ));
    }
    check_tokens("embedding", tokens, vocabulary)?;
    let time = tokens.len() / batch;
    Ok(weight.apply_op1(Embedding { tokens: tokens.into(), batch, time })?)
}

/// Checks that each token is below V.
pub(crate) fn check_tokens(
    operation: &'static str,
    tokens: &[u32],
    vocabulary: usize,
) -> Result<(), OpsError> {
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(&token) => Err(OpsError::Token { operation, token, vocabulary }),
        None => Ok(()),
    }
}

/// Copies the rows of `weight` (V, D) into `y` (tokens, D).
pub(crate) fn forward(weight: &[f32], tokens: &[u32], width: usize, y: &mut [f32]) {
    for (y, &token) in y.chunks_exact_mut(width).zip(tokens) {
        y.copy_from_slice(&weight[token as usize * width..][..width]);
    }
}

struct Embedding {
    tokens: Arc<[u32]>,
    batch: usize,
    time: usize,
}

impl CustomOp1 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, weight: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (_, width) = layout.shape().dims2()?;
        let mut y = vec![0.0; self.tokens.len() * width];
        forward(elements(weight, layout)?, &self.tokens, width, &mut y);
        Ok((CpuStorage::F32(y), Shape::from((self.batch, self.time, width))))
    }

    fn bwd(&self, weight: &Tensor, _y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let (_, width) = weight.dims2()?;
        let dy = dy.contiguous()?;
        let mut dw = vec![0.0; weight.elem_count()];
        read(&dy, |dy| {
            for (dy, &token) in dy.chunks_exact(width).zip(self.tokens.iter()) {
                for (dw, dy) in dw[token as usize * width..][..width].iter_mut().zip(dy) {
                    *dw += dy;
                }
            }
        })?;
        Ok(Some(Tensor::from_vec(dw, weight.shape(), weight.device())?))
    }
}
