//! Muon (Keller Jordan et al., <https://kellerjordan.github.io/posts/muon/>), with PyTorch's semantics.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::CHUNK;
use crate::clip::squared_norm;
use crate::vector::vectorized;

/// The optimizer of inner steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// AdamW for all parameters.
    #[default]
    AdamW,
    /// Muon for the matrices of blocks, AdamW for all other parameters (MuLoCo, arXiv:2505.23725).
    Muon,
    /// Plain descent with a rate of 1 and without moments: a path's step in synchronous training, where the modules take the
    /// steps of AdamW ([`OuterOptimizer::AdamW`](crate::OuterOptimizer::AdamW)). No configuration names it.
    #[serde(skip)]
    Gradient,
}

impl Optimizer {
    /// True for AdamW, the default.
    #[must_use]
    pub fn is_adamw(&self) -> bool {
        *self == Self::AdamW
    }
}

/// Decay of Muon's momentum per step, as published.
pub const MUON_MOMENTUM: f32 = 0.95;
/// Iterations of Newton–Schulz, as published.
const ITERATIONS: usize = 5;
/// Coefficients of Newton–Schulz, as published: `X ← 3.4445 X - 4.7750 G X + 2.0315 G² X` with the Gram matrix G. They
/// raise small singular values fast, and bring all to about 0.7 to 1.2.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];
/// Least norm by which an update is divided.
const EPSILON: f32 = 1e-7;
/// Root mean square of the elements of AdamW's updates, which [`muon_step`] matches (arXiv:2502.16982 §2.2).
const ADAMW_RMS: f64 = 0.2;

/// The sizes of a product of two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Rows of the result.
    pub rows: usize,
    /// Length of the sums.
    pub depth: usize,
    /// Columns of the result.
    pub columns: usize,
}

/// Products of row-major f32 matrices. The caller has an engine for them.
pub trait Products {
    /// `C = A · Bᵀ`: A (rows, depth), B (columns, depth), C (rows, columns).
    fn by_transposed(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape);

    /// `C = Aᵀ · B`: A (depth, rows), B (depth, columns), C (rows, columns).
    fn transposed_by(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape);
}

/// Numbers that change from step to step or from matrix to matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonStep {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Learning rate of the step; the same as AdamW's.
    pub learning_rate: f64,
    /// Factor for the gradient, as [`crate::clip_scale`] returns it.
    pub gradient_scale: f64,
    /// Decoupled weight decay per step and unit of learning rate; 0 for none.
    pub weight_decay: f64,
}

impl MuonStep {
    /// Number of f32 that [`MuonScratch`] needs for the matrix: two of its size, and two Gram matrices of its smaller
    /// side.
    #[must_use]
    pub fn scratch(rows: usize, columns: usize) -> usize {
        let side = rows.min(columns);
        2 * rows * columns + 2 * side * side
    }
}

/// Memory of a step, which the next steps use again. Its contents do not matter.
#[derive(Debug, Default)]
pub struct MuonScratch(Vec<f32>);

/// Takes one step of a matrix in place, with Nesterov momentum (arXiv:2502.16982, equation 4): `m ← μ m + (1 - μ) g`,
/// `u ← (1 - μ) g + μ m`, `W ← W (1 - lr · wd) - lr · 0.2 · √max(rows, columns) · NS(u)`. NS moves all singular values
/// of u near 1. The factor gives the update the size of one of AdamW's, so that both take the same learning rate.
///
/// `params`, `gradient` and `momentum` hold `rows` · `columns` elements, row-major. The momentum starts at 0.
///
/// # Panics
/// When a slice is shorter.
pub fn muon_step(
    params: &mut [f32],
    gradient: &[f32],
    momentum: &mut [f32],
    step: &MuonStep,
    products: &impl Products,
    scratch: &mut MuonScratch,
) {
    let &MuonStep { rows, columns, learning_rate, gradient_scale, weight_decay } = step;
    let (elements, side) = (rows * columns, rows.min(columns));
    let (params, gradient, momentum) =
        (&mut params[..elements], &gradient[..elements], &mut momentum[..elements]);
    scratch.0.resize(MuonStep::scratch(rows, columns).max(scratch.0.len()), 0.0);
    let (update, rest) = scratch.0.split_at_mut(elements);
    let (product, rest) = rest.split_at_mut(elements);
    let (gram, rest) = rest.split_at_mut(side * side);
    let squared = &mut rest[..side * side];
    nesterov(gradient, momentum, update, gradient_scale as f32);
    let norm = (squared_norm(update).sqrt() as f32).max(EPSILON);
    each(update, |update| update / norm);
    for _ in 0..ITERATIONS {
        iterate(update, product, gram, squared, step, products);
    }
    let keep = (1.0 - learning_rate * weight_decay) as f32;
    let rate = (learning_rate * ADAMW_RMS * (rows.max(columns) as f64).sqrt()) as f32;
    zipped(params, update, |param, update| param * keep - rate * update);
}

/// The momentum after a step, and Nesterov's look ahead of it in `update`.
fn nesterov(gradient: &[f32], momentum: &mut [f32], update: &mut [f32], scale: f32) {
    zipped(momentum, gradient, |m, g| m + (1.0 - MUON_MOMENTUM) * (g * scale - m));
    update.copy_from_slice(momentum);
    zipped(update, gradient, |m, g| g * scale + MUON_MOMENTUM * (m - g * scale));
}

/// One iteration of Newton–Schulz on `x` (rows, columns). The Gram matrix is of the smaller side, so a tall matrix is
/// multiplied from the right. Gram matrices are symmetric, so each product can take them transposed.
fn iterate(
    x: &mut [f32],
    product: &mut [f32],
    gram: &mut [f32],
    squared: &mut [f32],
    step: &MuonStep,
    products: &impl Products,
) {
    let MuonStep { rows, columns, .. } = *step;
    let (side, tall) = (rows.min(columns), rows > columns);
    let square = |depth| ProductShape { rows: side, depth, columns: side };
    if tall {
        products.transposed_by(x, x, gram, square(rows));
    } else {
        products.by_transposed(x, x, gram, square(columns));
    }
    products.by_transposed(gram, gram, squared, square(side));
    let [a, b, c] = COEFFICIENTS;
    zipped(gram, squared, |gram, squared| b * gram + c * squared);
    if tall {
        products.by_transposed(x, gram, product, ProductShape { rows, depth: side, columns });
    } else {
        products.transposed_by(gram, x, product, ProductShape { rows, depth: side, columns });
    }
    zipped(x, product, |x, product| a * x + product);
}

/// Replaces each element by `f` of it.
fn each(values: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).for_each(|values| {
        vectorized(
            #[inline(always)]
            || values.iter_mut().for_each(|value| *value = f(*value)),
        );
    });
}

/// Replaces each element by `f` of it and its partner.
fn zipped(values: &mut [f32], others: &[f32], f: impl Fn(f32, f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).zip(others.par_chunks(CHUNK)).for_each(|(values, others)| {
        vectorized(
            #[inline(always)]
            || values.iter_mut().zip(others).for_each(|(value, other)| *value = f(*value, *other)),
        );
    });
}
