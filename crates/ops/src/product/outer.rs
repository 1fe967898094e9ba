//! Products that sum over the rows of both operands: the gradients of matrices of weights.

use rayon::prelude::*;

use super::{DEPTH, Group, Lhs, NR, Order, PANEL, Rhs, Shared, multiply_shared, pack, with_scratch};
use crate::element::Element;

/// A product `C = Aᵀ · B`: A (k × m) with rows `stride` apart, C (m × n) row-major. The gradient of a matrix of weights is
/// such a product, summed over positions.
pub(crate) struct OuterProduct<'a, E> {
    pub(crate) a: &'a [E],
    pub(crate) stride: usize,
    /// m.
    pub(crate) rows: usize,
    /// B (k × n).
    pub(crate) rhs: Rhs<'a>,
    pub(crate) c: &'a mut [f32],
}

/// Computes several products of the same depth k with all threads, or adds them to what is there.
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
    let height = if panels(2 * PANEL) < enough { PANEL } else { 2 * PANEL };
    let most = enough.div_ceil(panels(height).max(1));
    let mut tasks = Vec::new();
    for OuterProduct { a, stride, rows, rhs, c } in products {
        assert!(c.len() >= *rows * rhs.columns, "the result is too short");
        assert!(depth == 0 || a.len() >= (depth - 1) * *stride + *rows, "the left operand is too short");
        let (a, c): (&[E], _) = (a, Shared::new(c));
        let width = rhs.columns.div_ceil(most).next_multiple_of(NR);
        for row in (0..*rows).step_by(height) {
            let own = height.min(*rows - row);
            for first in (0..rhs.columns).step_by(width) {
                let columns = first..rhs.columns.min(first + width);
                tasks.push((
                    &a[row.min(a.len())..],
                    *stride,
                    own,
                    *rhs,
                    columns,
                    c,
                    row * rhs.columns + first,
                ));
            }
        }
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(a, stride, rows, rhs, columns, c, at)| {
        with_columns(a, stride, (rows, depth), |lhs, first| {
            let (rhs, accumulate) = (rhs.part(first, lhs.groups), accumulate || first > 0);
            // SAFETY: tasks are disjoint blocks of rows and columns of C.
            unsafe { multiply_shared(lhs, rhs, columns.clone(), &c, at, rhs.columns, accumulate) };
        });
    });
}

/// Runs `f` on `rows` columns of a matrix A (depth, …) with rows `stride` apart as rows of a left operand: where they lie,
/// or packed some groups at a time; `f` gets the number of the first of them.
fn with_columns<E: Element>(
    a: &[E],
    stride: usize,
    (rows, depth): (usize, usize),
    mut f: impl FnMut(Lhs<'_>, usize),
) {
    let group = Group::of::<E>();
    if let Some(lhs) = Lhs::transposed(a, rows, depth, stride) {
        return f(lhs, 0);
    }
    with_scratch(DEPTH * rows, |scratch| {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(scratch);
        let some = DEPTH * group.elements();
        for k in (0..depth.max(1)).step_by(some) {
            let own = some.min(depth - k);
            pack(group, Order::Rows, &a[k * stride..], stride, (own, rows), rows, packed);
            f(Lhs::packed(packed, group, rows, own, rows), k / group.elements());
        }
    });
}
