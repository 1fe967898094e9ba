//! Root-mean-square normalisation (arXiv:1910.07467): `y = x / sqrt(mean(x²) + epsilon) · weight` for each row of D
//! elements.

use std::ops::Range;

use rayon::prelude::*;

use crate::buffer::{Buffer, Workspace};
use crate::element::Element;
use crate::exp::{LANES, Lanes, dot, total};
use crate::product::{RowSplitter, Tiling, part, row_tasks};
use crate::vector::{self, Units};

/// The factor that scales a row to a root mean square of 1.
#[inline(always)]
fn inverse_rms(units: Units, row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(units, row, row) / row.len() as f32 + epsilon).sqrt()
}

/// Normalises rows: x and y are (rows, D), the weight has D elements.
pub(crate) fn forward<E: Element>(x: &[f32], weight: &[f32], y: &mut [E], epsilon: f32) {
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            for (y, x) in y.chunks_exact_mut(weight.len()).zip(x.chunks_exact(weight.len())) {
                let scale = inverse_rms(units, x, epsilon);
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = E::from_f32(x * scale * w);
                }
            }
        },
    );
}

/// [`forward`] with all threads.
pub(crate) fn forward_all<E: Element>(x: &[f32], weight: &[f32], y: &mut [E], epsilon: f32) {
    let chunk = Tiling::of::<E>().panel * weight.len();
    y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| forward(x, weight, y, epsilon));
}

/// Positions whose contributions to the weight's gradient are one partial sum. The number is fixed, so that the number of
/// threads changes no bit of the gradient. Tasks on E begin at its multiples.
fn positions<E: Element>() -> usize {
    Tiling::of::<E>().rows
}

/// The gradients of rows: adds the gradient of x to `dx` (rows, D), and writes the partial sums of the weight's gradient
/// to `sums`, one row of D elements for every [`positions`] of E.
pub(crate) fn backward<E: Element>(
    x: &[f32],
    weight: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    sums: &mut [f32],
    epsilon: f32,
) {
    let width = weight.len();
    let some = positions::<E>() * width;
    let rows = x.chunks(some).zip(dy.chunks(some)).zip(dx.chunks_mut(some));
    for (((x, dy), dx), sum) in rows.zip(sums.chunks_exact_mut(width)) {
        sum.fill(0.0);
        add_gradients(x, weight, dy, dx, sum, epsilon);
    }
}

/// Adds the gradient of x to `dx` (rows, D) and the weight's gradient to `dw` (D).
fn add_gradients(x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32], dw: &mut [f32], epsilon: f32) {
    let width = weight.len();
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            for ((x, dy), dx) in rows {
                let scale = inverse_rms(units, x, epsilon);
                // One pass over the row adds to dw and sums dy · w · x, which the gradient of x needs, in lanes: a single
                // running sum would make each addition wait for the one before.
                let mut lanes = Lanes([0f32; LANES]);
                let add = |lane: &mut f32, dw: &mut f32, x: f32, dy: f32, w: f32| {
                    *dw = units.mul_add(dy * x, scale, *dw);
                    *lane = units.mul_add(dy * w, x, *lane);
                };
                let (dw_lines, dw_rest) = dw.as_chunks_mut::<LANES>();
                let (x_lines, x_rest) = x.as_chunks::<LANES>();
                let (dy_lines, dy_rest) = dy.as_chunks::<LANES>();
                let (w_lines, w_rest) = weight.as_chunks::<LANES>();
                for (((dw, x), dy), w) in dw_lines.iter_mut().zip(x_lines).zip(dy_lines).zip(w_lines) {
                    for i in 0..LANES {
                        add(&mut lanes.0[i], &mut dw[i], x[i], dy[i], w[i]);
                    }
                }
                for i in 0..x_rest.len() {
                    add(&mut lanes.0[i], &mut dw_rest[i], x_rest[i], dy_rest[i], w_rest[i]);
                }
                let pull = total(&lanes) * scale * scale * scale / width as f32;
                for (((dx, dy), x), w) in dx.iter_mut().zip(dy).zip(x).zip(weight) {
                    *dx += dy * w * scale - x * pull;
                }
            }
        },
    );
}

/// [`backward`] with all threads; adds the weight's gradient to `dw`.
pub(crate) fn backward_all<E: Element>(
    workspace: &Workspace,
    x: &[f32],
    weight: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dw: Option<&mut [f32]>,
    epsilon: f32,
) {
    struct Task<'a> {
        x: &'a [f32],
        dy: &'a [f32],
        dx: &'a mut [f32],
        sums: &'a mut [f32],
    }

    let (width, rows) = (weight.len(), x.len() / weight.len());
    let mut sums = WeightSums::take::<E>(workspace, rows, width);
    let (mut dx_rows, mut sums_rows) = (RowSplitter::new(dx, width), sums.split());
    let task = |rows: Range<usize>| Task {
        x: part(x, width, &rows),
        dy: part(dy, width, &rows),
        dx: dx_rows.next(rows.len()),
        sums: sums_rows.next(summed::<E>(&rows)),
    };
    let tasks: Vec<_> = row_tasks::<E>(rows).into_iter().map(task).collect();
    tasks
        .into_par_iter()
        .for_each(|Task { x, dy, dx, sums }| backward::<E>(x, weight, dy, dx, sums, epsilon));
    if let Some(dw) = dw {
        sums.add_to(dw);
    }
    sums.give(workspace);
}

/// Number of partial sums of a task's rows.
pub(crate) fn summed<E: Element>(rows: &Range<usize>) -> usize {
    rows.end.div_ceil(positions::<E>()) - rows.start / positions::<E>()
}

/// The partial sums of the weight's gradient that [`backward`] writes.
pub(crate) struct WeightSums {
    memory: Buffer,
    width: usize,
}

impl WeightSums {
    /// Room for the sums of this many positions.
    pub(crate) fn take<E: Element>(workspace: &Workspace, rows: usize, width: usize) -> Self {
        Self { memory: workspace.take(rows.div_ceil(positions::<E>()) * width), width }
    }

    /// Gives consecutive tasks their sums, of which each has [`summed`].
    pub(crate) fn split(&mut self) -> RowSplitter<'_, f32> {
        RowSplitter::new(&mut self.memory, self.width)
    }

    /// Adds the sums to the weight's gradient, in the order of the positions.
    pub(crate) fn add_to(&self, dw: &mut [f32]) {
        vector::dispatch(
            #[inline(always)]
            || {
                for sum in self.memory.chunks_exact(self.width) {
                    for (dw, sum) in dw.iter_mut().zip(sum) {
                        *dw += sum;
                    }
                }
            },
        );
    }

    /// Gives the memory back.
    pub(crate) fn give(self, workspace: &Workspace) {
        workspace.give(self.memory);
    }
}
