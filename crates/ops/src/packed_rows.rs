//! A matrix that many products share.

use std::ops::Range;

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::product::{
    Group, LeftRows, Matrix, NR, Rhs, Shared, multiply_shared, pack_all, packed_len, with_rows,
};
use crate::scratch::{split_off, whole_lines, with_scratch};

/// Columns of a result that one task computes: whole panels, and few, so that threads end at about the same time.
const COLUMNS: usize = 2 * NR;

/// The rows of a matrix W (N, K), f32, packed once for many products `X · Wᵀ`.
///
/// Every product runs the same kernel, whatever the number of rows. It sums each element in the same order, so a row of X
/// gives the same bits alone, among other rows, and with any number of threads.
#[derive(Debug)]
pub struct PackedRows {
    memory: Buffer,
    rows: usize,
    depth: usize,
}

/// What a product does with the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The product replaces it.
    Replace,
    /// The product is added to it.
    Add,
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

    /// N.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Memory of the packed matrix in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.memory)
    }

    /// Copies row `index` of W into `row` (K).
    ///
    /// # Panics
    /// When W does not have the row, or `row` is not of K elements.
    pub fn copy_row(&self, index: usize, row: &mut [f32]) {
        assert!(index < self.rows && row.len() == self.depth, "sizes that do not fit");
        let panel = &self.memory[index / NR * NR * self.depth..][..NR * self.depth];
        for (to, group) in row.iter_mut().zip(panel.chunks_exact(NR)) {
            *to = group[index % NR];
        }
    }

    /// `y = x · Wᵀ` for x (M, K), row-major, and y (M, N), in this thread; a caller with many rows divides them among
    /// threads. An element has the same bits in any block of rows.
    ///
    /// # Panics
    /// When x or y do not have these sizes.
    pub fn products(&self, x: &[f32], y: &mut [f32]) {
        self.check(x, y);
        // SAFETY: y is borrowed exclusively.
        unsafe { self.columns(x, 0..self.rows, &Shared::new(y), 0, self.rows, Target::Replace) };
    }

    /// As [`Self::products`], with all threads of the current pool. They share the columns of y.
    ///
    /// # Panics
    /// When x or y do not have these sizes.
    pub fn products_by_columns(&self, x: &[f32], y: &mut [f32], target: Target) {
        self.check(x, y);
        let y = Shared::new(y);
        column_tasks(self.rows).for_each(|columns| {
            let at = columns.start;
            // SAFETY: each task writes its own columns.
            unsafe { self.columns(x, columns, &y, at, self.rows, target) };
        });
    }

    fn check(&self, x: &[f32], y: &[f32]) {
        let rows = x.len() / self.depth;
        assert!(x.len() == rows * self.depth && y.len() == rows * self.rows, "sizes that do not fit");
    }

    /// Some columns of `x · Wᵀ`: element (i, j) goes to `at + i * stride + j - columns.start` of y.
    ///
    /// # Safety
    /// No other thread may use these elements of y meanwhile.
    unsafe fn columns(
        &self,
        x: &[f32],
        columns: Range<usize>,
        y: &Shared<f32>,
        at: usize,
        stride: usize,
        target: Target,
    ) {
        let rhs = Rhs::new(bytemuck::cast_slice(&self.memory), Group::Single, self.depth, self.rows);
        with_rows(LeftRows::contiguous(x, self.depth), |x| {
            // SAFETY: passed on.
            unsafe { multiply_shared(x, rhs, columns, y, at, stride, target == Target::Add) };
        });
    }
}

fn column_tasks(columns: usize) -> impl IndexedParallelIterator<Item = Range<usize>> {
    (0..columns.div_ceil(COLUMNS))
        .into_par_iter()
        .map(move |task| task * COLUMNS..columns.min((task + 1) * COLUMNS))
}

/// `y = silu(x · Gᵀ) · (x · Uᵀ)` for x (M, K), packed G and U (N, K each) and y (M, N), with all threads of the current
/// pool. They share the columns of y.
///
/// # Panics
/// When the sizes do not fit together.
pub fn gated_products(gate: &PackedRows, up: &PackedRows, x: &[f32], y: &mut [f32]) {
    gate.check(x, y);
    up.check(x, y);
    let (rows, width) = (x.len() / gate.depth, gate.rows);
    let y = Shared::new(y);
    column_tasks(width).for_each(|columns| {
        let count = columns.len();
        let length = rows * count;
        with_scratch(2 * whole_lines(length), |mut memory| {
            let parts = [gate, up].map(|weights| {
                let part = &mut split_off(&mut memory, length)[..length];
                // SAFETY: the part is borrowed exclusively.
                unsafe { weights.columns(x, columns.clone(), &Shared::new(part), 0, count, Target::Replace) };
                &*part
            });
            for (row, (gate, up)) in
                parts[0].chunks_exact(count).zip(parts[1].chunks_exact(count)).enumerate()
            {
                let at = row * width + columns.start;
                // SAFETY: each task writes its own columns.
                crate::swiglu::forward(gate, up, unsafe { y.part(at..at + count) });
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * step % 101) as f32 - 50.0) / 64.0).collect()
    }

    #[test]
    fn a_row_has_the_same_bits_alone_in_any_block_and_with_any_threads() {
        // Several depth parts, a last panel that is not full, and more rows than a tile.
        let (depth, outputs, rows) = (600, 150, 29);
        let (weights, x) = (values(outputs * depth, 37), values(rows * depth, 53));
        let packed = PackedRows::new(&weights, depth);
        let mut alone = vec![1.0; rows * outputs];
        for (x, y) in x.chunks(depth).zip(alone.chunks_mut(outputs)) {
            packed.products_by_columns(x, y, Target::Add);
        }
        for block in [2, 3, 7, 12, 13, 29] {
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut together = vec![1.0; rows * outputs];
                for (x, y) in x.chunks(block * depth).zip(together.chunks_mut(block * outputs)) {
                    pool.install(|| packed.products_by_columns(x, y, Target::Add));
                }
                assert_eq!(together, alone, "{block} rows, {threads} threads");
            }
        }
        let exact = |row: usize, column: usize| -> f64 {
            let products = x[row * depth..].iter().zip(&weights[column * depth..]).take(depth);
            1.0 + products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        for (row, column) in [(0, 0), (28, 149), (12, 64)] {
            assert!((f64::from(alone[row * outputs + column]) - exact(row, column)).abs() < 1e-4);
        }
    }

    #[test]
    fn rows_come_out_of_the_packing_as_they_went_in() {
        let weights = values(70 * 19, 29);
        let packed = PackedRows::new(&weights, 19);
        let mut row = vec![0.0; 19];
        for index in [0, 31, 32, 69] {
            packed.copy_row(index, &mut row);
            assert_eq!(row, weights[index * 19..][..19]);
        }
    }
}
