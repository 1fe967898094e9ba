//! Root-mean-square normalisation (arXiv:1910.07467).

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use rayon::prelude::*;

use crate::OpsError;
use crate::error::shape;
use crate::exp::dot;
use crate::memory::{elements, read};

/// Rows of one task; also the unit in which the weight's gradient is summed.
const ROWS: usize = 32;

/// `y = x / sqrt(mean(x²) + epsilon) · weight` over the last dimension: x (…, D), weight (D), f32.
///
/// # Errors
/// When x's last dimension is not the weight's length.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor, OpsError> {
    if weight.rank() != 1 || weight.elem_count() == 0 || x.dims().last() != weight.dims().last() {
        let problem = format!("x {:?} does not fit the weight {:?}", x.dims(), weight.dims());
        return Err(shape("rms_norm", problem));
    }
    Ok(x.apply_op2(weight, RmsNorm { epsilon })?)
}

/// The factor that brings a row to a root mean square of 1.
fn inverse_rms(row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt()
}

/// Normalises each row of D = `weight.len()` elements.
pub(crate) fn forward(x: &[f32], weight: &[f32], y: &mut [f32], epsilon: f32) {
    for (y, x) in y.chunks_exact_mut(weight.len()).zip(x.chunks_exact(weight.len())) {
        let scale = inverse_rms(x, epsilon);
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * w;
        }
    }
}

struct RmsNorm {
    epsilon: f32,
}

impl RmsNorm {
    /// The gradients of a few rows; the weight's is added to `dw`.
    fn backward(&self, x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32], dw: &mut [f32]) {
        let width = weight.len();
        let mut weighted = vec![0.0; width];
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
        for ((x, dy), dx) in rows {
            let scale = inverse_rms(x, self.epsilon);
            for ((((weighted, dw), x), dy), w) in weighted.iter_mut().zip(dw.iter_mut()).zip(x).zip(dy).zip(weight) {
                *weighted = dy * w;
                *dw += dy * x * scale;
            }
            let pull = dot(&weighted, x) * scale * scale * scale / width as f32;
            for ((dx, weighted), x) in dx.iter_mut().zip(&weighted).zip(x) {
                *dx = weighted * scale - x * pull;
            }
        }
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, weight) = (elements(x, x_layout)?, elements(weight, weight_layout)?);
        let mut y = vec![0.0; x.len()];
        let chunk = ROWS * weight.len();
        y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| forward(x, weight, y, self.epsilon));
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let width = weight.elem_count();
        let chunk = ROWS * width;
        let mut dx = vec![0.0; x.elem_count()];
        let mut dw = vec![0.0; width];
        let dy = dy.contiguous()?;
        let partials: Vec<Vec<f32>> = read(x, |x| {
            read(weight, |weight| {
                read(&dy, |dy| {
                    let chunks = dx.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).zip(dy.par_chunks(chunk));
                    let gradients = chunks.map(|((dx, x), dy)| {
                        let mut partial = vec![0.0; width];
                        self.backward(x, weight, dy, dx, &mut partial);
                        partial
                    });
                    gradients.collect()
                })
            })
        })???;
        for partial in partials {
            for (dw, partial) in dw.iter_mut().zip(partial) {
                *dw += partial;
            }
        }
        let dx = Tensor::from_vec(dx, x.shape(), x.device())?;
        Ok((Some(dx), Some(Tensor::from_vec(dw, weight.shape(), x.device())?)))
    }
}
