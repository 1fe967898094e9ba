//! The kernels for aarch64: a 12 × 32 tile in parts that fit the 32 registers of four f32.

mod bf16;

use std::arch::aarch64::*;

use super::{NR, Tile};

pub(super) use bf16::neon_bf16;

/// f32 with NEON.
///
/// # Safety
/// See [`super::kernel::Kernel`].
pub(super) unsafe fn neon(tile: &Tile) {
    // SAFETY: passed on. Every processor of this target has NEON.
    unsafe { in_parts::<false>(tile) }
}

/// f32 and bf16 with NEON.
///
/// # Safety
/// See [`super::kernel::Kernel`].
pub(super) unsafe fn neon_halves(tile: &Tile) {
    // SAFETY: as above.
    unsafe { in_parts::<true>(tile) }
}

/// Columns of a part.
const WIDTH: usize = 16;

/// # Safety
/// See [`super::kernel::Kernel`].
unsafe fn in_parts<const HALVES: bool>(tile: &Tile) {
    for first in (0..tile.rows).step_by(6) {
        for column in (0..NR).step_by(WIDTH) {
            // SAFETY: a part of the tile, so the kernel's contract covers it.
            unsafe {
                match tile.rows - first {
                    1 => part::<1, HALVES>(tile, first, column),
                    2 => part::<2, HALVES>(tile, first, column),
                    3 => part::<3, HALVES>(tile, first, column),
                    4 => part::<4, HALVES>(tile, first, column),
                    5 => part::<5, HALVES>(tile, first, column),
                    _ => part::<6, HALVES>(tile, first, column),
                }
            }
        }
    }
}

/// 4 columns of a group, from column `column` on. With `HALVES` they are bf16 and are widened.
///
/// # Safety
/// `b` must point to the group of all columns of a panel.
#[inline(always)]
unsafe fn columns<const HALVES: bool>(b: *const u32, column: usize) -> float32x4_t {
    // SAFETY: by this function's contract.
    unsafe {
        if HALVES {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(b.cast::<u16>().add(column))))
        } else {
            vld1q_f32(b.add(column).cast())
        }
    }
}

/// Repeats the body for each row of a part, with the row as a constant, so that all sums stay in registers.
macro_rules! unrolled {
    ($rows:ident, $i:ident => $body:block) => {
        unrolled!(@ $rows, $i, $body, 0 1 2 3 4 5)
    };
    (@ $rows:ident, $i:ident, $body:block, $($row:literal)*) => {
        $(if $row < $rows {
            #[allow(clippy::identity_op, clippy::erasing_op)]
            let $i = $row;
            $body
        })*
    };
}

/// Rows from `first` and [`WIDTH`] columns from `column` of a tile: 24 registers of sums, 4 of B and one of A.
///
/// # Safety
/// See [`super::kernel::Kernel`].
unsafe fn part<const ROWS: usize, const HALVES: bool>(tile: &Tile, first: usize, column: usize) {
    // SAFETY: the groups of A and B are readable and the rows of C are ours by the kernel's contract.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 4]; ROWS];
        let (mut a, mut b) = (tile.a.add(first * tile.a_row), tile.b);
        for _ in 0..tile.groups {
            let b0 = columns::<HALVES>(b, column);
            let b1 = columns::<HALVES>(b, column + 4);
            let b2 = columns::<HALVES>(b, column + 8);
            let b3 = columns::<HALVES>(b, column + 12);
            unrolled!(ROWS, i => {
                let value = vdupq_n_f32(f32::from_bits(*a.add(i * tile.a_row)));
                sums[i][0] = vfmaq_f32(sums[i][0], value, b0);
                sums[i][1] = vfmaq_f32(sums[i][1], value, b1);
                sums[i][2] = vfmaq_f32(sums[i][2], value, b2);
                sums[i][3] = vfmaq_f32(sums[i][3], value, b3);
            });
            a = a.wrapping_add(tile.a_step);
            b = b.wrapping_add(tile.b_step);
        }
        for (i, sums) in sums.into_iter().enumerate() {
            let c = tile.c.add((first + i) * tile.c_row + column);
            for (j, sum) in sums.into_iter().enumerate() {
                let c = c.add(4 * j);
                vst1q_f32(c, if tile.accumulate { vaddq_f32(sum, vld1q_f32(c)) } else { sum });
            }
        }
    }
}
