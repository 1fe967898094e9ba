//! The linear map without a bias.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::OpsError;
use crate::error::shape;
use crate::matmul::{Strided, Threads, matmul};
use crate::memory::{elements, read};

/// `y = x · Wᵀ`: x (…, D), W (F, D), y (…, F), all f32.
///
/// # Errors
/// When W is no matrix or its second dimension is not x's last one.
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor, OpsError> {
    let fits = weight.rank() == 2 && x.rank() >= 1 && x.dims().last() == weight.dims().last();
    if !fits {
        let problem = format!("x {:?} does not fit the weight {:?}", x.dims(), weight.dims());
        return Err(shape("linear", problem));
    }
    Ok(x.apply_op2(weight, Linear)?)
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (outputs, inputs) = weight_layout.shape().dims2()?;
        let (x, weight) = (elements(x, x_layout)?, elements(weight, weight_layout)?);
        let rows = x_layout.shape().elem_count() / inputs.max(1);
        let mut y = vec![0.0; rows * outputs];
        forward(x, weight, &mut y, (rows, inputs, outputs), Threads::All);
        let mut dims = x_layout.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = outputs;
        }
        Ok((CpuStorage::F32(y), Shape::from(dims)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let (outputs, inputs) = weight.dims2()?;
        let rows = x.elem_count() / inputs.max(1);
        let dx = if x.track_op() {
            let mut dx = vec![0.0; rows * inputs];
            read(weight, |weight| read(&dy, |dy| input_gradient(dy, weight, &mut dx, (rows, inputs, outputs))))??;
            Some(Tensor::from_vec(dx, x.shape(), x.device())?)
        } else {
            None
        };
        let dw = if weight.track_op() {
            let mut dw = vec![0.0; outputs * inputs];
            read(x, |x| read(&dy, |dy| weight_gradient(dy, x, &mut dw, (rows, inputs, outputs), false)))??;
            Some(Tensor::from_vec(dw, weight.shape(), x.device())?)
        } else {
            None
        };
        Ok((dx, dw))
    }
}

/// `y = x · Wᵀ` for x (rows, inputs) and W (outputs, inputs).
pub(crate) fn forward(
    x: &[f32],
    weight: &[f32],
    y: &mut [f32],
    (rows, inputs, outputs): (usize, usize, usize),
    threads: Threads,
) {
    let (lx, lw) = (Strided::rows(inputs), Strided::rows(inputs).t());
    matmul((rows, outputs, inputs), x, lx, weight, lw, y, Strided::rows(outputs), 1.0, false, threads);
}

/// `dx = dy · W`.
pub(crate) fn input_gradient(
    dy: &[f32],
    weight: &[f32],
    dx: &mut [f32],
    (rows, inputs, outputs): (usize, usize, usize),
) {
    let (lg, lw) = (Strided::rows(outputs), Strided::rows(inputs));
    matmul((rows, inputs, outputs), dy, lg, weight, lw, dx, Strided::rows(inputs), 1.0, false, Threads::All);
}

/// `dW = dyᵀ · x`, or `dW += …`.
pub(crate) fn weight_gradient(
    dy: &[f32],
    x: &[f32],
    dw: &mut [f32],
    (rows, inputs, outputs): (usize, usize, usize),
    accumulate: bool,
) {
    let (lg, lx) = (Strided::rows(outputs).t(), Strided::rows(inputs));
    matmul((outputs, inputs, rows), dy, lg, x, lx, dw, Strided::rows(inputs), 1.0, accumulate, Threads::All);
}
