//! Rotary position embedding (arXiv:2104.09864), the rotate-half form of Hugging Face's Llama.

use std::sync::Arc;

use crate::OpsError;
use crate::error::shape;

/// The cosines and sines of all positions of a model. Clones share them.
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
                format!("a head can't have {head_dim} elements: rotations need an even number above 0"),
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

    /// Number of positions in the table.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Dh.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Rotates all heads of one position, which lie one after the other in `row`. A `sign` of 1 rotates, -1 rotates back.
    /// A position past the table leaves the row as it is.
    #[inline(always)]
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
