//! How the rows of a product are shared out among tasks.

use std::ops::Range;

use super::{Lhs, MR, PANEL, with_rows};
use crate::element::Element;

/// Runs `f` on the rows of x (rows, k) as a left operand and on a few of the `n` columns of the result at a time, at most
/// `step`: what is done with a result finds it in the first cache then.
pub(crate) fn by_columns<E: Element>(
    x: &[E],
    k: usize,
    (n, step): (usize, usize),
    mut f: impl FnMut(Range<usize>, Lhs<'_>),
) {
    with_rows(x, (x.len() / k, k, k), |lhs| {
        for first in (0..n).step_by(step) {
            f(first..n.min(first + step), lhs);
        }
    });
}

/// The rows of each task when every task takes a few of `rows` through several products: whole tiles, and many, so that the
/// columns of B that are at hand serve several panels before they leave the second-level cache, but as many tasks for each
/// thread. Results do not depend on it.
pub(crate) fn row_tasks(rows: usize) -> Vec<Range<usize>> {
    const MOST: usize = 4 * PANEL;
    let tiles = rows.div_ceil(MR);
    let tasks = rows.div_ceil(MOST).next_multiple_of(rayon::current_num_threads().max(1)).min(tiles);
    (0..tasks).map(|task| tiles * task / tasks * MR..rows.min(tiles * (task + 1) / tasks * MR)).collect()
}

/// The parts of a matrix with rows of `width` elements that belong to tasks.
///
/// # Panics
/// When the matrix has other rows than the tasks.
pub(crate) fn parts<'a, T>(tasks: &[Range<usize>], matrix: &'a [T], width: usize) -> Vec<&'a [T]> {
    tasks.iter().map(|rows| &matrix[rows.start * width..rows.end * width]).collect()
}

/// [`parts`] to write.
///
/// # Panics
/// As [`parts`].
pub(crate) fn parts_mut<'a, T>(
    tasks: &[Range<usize>],
    mut matrix: &'a mut [T],
    width: usize,
) -> Vec<&'a mut [T]> {
    let mut part = |rows: &Range<usize>| {
        let (part, rest) = std::mem::take(&mut matrix).split_at_mut(rows.len() * width);
        matrix = rest;
        part
    };
    tasks.iter().map(&mut part).collect()
}
