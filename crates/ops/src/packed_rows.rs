//! A matrix that many products share.

#[cfg(test)]
mod tests;

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::huge_pages;
use crate::product::{
    Group, LeftRows, Matrix, NR, Rhs, Shared, multiply_shared, pack_all, packed_len, with_rows,
};
use crate::quantized::{ActivationBlock, QuantizedPanels, quantize};
use crate::scratch::{split_off, whole_lines, with_scratch};
use crate::vector::convert;
use crate::{OpsError, WeightFormat};

/// Columns of a result that one task computes: whole panels, and few, so that threads end at about the same time.
const COLUMNS: usize = 2 * NR;

/// The rows of a matrix W (N, K), packed once for many products `X · Wᵀ`. W is rounded to a [`WeightFormat`], X is f32.
///
/// Every product runs the same kernel, whatever the number of rows. It sums each element in the same order, so a row of X
/// gives the same bits alone, among other rows, and with any number of threads.
///
/// With bf16, products are those of f32 with the rounded weights, to the bit. With blocks, each row of X is quantised to int8
/// in blocks of 32, and the sums of a block's products are exact.
#[derive(Debug)]
pub struct PackedRows {
    panels: Panels,
    rows: usize,
    depth: usize,
}

/// W in panels of [`NR`] rows, element by element.
#[derive(Debug)]
enum Panels {
    F32(Buffer),
    Bf16(Buffer),
    Blocks(QuantizedPanels),
}

impl Drop for PackedRows {
    fn drop(&mut self) {
        huge_pages::give_back(match &mut self.panels {
            Panels::F32(memory) | Panels::Bf16(memory) => memory,
            Panels::Blocks(panels) => panels.memory_mut(),
        });
    }
}

/// What a product does with the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The product replaces it.
    Replace,
    /// The product is added to it.
    Add,
}

/// W (N, K), row-major, in panels of f32.
fn packed(weights: &[f32], depth: usize) -> Buffer {
    let mut memory = Buffer::default();
    memory.resize(packed_len(Group::Single, depth, weights.len() / depth, NR));
    pack(weights, depth, &mut memory);
    memory
}

/// W (N, K), row-major, in panels of bf16. Panel by panel: W is never in panels of f32 as a whole.
fn packed_bf16(weights: &[f32], depth: usize) -> Buffer {
    let (panel, mut memory) = (NR * depth, Buffer::default());
    let elements = packed_len(Group::Single, depth, weights.len() / depth, NR);
    memory.resize(bf16::room(elements));
    let to = &mut bf16::of_mut(&mut memory)[..elements];
    let panels = weights.par_chunks(panel).zip(to.par_chunks_mut(panel));
    panels.for_each(|(weights, to)| {
        let mut values = Buffer::default();
        values.resize(to.len());
        pack(weights, depth, &mut values);
        convert(&values, to);
    });
    memory
}

/// Packs W (N, K), row-major, into panels of f32.
fn pack(weights: &[f32], depth: usize, panels: &mut [f32]) {
    assert!(weights.len().is_multiple_of(depth), "rows of another length");
    let matrix = Matrix::columns(weights, depth, weights.len() / depth);
    pack_all(Group::Single, matrix, NR, bytemuck::cast_slice_mut(panels));
}

/// The rows X of a product, as the kernels of a format read them.
#[derive(Clone, Copy)]
struct Left<'a> {
    /// (M, K).
    rows: &'a [f32],
    /// The same rows in blocks, for a W in blocks.
    blocks: &'a [ActivationBlock],
}

impl PackedRows {
    /// Packs W (N, K) in f32, row-major, for K = `depth`.
    ///
    /// # Panics
    /// When the length of W is not a multiple of `depth`, or `depth` is 0.
    #[must_use]
    pub fn new(weights: &[f32], depth: usize) -> Self {
        Self::of(Panels::F32(packed(weights, depth)), weights, depth)
    }

    /// The packed W, which products read from now on.
    fn of(panels: Panels, weights: &[f32], depth: usize) -> Self {
        huge_pages::keep(match &panels {
            Panels::F32(memory) | Panels::Bf16(memory) => memory,
            Panels::Blocks(panels) => panels.memory(),
        });
        Self { panels, rows: weights.len() / depth, depth }
    }

    /// Rounds W (N, K), row-major, to a format and packs it, for K = `depth`, with all threads of the current pool.
    ///
    /// # Errors
    /// The format has blocks, and K is no multiple of a block.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with_format(weights: &[f32], depth: usize, format: WeightFormat) -> Result<Self, OpsError> {
        let panels = match format {
            WeightFormat::F32 => Panels::F32(packed(weights, depth)),
            WeightFormat::Bf16 => Panels::Bf16(packed_bf16(weights, depth)),
            WeightFormat::Q8_0 | WeightFormat::Q4_0 => {
                Panels::Blocks(QuantizedPanels::new(weights, depth, format)?)
            }
        };
        Ok(Self::of(panels, weights, depth))
    }

    /// Memory of a packed matrix (`rows`, `depth`) in bytes, before there is one.
    #[must_use]
    pub fn bytes_of(rows: usize, depth: usize, format: WeightFormat) -> usize {
        let elements = packed_len(Group::Single, depth, rows, NR);
        match format {
            WeightFormat::F32 => elements * size_of::<f32>(),
            WeightFormat::Bf16 => bf16::room(elements) * size_of::<f32>(),
            WeightFormat::Q8_0 | WeightFormat::Q4_0 => QuantizedPanels::bytes_of(rows, depth, format),
        }
    }

    /// N.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// K.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Memory of the packed matrix in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(memory) | Panels::Bf16(memory) => size_of_val(&**memory),
            Panels::Blocks(panels) => size_of_val(panels.memory()),
        }
    }

    /// Copies row `index` of W, as it was rounded, into `row` (K).
    ///
    /// # Panics
    /// When W does not have the row, or `row` is not of K elements.
    pub fn copy_row(&self, index: usize, row: &mut [f32]) {
        assert!(index < self.rows && row.len() == self.depth, "sizes that do not fit");
        match &self.panels {
            Panels::F32(memory) => self.copy_column::<f32>(memory, index, row),
            Panels::Bf16(memory) => self.copy_column(bf16::of(memory), index, row),
            Panels::Blocks(panels) => panels.copy_row(index, row),
        }
    }

    fn copy_column<E: Element>(&self, panels: &[E], index: usize, row: &mut [f32]) {
        let panel = &panels[index / NR * NR * self.depth..][..NR * self.depth];
        for (to, group) in row.iter_mut().zip(panel.chunks_exact(NR)) {
            *to = group[index % NR].to_f32();
        }
    }

    /// `y = x · Wᵀ` for x (M, K), row-major, and y (M, N), in this thread; a caller with many rows divides them among
    /// threads. An element has the same bits in any block of rows.
    ///
    /// # Panics
    /// When x or y do not have these sizes.
    pub fn products(&self, x: &[f32], y: &mut [f32]) {
        self.check(x, y);
        let y = Shared::new(y);
        // SAFETY: y is borrowed exclusively.
        self.with_left(x, |x| unsafe { self.columns(x, 0..self.rows, &y, 0, self.rows, Target::Replace) });
    }

    /// As [`Self::products`], with all threads of the current pool. They share the columns of y.
    ///
    /// # Panics
    /// When x or y do not have these sizes.
    pub fn products_by_columns(&self, x: &[f32], y: &mut [f32], target: Target) {
        self.check(x, y);
        let y = Shared::new(y);
        self.with_left(x, |left| {
            column_tasks(self.rows).for_each(|columns| {
                let at = columns.start;
                // SAFETY: each task writes its own columns.
                unsafe { self.columns(left, columns, &y, at, self.rows, target) };
            });
        });
    }

    fn check(&self, x: &[f32], y: &[f32]) {
        let rows = x.len() / self.depth;
        assert!(x.len() == rows * self.depth && y.len() == rows * self.rows, "sizes that do not fit");
    }

    /// Runs `f` on x (M, K) as this matrix needs it.
    fn with_left<R>(&self, x: &[f32], f: impl FnOnce(Left<'_>) -> R) -> R {
        if !matches!(self.panels, Panels::Blocks(_)) {
            return f(Left { rows: x, blocks: &[] });
        }
        let count = x.len() / crate::quantized::BLOCK;
        with_scratch(count * ActivationBlock::F32, |memory| {
            let blocks: &mut [ActivationBlock] = bytemuck::cast_slice_mut(memory);
            quantize(x, self.depth, blocks);
            f(Left { rows: x, blocks })
        })
    }

    /// Some columns of `x · Wᵀ`, from a multiple of [`NR`] on: element (i, j) goes to `at + i * stride + j - columns.start`
    /// of y. `x` comes from [`Self::with_left`] of a matrix of the same format.
    ///
    /// # Safety
    /// No other thread may use these elements of y meanwhile.
    unsafe fn columns(
        &self,
        x: Left<'_>,
        columns: Range<usize>,
        y: &Shared<f32>,
        at: usize,
        stride: usize,
        target: Target,
    ) {
        let add = target == Target::Add;
        let rows = LeftRows::contiguous(x.rows, self.depth);
        match &self.panels {
            Panels::F32(memory) => {
                let rhs = Rhs::new(bytemuck::cast_slice(memory), Group::Single, self.depth, self.rows);
                // SAFETY: passed on.
                with_rows(rows, |x| unsafe { multiply_shared(x, rhs, columns, y, at, stride, add) });
            }
            Panels::Bf16(memory) => {
                let rhs = Rhs::halves(bytemuck::cast_slice(memory), self.depth, self.rows);
                // SAFETY: passed on.
                with_rows(rows, |x| unsafe { multiply_shared(x, rhs, columns, y, at, stride, add) });
            }
            // SAFETY: passed on.
            Panels::Blocks(panels) => unsafe { panels.columns(x.blocks, columns, y, at, stride, add) },
        }
    }
}

fn column_tasks(columns: usize) -> impl IndexedParallelIterator<Item = Range<usize>> {
    (0..columns.div_ceil(COLUMNS))
        .into_par_iter()
        .map(move |task| task * COLUMNS..columns.min((task + 1) * COLUMNS))
}

/// `y = silu(x · Gᵀ) · (x · Uᵀ)` for x (M, K), packed G and U (N, K each, of one format) and y (M, N), with all threads of the current
/// pool. They share the columns of y.
///
/// # Panics
/// When the sizes do not fit together.
pub fn gated_products(gate: &PackedRows, up: &PackedRows, x: &[f32], y: &mut [f32]) {
    gate.check(x, y);
    up.check(x, y);
    let (rows, width) = (x.len() / gate.depth, gate.rows);
    let y = Shared::new(y);
    gate.with_left(x, |left| {
        column_tasks(width).for_each(|columns| {
            let count = columns.len();
            let length = rows * count;
            with_scratch(2 * whole_lines(length), |mut memory| {
                let parts = [gate, up].map(|weights| {
                    let part = &mut split_off(&mut memory, length)[..length];
                    // SAFETY: the part is borrowed exclusively.
                    unsafe {
                        weights.columns(left, columns.clone(), &Shared::new(part), 0, count, Target::Replace);
                    };
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
    });
}
