//! Rotary position embedding (arXiv:2104.09864), the rotate-half form of Hugging Face's Llama.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use rayon::prelude::*;

use crate::OpsError;
use crate::error::shape;

/// The cosines and sines of all positions of a model, shared by its blocks.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    positions: usize,
    cos: Arc<[f32]>,
    sin: Arc<[f32]>,
}

impl RopeTable {
    /// The table for `positions` positions, heads of `head_dim` elements (even) and base `theta`:
    /// angle(t, j) = t · theta^(-2j / Dh).
    ///
    /// # Errors
    /// When `head_dim` is 0 or odd.
    pub fn new(positions: usize, head_dim: usize, theta: f64) -> Result<Self, OpsError> {
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(shape(
                "rope",
                format!("a head of {head_dim} elements can't be rotated: it must be even"),
            ));
        }
        let half = head_dim / 2;
        let angles = |position: usize| {
            (0..half).map(move |j| position as f64 * theta.powf(-2.0 * j as f64 / head_dim as f64))
        };
        let table =
            |f: fn(f64) -> f64| (0..positions).flat_map(angles).map(|angle| f(angle) as f32).collect();
        Ok(Self { half, positions, cos: table(f64::cos), sin: table(f64::sin) })
    }

    /// How many positions the table holds.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Rotates all heads of one position; `row` holds them one after the other. `sign` is -1 for the inverse.
    pub(crate) fn rotate(&self, row: &mut [f32], position: usize, sign: f32) {
        let at = position * self.half..(position + 1) * self.half;
        let (Some(cos), Some(sin)) = (self.cos.get(at.clone()), self.sin.get(at)) else { return };
        for head in row.chunks_exact_mut(2 * self.half) {
            let (low, high) = head.split_at_mut(self.half);
            for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                let (a, b, sin) = (*low, *high, sign * sin);
                *low = a * cos - b * sin;
                *high = b * cos + a * sin;
            }
        }
    }
}

/// Rotates queries or keys x (B, T, H, Dh), f32; the first of the T positions is number `offset`.
///
/// # Errors
/// When x does not have four dimensions or heads of the table's size, or the table has too few positions.
pub fn rope(x: &Tensor, table: &RopeTable, offset: usize) -> Result<Tensor, OpsError> {
    let fits = x.rank() == 4 && x.dims()[3] == 2 * table.half;
    if !fits {
        let problem = format!("x {:?} is not (B, T, H, {})", x.dims(), 2 * table.half);
        return Err(shape("rope", problem));
    }
    if offset.saturating_add(x.dims()[1]) > table.positions {
        let problem = format!(
            "position {} is past the last of {}",
            offset.saturating_add(x.dims()[1]),
            table.positions
        );
        return Err(shape("rope", problem));
    }
    Ok(x.apply_op1(Rope { table: table.clone(), offset, sign: 1.0 })?)
}

#[derive(Clone)]
struct Rope {
    table: RopeTable,
    offset: usize,
    sign: f32,
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (_, time, heads, width) = layout.shape().dims4()?;
        let mut y = crate::memory::elements(x, layout)?.to_vec();
        let row = (heads * width).max(1);
        y.par_chunks_mut(row).with_min_len(32).enumerate().for_each(|(i, row)| {
            self.table.rotate(row, self.offset + i % time, self.sign);
        });
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let inverse = Self { sign: -self.sign, ..self.clone() };
        Ok(Some(gradient.contiguous()?.apply_op1_no_bwd(&inverse)?))
    }
}
