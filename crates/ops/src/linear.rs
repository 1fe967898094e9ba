//! The linear map without a bias, f32.

use rayon::prelude::*;

use crate::product::{Group, LeftRows, Matrix, NR, Rhs, Tiling, multiply, pack_all, packed_len, with_rows};
use crate::scratch::with_scratch;

/// The sizes of a linear map `y = x · Wᵀ`: x (rows, inputs), W (outputs, inputs), y (rows, outputs).
#[derive(Clone, Copy, Debug)]
pub struct LinearShape {
    /// Number of rows of x and y.
    pub rows: usize,
    /// Elements of a row of x and of W.
    pub inputs: usize,
    /// Rows of W: elements of a row of y.
    pub outputs: usize,
}

/// `y = x · Wᵀ` with all threads.
pub(crate) fn forward(x: &[f32], weight: &[f32], y: &mut [f32], shape: LinearShape) {
    let LinearShape { rows, inputs, outputs } = shape;
    let (x, y) = (&x[..rows * inputs], &mut y[..rows * outputs]);
    if inputs == 0 || outputs == 0 {
        return y.fill(0.0);
    }
    with_scratch(packed_len(Group::Single, inputs, outputs, NR), |memory| {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(memory);
        pack_all(Group::Single, Matrix::columns(weight, inputs, outputs), NR, packed);
        let rhs = Rhs::new(packed, Group::Single, inputs, outputs);
        let Tiling { panel, .. } = Tiling::of::<f32>();
        y.par_chunks_mut(panel * outputs).zip(x.par_chunks(panel * inputs)).for_each(|(y, x)| {
            with_rows(LeftRows::contiguous(x, inputs), |x| {
                multiply(x, rhs, 0..outputs, y, outputs, false);
            });
        });
    });
}
