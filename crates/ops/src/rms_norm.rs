//! Root-mean-square normalisation (arXiv:1910.07467): `y = x / sqrt(mean(x²) + epsilon) · weight` over rows of D.

use std::ops::Range;

use rayon::prelude::*;

use crate::buffer::{Buffer, Workspace};
use crate::element::Element;
use crate::exp::{LANES, dot, total};
use crate::product::{MR, PANEL, parts, parts_mut, row_tasks};
use crate::vector::{self, Units};

/// The factor that brings a row to a root mean square of 1.
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
    let chunk = PANEL * weight.len();
    y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| forward(x, weight, y, epsilon));
}

/// Positions whose contributions to the weight's gradient are one sum: fixed, so that threads change no bit of it.
const SUMMED: usize = MR;

/// The gradients of rows: adds x's to `dx`, and writes the weight's to `sums`, one row of D for every [`SUMMED`] positions.
pub(crate) fn backward(
    x: &[f32],
    weight: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    sums: &mut [f32],
    epsilon: f32,
) {
    let width = weight.len();
    let some = SUMMED * width;
    let rows = x.chunks(some).zip(dy.chunks(some)).zip(dx.chunks_mut(some));
    for (((x, dy), dx), sum) in rows.zip(sums.chunks_exact_mut(width)) {
        sum.fill(0.0);
        add_gradients(x, weight, dy, dx, sum, epsilon);
    }
}

/// Adds x's gradient to `dx` and the weight's to `dw`.
fn add_gradients(x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32], dw: &mut [f32], epsilon: f32) {
    let width = weight.len();
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            for ((x, dy), dx) in rows {
                let scale = inverse_rms(units, x, epsilon);
                let mut lanes = [0f32; LANES];
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
                        add(&mut lanes[i], &mut dw[i], x[i], dy[i], w[i]);
                    }
                }
                for i in 0..x_rest.len() {
                    add(&mut lanes[i], &mut dw_rest[i], x_rest[i], dy_rest[i], w_rest[i]);
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
pub(crate) fn backward_all(
    workspace: &Workspace,
    x: &[f32],
    weight: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dw: &mut [f32],
    epsilon: f32,
) {
    let width = weight.len();
    let tasks = row_tasks(x.len() / width);
    let mut sums = WeightSums::take(workspace, x.len() / width, width);
    let rows = parts(&tasks, x, width).into_par_iter().zip(parts(&tasks, dy, width));
    rows.zip(parts_mut(&tasks, dx, width)).zip(sums.parts(&tasks)).for_each(|(((x, dy), dx), sums)| {
        backward(x, weight, dy, dx, sums, epsilon);
    });
    sums.add_to(dw, workspace);
}

/// The sums of the weight's gradient that [`backward`] writes.
pub(crate) struct WeightSums {
    memory: Buffer,
    width: usize,
}

impl WeightSums {
    /// Room for the sums of this many positions.
    pub(crate) fn take(workspace: &Workspace, rows: usize, width: usize) -> Self {
        Self { memory: workspace.take(rows.div_ceil(SUMMED) * width), width }
    }

    /// Those of each task; tasks begin at multiples of [`SUMMED`].
    pub(crate) fn parts(&mut self, tasks: &[Range<usize>]) -> Vec<&mut [f32]> {
        let sums: Vec<_> = tasks.iter().map(|rows| rows.start / SUMMED..rows.end.div_ceil(SUMMED)).collect();
        parts_mut(&sums, &mut self.memory, self.width)
    }

    /// Adds them up in their order.
    pub(crate) fn add_to(self, dw: &mut [f32], workspace: &Workspace) {
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
        workspace.give(self.memory);
    }
}
