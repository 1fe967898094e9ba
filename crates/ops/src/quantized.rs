//! A matrix in llama.cpp's blocks, packed for products with integer sums.
//!
//! A product quantises the rows of its left operand to int8 in blocks of 32, as llama.cpp does. The products of a block of
//! each operand are summed as integers, which is exact. The sums are multiplied by the two scales and added in f32, block by
//! block. No kernel fuses or reorders these operations, so results have the same bits on every processor.

mod activations;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use half::f16;
use rayon::prelude::*;

pub(crate) use activations::{ActivationBlock, quantize};

use crate::buffer::Buffer;
use crate::product::{NR, Shared};
use crate::{OpsError, WeightFormat};
use tile::{QuantizedTile, TileRows};

/// Numbers that share a scale.
pub(crate) const BLOCK: usize = 32;
/// Neighbouring numbers of a block that the kernels multiply at once.
const GROUP: usize = 4;
/// Groups of a block.
const GROUPS: usize = BLOCK / GROUP;
/// Bytes of the scales of a panel's block, f16.
const SCALES: usize = 2 * NR;

/// How the weights of a block lie in memory. Both have the 32 scales first, then groups of all columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// int8, group by group.
    Q8,
    /// The lower four bits of a byte are group g, the upper four bits group g + 4, both plus 8.
    Q4,
}

impl Layout {
    /// Bytes of the weights of one column's block.
    const fn quants(self) -> usize {
        match self {
            Self::Q8 => BLOCK,
            Self::Q4 => BLOCK / 2,
        }
    }

    /// Bytes of a block of a panel.
    const fn block(self) -> usize {
        SCALES + NR * self.quants()
    }
}

impl From<WeightFormat> for Layout {
    fn from(format: WeightFormat) -> Self {
        if format == WeightFormat::Q4_0 { Self::Q4 } else { Self::Q8 }
    }
}

/// W (N, K) in panels of [`NR`] rows. A panel has K / 32 blocks of all its rows.
#[derive(Debug)]
pub(crate) struct QuantizedPanels {
    memory: Buffer,
    layout: Layout,
    rows: usize,
    /// K / 32.
    blocks: usize,
}

impl QuantizedPanels {
    /// Quantises W (N, K), row-major, for K = `depth`, with all threads of the current pool. `format` has blocks.
    ///
    /// # Errors
    /// K is no multiple of 32.
    pub(crate) fn new(weights: &[f32], depth: usize, format: WeightFormat) -> Result<Self, OpsError> {
        // Of rows below a block no panel is left to refuse them.
        format.check_columns(depth)?;
        let layout = Layout::from(format);
        let (rows, blocks) = (weights.len() / depth, depth / BLOCK);
        let panel = blocks * layout.block();
        let mut memory = Buffer::default();
        memory.resize(Self::bytes_of(rows, depth, format) / size_of::<f32>());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
        weights.par_chunks(NR * depth).zip(bytes.par_chunks_mut(panel.max(1))).try_for_each(
            |(weights, panel)| {
                let quantized = format.quantize(weights, &[weights.len() / depth, depth])?;
                pack(&quantized.data()?, layout, blocks, panel);
                Ok::<_, OpsError>(())
            },
        )?;
        Ok(Self { memory, layout, rows, blocks })
    }

    /// Memory of the panels of a matrix (`rows`, `depth`) in bytes.
    pub(crate) fn bytes_of(rows: usize, depth: usize, format: WeightFormat) -> usize {
        let panel = depth / BLOCK * Layout::from(format).block();
        (rows.div_ceil(NR) * panel).next_multiple_of(size_of::<f32>())
    }

    /// Memory of the panels.
    pub(crate) fn memory(&self) -> &[f32] {
        &self.memory
    }

    /// Memory of the panels, for those that no product reads any more.
    pub(crate) fn memory_mut(&mut self) -> &mut [f32] {
        &mut self.memory
    }

    fn panel(&self, first: usize) -> &[u8] {
        let panel = self.blocks * self.layout.block();
        let bytes: &[u8] = bytemuck::cast_slice(&self.memory);
        &bytes[first / NR * panel..][..panel]
    }

    /// Writes row `index` of W, as it was rounded, to `row` (K).
    pub(crate) fn copy_row(&self, index: usize, row: &mut [f32]) {
        let (panel, column) = (self.panel(index), index % NR);
        for (to, block) in row.chunks_exact_mut(BLOCK).zip(panel.chunks_exact(self.layout.block())) {
            let scale = scale(block, column);
            for (k, to) in to.iter_mut().enumerate() {
                *to = f32::from(weight(block, self.layout, column, k)) * scale;
            }
        }
    }

    /// Some columns of `x · Wᵀ`, from a multiple of [`NR`] on: element (i, j) goes to `at + i * stride + j - columns.start`
    /// of y, in place of what is there or added to it.
    ///
    /// # Safety
    /// No other thread may use these elements of y meanwhile.
    pub(crate) unsafe fn columns(
        &self,
        x: &[ActivationBlock],
        columns: Range<usize>,
        y: &Shared<f32>,
        at: usize,
        stride: usize,
        add: bool,
    ) {
        assert!(columns.start.is_multiple_of(NR) && columns.end <= self.rows, "columns that W does not have");
        let kernel = kernel::kernel(self.layout);
        let (tile, start) = (self.blocks * TileRows::MOST, columns.start);
        for first in columns.clone().step_by(NR) {
            let (panel, count) = (self.panel(first), NR.min(columns.end - first));
            for (number, x) in x.chunks(tile).enumerate() {
                let mut sums = TileRows::default();
                let tile = QuantizedTile::new(x, self.blocks, panel, self.layout);
                // SAFETY: the kernel was chosen for this processor.
                unsafe { kernel(&tile, &mut sums) };
                for (row, sums) in sums.0[..tile.rows()].iter().enumerate() {
                    let at = at + (number * TileRows::MOST + row) * stride + first - start;
                    // SAFETY: passed on.
                    let y = unsafe { y.part(at..at + count) };
                    for (y, sum) in y.iter_mut().zip(sums) {
                        *y = if add { *y + sum } else { *sum };
                    }
                }
            }
        }
    }
}

/// Writes up to [`NR`] rows of llama.cpp's blocks into a panel. The rows that are not there are zeros.
fn pack(rows: &[u8], layout: Layout, blocks: usize, panel: &mut [u8]) {
    let one = 2 + layout.quants();
    for (column, row) in rows.chunks_exact(blocks * one).enumerate() {
        for (from, to) in row.chunks_exact(one).zip(panel.chunks_exact_mut(layout.block())) {
            let (scale, quants) = from.split_at(2);
            let (scales, vectors) = to.split_at_mut(SCALES);
            scales[2 * column..][..2].copy_from_slice(scale);
            for (g, group) in quants.chunks_exact(GROUP).enumerate() {
                vectors[g * NR * GROUP + column * GROUP..][..GROUP].copy_from_slice(group);
            }
        }
    }
}

/// The scale of a column in a block of a panel.
fn scale(block: &[u8], column: usize) -> f32 {
    f16::from_le_bytes([block[2 * column], block[2 * column + 1]]).to_f32()
}

/// Weight k of a column in a block of a panel, without its scale.
fn weight(block: &[u8], layout: Layout, column: usize, k: usize) -> i8 {
    let byte = |k: usize| block[SCALES + k / GROUP * NR * GROUP + column * GROUP + k % GROUP];
    match layout {
        Layout::Q8 => byte(k) as i8,
        Layout::Q4 if k < BLOCK / 2 => (byte(k) & 15) as i8 - 8,
        Layout::Q4 => (byte(k - BLOCK / 2) >> 4) as i8 - 8,
    }
}
