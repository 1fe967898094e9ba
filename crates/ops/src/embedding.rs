//! Looking up token embeddings.

use crate::OpsError;

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

/// Adds each row of `dy` (tokens, D) to the row of its token in `dw` (V, D), in the order of the positions.
pub(crate) fn backward(dy: &[f32], tokens: &[u32], width: usize, dw: &mut [f32]) {
    for (dy, &token) in dy.chunks_exact(width).zip(tokens) {
        for (dw, dy) in dw[token as usize * width..][..width].iter_mut().zip(dy) {
            *dw += dy;
        }
    }
}
