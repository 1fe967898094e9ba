//! The gated activation of the feed-forward layer (arXiv:2002.05202).

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use rayon::prelude::*;

use crate::OpsError;
use crate::error::shape;
use crate::exp::sigmoid;
use crate::memory::{elements, read};

/// Elements of one task.
const CHUNK: usize = 4096;

/// `silu(gate) · up`, element by element, of two f32 tensors of one shape (…, F).
///
/// # Errors
/// When the shapes differ.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor, OpsError> {
    if gate.shape() != up.shape() {
        return Err(shape("swiglu", format!("gate {:?} and up {:?} differ", gate.dims(), up.dims())));
    }
    Ok(gate.apply_op2(up, SwiGlu)?)
}

/// `y = silu(gate) · up`.
pub(crate) fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
        *y = gate * sigmoid(*gate) * up;
    }
}

struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (gate, up) = (elements(gate, gate_layout)?, elements(up, up_layout)?);
        let mut y = vec![0.0; gate.len()];
        let chunks = y.par_chunks_mut(CHUNK).zip(gate.par_chunks(CHUNK)).zip(up.par_chunks(CHUNK));
        chunks.for_each(|((y, gate), up)| forward(gate, up, y));
        Ok((CpuStorage::F32(y), gate_layout.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let (mut d_gate, mut d_up) = (vec![0.0; gate.elem_count()], vec![0.0; up.elem_count()]);
        read(gate, |gate| {
            read(up, |up| {
                read(&dy, |dy| {
                    let results = d_gate.par_chunks_mut(CHUNK).zip(d_up.par_chunks_mut(CHUNK));
                    let inputs = gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK)).zip(dy.par_chunks(CHUNK));
                    results.zip(inputs).for_each(|((d_gate, d_up), ((gate, up), dy))| {
                        let results = d_gate.iter_mut().zip(d_up);
                        for ((d_gate, d_up), ((gate, up), dy)) in results.zip(gate.iter().zip(up).zip(dy)) {
                            let s = sigmoid(*gate);
                            *d_gate = dy * up * s * (1.0 + gate * (1.0 - s));
                            *d_up = dy * gate * s;
                        }
                    });
                })
            })
        })???;
        let d_gate = Tensor::from_vec(d_gate, gate.shape(), gate.device())?;
        Ok((Some(d_gate), Some(Tensor::from_vec(d_up, up.shape(), up.device())?)))
    }
}
