//! Products that sum over the rows of both operands: the gradients of weight matrices.

use std::ops::Range;

use rayon::prelude::*;

use super::{Group, Lhs, Matrix, NR, Order, Rhs, Shared, Tiling, left_len, multiply_shared, pack_left};
use crate::element::Element;
use crate::scratch::with_scratch;

/// A product `C = Aᵀ · B`: A (k × m), C (m × n) row-major. The gradient of a weight matrix is such a product, summed over
/// positions.
pub(crate) struct OuterProduct<'a, E> {
    pub(crate) a: &'a [E],
    /// Elements from the start of one row of A to the next.
    pub(crate) stride: usize,
    /// m.
    pub(crate) rows: usize,
    /// B (k × n).
    pub(crate) rhs: Rhs<'a>,
    pub(crate) c: &'a mut [f32],
}

/// A block of rows and columns of one product's C.
struct Task<'a, E> {
    /// The columns of A (k × rows) that give these rows of C.
    a: Matrix<'a, E>,
    rhs: Rhs<'a>,
    columns: Range<usize>,
    c: Shared<f32>,
    /// Where the block begins in C.
    at: usize,
}

/// Computes several products of the same depth k with all threads. With `accumulate`, adds them to the contents of C.
///
/// # Panics
/// When operands and results do not fit together.
pub(crate) fn outer_products<E: Element>(
    products: &mut [OuterProduct<'_, E>],
    depth: usize,
    accumulate: bool,
) {
    let panels = |height| products.iter().map(|product| product.rows.div_ceil(height)).sum::<usize>();
    let enough = 8 * rayon::current_num_threads();
    // Results have the same bits however rows and columns are shared out.
    let Tiling { panel, .. } = Tiling::of::<E>();
    let height = if panels(2 * panel) < enough { panel } else { 2 * panel };
    let most = enough.div_ceil(panels(height).max(1));
    let mut tasks = Vec::new();
    for OuterProduct { a, stride, rows, rhs, c } in products {
        assert!(c.len() >= *rows * rhs.columns, "the result is too short");
        assert!(depth == 0 || a.len() >= (depth - 1) * *stride + *rows, "the left operand is too short");
        let (a, c): (&[E], _) = (a, Shared::new(c));
        let width = rhs.columns.div_ceil(most).next_multiple_of(NR);
        for row in (0..*rows).step_by(height) {
            let lanes = height.min(*rows - row);
            let data = &a[row.min(a.len())..];
            let a = Matrix { data, order: Order::Rows, stride: *stride, depth, lanes };
            for first in (0..rhs.columns).step_by(width) {
                let columns = first..rhs.columns.min(first + width);
                tasks.push(Task { a, rhs: *rhs, columns, c, at: row * rhs.columns + first });
            }
        }
    }
    tasks.into_par_iter().with_max_len(1).for_each(|Task { a, rhs, columns, c, at }| {
        with_columns(a, |lhs, first| {
            let (rhs, accumulate) = (rhs.part(first, lhs.groups), accumulate || first > 0);
            // SAFETY: tasks are disjoint blocks of rows and columns of C.
            unsafe { multiply_shared(lhs, rhs, columns.clone(), &c, at, rhs.columns, accumulate) };
        });
    });
}

/// Runs `f` on the columns of a matrix of [`Order::Rows`] as rows of a left operand. They are read in place, or packed a
/// chunk of groups at a time; `f` gets the number of the chunk's first group.
fn with_columns<E: Element>(a: Matrix<'_, E>, mut f: impl FnMut(Lhs<'_>, usize)) {
    let group = Group::of::<E>();
    if let Some(lhs) = Lhs::transposed(a) {
        return f(lhs, 0);
    }
    let Matrix { data, stride, depth, lanes, .. } = a;
    let groups = Tiling::of_group(group).depth.min(group.count(depth).max(1));
    let chunk = groups * group.elements();
    with_scratch(left_len(group, chunk, lanes), |scratch| {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(scratch);
        // A depth of 0 still needs one call, which writes zeros.
        for k in (0..depth.max(1)).step_by(chunk) {
            let own = chunk.min(depth - k);
            let part = Matrix { data: &data[k * stride..], depth: own, ..a };
            f(pack_left(group, part, packed), k / group.elements());
        }
    });
}
