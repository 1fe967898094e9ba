//! Root-mean-square normalisation (arXiv:1910.07467): `y = x / sqrt(mean(x²) + epsilon) · weight` over rows of D.

use rayon::prelude::*;

use crate::element::Element;
use crate::exp::dot;
use crate::product::PANEL;
use crate::vector;

/// The factor that brings a row to a root mean square of 1.
#[inline(always)]
fn inverse_rms(row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt()
}

/// Normalises rows: x and y are (rows, D), the weight has D elements.
pub(crate) fn forward<E: Element>(x: &[f32], weight: &[f32], y: &mut [E], epsilon: f32) {
    vector::dispatch(
        #[inline(always)]
        || {
            for (y, x) in y.chunks_exact_mut(weight.len()).zip(x.chunks_exact(weight.len())) {
                let scale = inverse_rms(x, epsilon);
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

/// The gradients of rows: adds x's to `dx` and the weight's to `dw`.
pub(crate) fn backward(x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32], dw: &mut [f32], epsilon: f32) {
    let width = weight.len();
    vector::dispatch(
        #[inline(always)]
        || {
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            for ((x, dy), dx) in rows {
                let scale = inverse_rms(x, epsilon);
                let mut lanes = [0f32; 16];
                let mut add = |lane: usize, dw: &mut f32, x: f32, dy: f32, w: f32| {
                    *dw += dy * x * scale;
                    lanes[lane] += dy * w * x;
                };
                let whole = width / 16 * 16;
                for at in (0..whole).step_by(16) {
                    let (dw, x) = (&mut dw[at..at + 16], &x[at..at + 16]);
                    let (dy, w) = (&dy[at..at + 16], &weight[at..at + 16]);
                    for lane in 0..16 {
                        add(lane, &mut dw[lane], x[lane], dy[lane], w[lane]);
                    }
                }
                for at in whole..width {
                    add(0, &mut dw[at], x[at], dy[at], weight[at]);
                }
                let pull = lanes.iter().sum::<f32>() * scale * scale * scale / width as f32;
                for (((dx, dy), x), w) in dx.iter_mut().zip(dy).zip(x).zip(weight) {
                    *dx += dy * w * scale - x * pull;
                }
            }
        },
    );
}

/// Adds the weight's gradients of several panels, in their order, to `dw`.
pub(crate) fn add_partials(partials: &[f32], dw: &mut [f32]) {
    for partial in partials.chunks_exact(dw.len()) {
        for (dw, partial) in dw.iter_mut().zip(partial) {
            *dw += partial;
        }
    }
}
