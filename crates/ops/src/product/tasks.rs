//! How tasks share the rows of a product, and the columns within a task.

use std::ops::Range;

use super::{LeftRows, Lhs, Rhs, Tiling, multiply, with_rows};
use crate::element::{Element, narrow};
use crate::scratch::with_scratch;
use crate::vector;

/// Columns of a product whose f32 results stay in scratch memory, and in the cache, until the next operation has read
/// them.
pub(crate) const WIDTH: usize = 256;

/// Runs `f` on the rows of a left operand and on the next at most `step` of `columns` columns of the result, until all
/// columns are done. With few columns at a time, `f` finds the result in the first-level cache when it goes on with it.
pub(crate) fn by_columns<E: Element>(
    rows: LeftRows<'_, E>,
    columns: usize,
    step: usize,
    mut f: impl FnMut(Range<usize>, Lhs<'_>),
) {
    with_rows(rows, |lhs| {
        for first in (0..columns).step_by(step) {
            f(first..columns.min(first + step), lhs);
        }
    });
}

/// `y = x · B`, rounded to E: x (rows, k), y (rows, n).
pub(crate) fn rounded_product<E: Element>(x: LeftRows<'_, E>, rhs: Rhs<'_>, y: &mut [E]) {
    let n = rhs.columns();
    with_scratch(x.count * WIDTH, |scratch| {
        by_columns(x, n, WIDTH, |columns, x| {
            let width = columns.len();
            multiply(x, rhs, columns.clone(), scratch, width, false);
            let results = scratch.chunks_exact(width).zip(y.chunks_exact_mut(n));
            vector::dispatch(
                #[inline(always)]
                || results.for_each(|(row, y)| narrow(row, &mut y[columns.clone()])),
            );
        });
    });
}

/// The rows of each task when a task takes its rows through several products on E. A task has whole tiles, and enough of them
/// that a panel of B serves several panels of A before it leaves the second-level cache. Each thread gets the same number
/// of tasks. Results do not depend on the division.
pub(crate) fn row_tasks<E: Element>(rows: usize) -> Vec<Range<usize>> {
    let Tiling { rows: tile, tall, .. } = Tiling::of::<E>();
    let tiles = rows.div_ceil(tile);
    let tasks = rows.div_ceil(tall).next_multiple_of(rayon::current_num_threads().max(1)).min(tiles);
    (0..tasks).map(|task| tiles * task / tasks * tile..rows.min(tiles * (task + 1) / tasks * tile)).collect()
}

/// A task's rows of a matrix with rows of `width` elements.
///
/// # Panics
/// When the matrix does not have these rows.
pub(crate) fn part<'a, T>(matrix: &'a [T], width: usize, rows: &Range<usize>) -> &'a [T] {
    &matrix[rows.start * width..rows.end * width]
}

/// Gives consecutive tasks their rows of a matrix, to write.
pub(crate) struct RowSplitter<'a, T> {
    rest: &'a mut [T],
    width: usize,
}

impl<'a, T> RowSplitter<'a, T> {
    /// A matrix with rows of `width` elements, of which no row is given away yet.
    pub(crate) fn new(matrix: &'a mut [T], width: usize) -> Self {
        Self { rest: matrix, width }
    }

    /// The next `rows` rows.
    ///
    /// # Panics
    /// When fewer are left.
    pub(crate) fn next(&mut self, rows: usize) -> &'a mut [T] {
        let (part, rest) = std::mem::take(&mut self.rest).split_at_mut(rows * self.width);
        self.rest = rest;
        part
    }
}
