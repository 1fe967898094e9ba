//! The residual addition.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use rayon::prelude::*;

use crate::OpsError;
use crate::error::shape;
use crate::memory::elements;

/// Elements of one task.
const CHUNK: usize = 8192;

/// `a + b` of two f32 tensors of one shape.
///
/// # Errors
/// When the shapes differ.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor, OpsError> {
    if a.shape() != b.shape() {
        return Err(shape("add", format!("{:?} and {:?} differ", a.dims(), b.dims())));
    }
    Ok(a.apply_op2(b, Add)?)
}

struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (a, b) = (elements(a, a_layout)?, elements(b, b_layout)?);
        let mut sum = vec![0.0; a.len()];
        let chunks = sum.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK));
        chunks.for_each(|((sum, a), b)| {
            for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
                *sum = a + b;
            }
        });
        Ok((CpuStorage::F32(sum), a_layout.shape().clone()))
    }

    fn bwd(
        &self,
        _a: &Tensor,
        _b: &Tensor,
        _sum: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(gradient.clone()), Some(gradient.clone())))
    }
}
