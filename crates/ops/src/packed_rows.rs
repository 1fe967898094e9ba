//! A matrix that many products share.

use crate::buffer::Buffer;
use crate::product::{Group, LeftRows, Matrix, NR, Rhs, multiply, pack_all, packed_len, with_rows};

/// The rows of a matrix W (N, K), f32, packed once for many products `X · Wᵀ`.
#[derive(Debug)]
pub struct PackedRows {
    memory: Buffer,
    rows: usize,
    depth: usize,
}

impl PackedRows {
    /// Packs W (N, K), row-major, for K = `depth`.
    ///
    /// # Panics
    /// When the length of W is not a multiple of `depth`, or `depth` is 0.
    #[must_use]
    pub fn new(weights: &[f32], depth: usize) -> Self {
        assert!(weights.len().is_multiple_of(depth), "rows of another length");
        let rows = weights.len() / depth;
        let mut memory = Buffer::default();
        memory.resize(packed_len(Group::Single, depth, rows, NR));
        let packed: &mut [u32] = bytemuck::cast_slice_mut(&mut memory);
        pack_all(Group::Single, Matrix::columns(weights, depth, rows), NR, packed);
        Self { memory, rows, depth }
    }

    /// `y = x · Wᵀ` for x (M, K), row-major, and y (M, N), in this thread; a caller with many rows divides them among
    /// threads. An element has the same bits in any block of rows.
    ///
    /// # Panics
    /// When x or y do not have these sizes.
    pub fn products(&self, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.depth;
        assert!(x.len() == rows * self.depth && y.len() == rows * self.rows, "sizes that do not fit");
        let rhs = Rhs::new(bytemuck::cast_slice(&self.memory), Group::Single, self.depth, self.rows);
        with_rows(LeftRows::contiguous(x, self.depth), |x| {
            multiply(x, rhs, 0..self.rows, y, self.rows, false);
        });
    }
}
