//! The linear map without a bias, f32.

use crate::product::{Group, NR, Order, PANEL, Rhs, multiply, pack_all, packed_len, with_rows, with_scratch};
use rayon::prelude::*;

/// `y = x · Wᵀ` for x (rows, inputs), W (outputs, inputs) and y (rows, outputs).
pub(crate) fn forward(
    x: &[f32],
    weight: &[f32],
    y: &mut [f32],
    (rows, inputs, outputs): (usize, usize, usize),
) {
    let (x, y) = (&x[..rows * inputs], &mut y[..rows * outputs]);
    if inputs == 0 || outputs == 0 {
        return y.fill(0.0);
    }
    with_scratch(packed_len(Group::Single, inputs, outputs, NR), |memory| {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(memory);
        pack_all(Group::Single, Order::Columns, weight, inputs, (inputs, outputs), NR, packed);
        let rhs = Rhs::new(packed, Group::Single, inputs, outputs);
        y.par_chunks_mut(PANEL * outputs).zip(x.par_chunks(PANEL * inputs)).for_each(|(y, x)| {
            with_rows(x, (x.len() / inputs, inputs, inputs), |x| {
                multiply(x, rhs, 0..outputs, y, outputs, false);
            });
        });
    });
}
