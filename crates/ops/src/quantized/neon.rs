//! The kernels for aarch64 with dot products.

#![expect(clippy::needless_range_loop, reason = "a row and a vector of several arrays have one index")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::tile::{QuantizedTile, TileRows};
use super::{ActivationBlock, GROUP, GROUPS};
use crate::product::NR;

/// Bytes of a register: a group of each of 4 columns.
const VECTOR: usize = 16;
/// Registers that hold a group of all columns of a panel.
const VECTORS: usize = NR * GROUP / VECTOR;

/// Calls the kernel for the tile's number of rows. Each number has a kernel of its own, so that sums stay in registers.
macro_rules! by_rows {
    ($kernel:ident, $tile:expr, $rows:expr) => {
        match $tile.rows() {
            1 => $kernel::<1, 8>($tile, $rows, 0),
            2 => {
                for first in (0..VECTORS).step_by(4) {
                    $kernel::<2, 4>($tile, $rows, first);
                }
            }
            3 => {
                for first in (0..VECTORS).step_by(2) {
                    $kernel::<3, 2>($tile, $rows, first);
                }
            }
            _ => {
                for first in (0..VECTORS).step_by(2) {
                    $kernel::<4, 2>($tile, $rows, first);
                }
            }
        }
    };
}

/// 8-bit weights.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn q8(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    by_rows!(q8_columns, tile, rows);
}

/// 4-bit weights.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn q4(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    by_rows!(q4_columns, tile, rows);
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; VECTOR]) -> uint8x16_t {
    // SAFETY: the array has 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Adds the products of each group of two operands to sums. The intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut sums: int32x4_t, weights: int8x16_t, group: i32) -> int32x4_t {
    let x = vreinterpretq_s8_s32(vdupq_n_s32(group));
    // SAFETY: the instruction reads and writes registers only.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {weights:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            weights = in(vreg) weights,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// The scales of 4 columns. The intrinsic for f16 is not stable.
#[inline]
#[target_feature(enable = "neon")]
fn scales(bytes: &[u8; 8]) -> float32x4_t {
    // SAFETY: the array has 8 bytes.
    let halves = unsafe { vld1_u8(bytes.as_ptr()) };
    let scales: float32x4_t;
    // SAFETY: the instruction reads and writes registers only.
    unsafe {
        asm!(
            "fcvtl {scales:v}.4s, {halves:v}.4h",
            scales = out(vreg) scales,
            halves = in(vreg) halves,
            options(pure, nomem, nostack)
        );
    }
    scales
}

/// Adds `dots * scales * x.scale` to sums, rounded as in the portable kernel.
#[inline]
#[target_feature(enable = "neon")]
fn scaled(sums: float32x4_t, dots: int32x4_t, scales: float32x4_t, x: &ActivationBlock) -> float32x4_t {
    let factor = vmulq_f32(scales, vdupq_n_f32(x.scale));
    vaddq_f32(sums, vmulq_f32(vcvtq_f32_s32(dots), factor))
}

#[inline]
#[target_feature(enable = "neon")]
fn store<const ROWS: usize, const COUNT: usize>(
    sums: [[float32x4_t; COUNT]; ROWS],
    rows: &mut TileRows,
    first: usize,
) {
    for (row, sums) in rows.0.iter_mut().zip(sums) {
        for (to, sums) in row.as_chunks_mut::<4>().0[first..].iter_mut().zip(sums) {
            // SAFETY: the array has 4 numbers.
            unsafe { vst1q_f32(to.as_mut_ptr(), sums) };
        }
    }
}

/// `COUNT` vectors of columns from vector `first` on.
#[target_feature(enable = "neon,dotprod")]
fn q8_columns<const ROWS: usize, const COUNT: usize>(
    tile: &QuantizedTile<'_>,
    rows: &mut TileRows,
    first: usize,
) {
    let mut sums = [[vdupq_n_f32(0.0); COUNT]; ROWS];
    for b in 0..tile.blocks {
        let (all_scales, vectors) = tile.weights(b);
        let (all_scales, vectors) = (all_scales.as_chunks::<8>().0, vectors.as_chunks::<VECTOR>().0);
        let mut dots = [[vdupq_n_s32(0); COUNT]; ROWS];
        for g in 0..GROUPS {
            for v in 0..COUNT {
                let weights = vreinterpretq_s8_u8(load(&vectors[VECTORS * g + first + v]));
                for i in 0..ROWS {
                    dots[i][v] = dot(dots[i][v], weights, tile.x(i, b).group(g));
                }
            }
        }
        for v in 0..COUNT {
            let scales = scales(&all_scales[first + v]);
            for i in 0..ROWS {
                sums[i][v] = scaled(sums[i][v], dots[i][v], scales, tile.x(i, b));
            }
        }
    }
    store(sums, rows, first);
}

/// `COUNT` vectors of columns from vector `first` on.
#[target_feature(enable = "neon,dotprod")]
fn q4_columns<const ROWS: usize, const COUNT: usize>(
    tile: &QuantizedTile<'_>,
    rows: &mut TileRows,
    first: usize,
) {
    let low = vdupq_n_u8(15);
    let mut sums = [[vdupq_n_f32(0.0); COUNT]; ROWS];
    for b in 0..tile.blocks {
        let (all_scales, vectors) = tile.weights(b);
        let (all_scales, vectors) = (all_scales.as_chunks::<8>().0, vectors.as_chunks::<VECTOR>().0);
        // Four bits hold the weight plus 8.
        let mut dots = [[vdupq_n_s32(0); COUNT]; ROWS];
        for (i, dots) in dots.iter_mut().enumerate() {
            *dots = [vdupq_n_s32(-8 * tile.x(i, b).sum); COUNT];
        }
        for g in 0..GROUPS / 2 {
            for v in 0..COUNT {
                let both = load(&vectors[VECTORS * g + first + v]);
                let lower = vreinterpretq_s8_u8(vandq_u8(both, low));
                let upper = vreinterpretq_s8_u8(vshrq_n_u8::<4>(both));
                for i in 0..ROWS {
                    let x = tile.x(i, b);
                    let lower = dot(dots[i][v], lower, x.group(g));
                    dots[i][v] = dot(lower, upper, x.group(g + GROUPS / 2));
                }
            }
        }
        for v in 0..COUNT {
            let scales = scales(&all_scales[first + v]);
            for i in 0..ROWS {
                sums[i][v] = scaled(sums[i][v], dots[i][v], scales, tile.x(i, b));
            }
        }
    }
    store(sums, rows, first);
}
