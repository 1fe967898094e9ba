//! Computations on plain slices, without a graph: for serving, scoring and routing.
//!
//! Every function takes row-major f32. [`linear`] and [`transposed_product`] panic when a slice is shorter than their shape
//! demands. A function without a shape computes the elements or whole rows that all of its slices have, and leaves the rest
//! of the result as it was.

use rayon::prelude::*;

pub use crate::block::BlockWeights;
pub use crate::linear::LinearShape;

use crate::RopeTable;
use crate::buffer::Workspace;
use crate::exp::dot;
use crate::product::{Matrix, OuterProduct, RightOperand, outer_products};
use crate::vector;

/// Outputs that a task computes in a product with a single row.
const OUTPUTS: usize = 256;
/// With fewer multiplications, waking a thread costs more than it saves.
const PARALLEL_WORK: usize = 1 << 19;

/// `y = x · Wᵀ` for x (rows, inputs), W (outputs, inputs) and y (rows, outputs); with `rayon`'s threads when the product
/// is large enough.
///
/// # Panics
/// When a slice is shorter than `shape` demands.
pub fn linear(x: &[f32], weight: &[f32], y: &mut [f32], shape: LinearShape) {
    let LinearShape { rows, inputs, outputs } = shape;
    if rows != 1 || inputs == 0 {
        return crate::linear::forward(x, weight, y, shape);
    }
    // Packing the weights would cost more than a single row's product, so each output is a dot product.
    let (x, weight, y) = (&x[..inputs], &weight[..inputs * outputs], &mut y[..outputs]);
    let few = |y: &mut [f32], weight: &[f32]| {
        vector::dispatch_with(
            #[inline(always)]
            |units| {
                for (y, row) in y.iter_mut().zip(weight.chunks_exact(inputs)) {
                    *y = dot(units, row, x);
                }
            },
        );
    };
    if inputs * outputs < PARALLEL_WORK {
        few(y, weight);
    } else {
        y.par_chunks_mut(OUTPUTS).zip(weight.par_chunks(OUTPUTS * inputs)).for_each(|(y, w)| few(y, w));
    }
}

/// Normalises each row of D = `weight.len()` elements: `y = x / sqrt(mean(x²) + epsilon) · weight`.
///
/// # Panics
/// When D is 0.
pub fn rms_norm(x: &[f32], weight: &[f32], y: &mut [f32], epsilon: f32) {
    crate::rms_norm::forward(x, weight, y, epsilon);
}

/// Rotates x (T, H × Dh) in place. Each row of `width` = H × Dh elements is one position, the first row is position
/// `offset`. Rows past the table's positions stay as they are.
///
/// # Panics
/// When `width` is 0.
pub fn rope(x: &mut [f32], table: &RopeTable, width: usize, offset: usize) {
    vector::dispatch(
        #[inline(always)]
        || {
            for (i, row) in x.chunks_exact_mut(width).enumerate() {
                table.rotate(row, offset + i, 1.0);
            }
        },
    );
}

/// `y = silu(gate) · up`, element by element. All three have the same length, N · F.
pub fn swiglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
    crate::swiglu::forward(gate, up, y);
}

/// `a += b`, element by element, of the same length.
pub fn add_assign(a: &mut [f32], b: &[f32]) {
    vector::dispatch(
        #[inline(always)]
        || {
            for (a, b) in a.iter_mut().zip(b) {
                *a += b;
            }
        },
    );
}

/// Copies the rows of `weight` (V, D) for `tokens` into `y` (tokens, D).
///
/// # Panics
/// When a token is not below V, or `width` is 0.
pub fn embedding(weight: &[f32], tokens: &[u32], width: usize, y: &mut [f32]) {
    crate::embedding::copy_rows(weight, tokens, width, y);
}

/// `ln Σ exp(x)` of one row of V logits.
#[must_use]
pub fn log_sum_exp(row: &[f32]) -> f32 {
    crate::head::log_sum_exp(row)
}

/// `Σ exp(x - shift)` of one row of V logits, for a shift of at least its largest element.
#[must_use]
pub fn sum_exp(row: &[f32], shift: f32) -> f32 {
    vector::dispatch_with(
        #[inline(always)]
        |units| crate::exp::sum_exp(units, row, shift),
    )
}

/// `y = exp((x - shift) / scale)`, element by element of a row of V, for a shift of at least the largest element.
pub fn exp_scaled(x: &[f32], shift: f32, scale: f32, y: &mut [f32]) {
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            for (y, x) in y.iter_mut().zip(x) {
                *y = crate::exp::exp(units, (x - shift) / scale);
            }
        },
    );
}

/// The sizes of a product `C = Aᵀ · B`: A (depth, rows), B (depth, columns), C (rows, columns).
#[derive(Clone, Copy, Debug)]
pub struct TransposedShape {
    /// Number of rows of A and B, which are summed over.
    pub depth: usize,
    /// Rows of C.
    pub rows: usize,
    /// Columns of C.
    pub columns: usize,
}

/// `C = Aᵀ · B` with all threads.
///
/// # Panics
/// When a slice is shorter than `shape` demands.
pub fn transposed_product(a: &[f32], b: &[f32], c: &mut [f32], shape: TransposedShape) {
    let TransposedShape { depth, rows, columns } = shape;
    let c = &mut c[..rows * columns];
    if depth == 0 || c.is_empty() {
        return c.fill(0.0);
    }
    let workspace = Workspace::default();
    let rhs = RightOperand::new::<f32, f32>(&workspace, Matrix::rows(b, depth, columns));
    outer_products(&mut [OuterProduct { a, stride: rows, rows, rhs: rhs.rhs(), c }], depth, false);
}
