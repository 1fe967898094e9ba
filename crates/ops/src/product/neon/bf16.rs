//! The kernel for aarch64 with bf16 products (FEAT_BF16).
//!
//! The instruction `BFMMLA` multiplies 2 rows of 4 bf16 by 4 bf16 of 2 columns and adds the products to 2 × 2 sums. So a
//! step takes two groups, and operands that are packed as for the other kernels are put together in registers.
//!
//! The arithmetic of an element is that of the Arm Architecture Reference Manual for `FPCR.EBF = 0`, which a process starts
//! with and this program does not change: it adds the groups one after the other. Of each group, both products are added,
//! and their sum is added to the element. Every result is rounded to odd: where it is inexact, its last bit is 1. Numbers
//! that are too small for their exponent count as zeros, and those that are too large become infinite. So all processors
//! give the same bits, but not those of other kernels.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Tile, WIDTH};
use crate::product::NR;

/// Rows of a part.
const ROWS: usize = 6;
/// Columns in a register of B before it is put together with another.
const VECTOR: usize = 4;
/// Registers of B in a part, and so of sums for two rows.
const VECTORS: usize = WIDTH / VECTOR;

/// bf16 pairs with NEON.
///
/// # Safety
/// See [`super::super::kernel::Kernel`]; needs the bf16 products of NEON.
pub(in crate::product) unsafe fn neon_bf16(tile: &Tile) {
    // SAFETY: passed on. Two rows side by side have two rows if the tile has an even number.
    unsafe {
        if tile.a_step == 1 {
            in_parts::<GroupsTogether>(tile);
        } else if tile.a_row == 1 && tile.rows.is_multiple_of(2) {
            in_parts::<RowsTogether>(tile);
        } else {
            in_parts::<Apart>(tile);
        }
    }
}

/// How the groups of A lie in memory.
trait LeftGroups {
    /// Groups g and g + 1 of the first row, and then of the second. `rows` points to group g of both, and `step` is the
    /// distance of two groups.
    ///
    /// # Safety
    /// All four groups must be readable and lie as the type says.
    unsafe fn load(rows: [*const u32; 2], step: usize) -> uint32x4_t;
}

/// The groups of a row lie side by side, as in a matrix that is read in place.
struct GroupsTogether;

impl LeftGroups for GroupsTogether {
    #[inline(always)]
    unsafe fn load([first, second]: [*const u32; 2], _: usize) -> uint32x4_t {
        // SAFETY: by the trait's contract.
        unsafe { vcombine_u32(vld1_u32(first), vld1_u32(second)) }
    }
}

/// The rows of a group lie side by side, as in a packed operand, and both rows differ.
struct RowsTogether;

impl LeftGroups for RowsTogether {
    #[inline(always)]
    unsafe fn load([first, _]: [*const u32; 2], step: usize) -> uint32x4_t {
        // SAFETY: by the trait's contract.
        unsafe {
            let (group, next) = (vld1_u32(first), vld1_u32(first.add(step)));
            // The upper halves are not used.
            vzip1q_u32(vcombine_u32(group, group), vcombine_u32(next, next))
        }
    }
}

/// Nothing lies side by side: the last row of an odd number in a packed operand.
struct Apart;

impl LeftGroups for Apart {
    #[inline(always)]
    unsafe fn load([first, second]: [*const u32; 2], step: usize) -> uint32x4_t {
        // SAFETY: by the trait's contract.
        unsafe {
            let groups = [*first, *first.add(step), *second, *second.add(step)];
            vld1q_u32(groups.as_ptr())
        }
    }
}

/// # Safety
/// See [`super::super::kernel::Kernel`]; needs the bf16 products of NEON, and A must lie as `L` says.
unsafe fn in_parts<L: LeftGroups>(tile: &Tile) {
    for first in (0..tile.rows).step_by(ROWS) {
        for column in (0..NR).step_by(WIDTH) {
            // SAFETY: a part of the tile, so the kernel's contract covers it.
            unsafe {
                match tile.rows - first {
                    1 | 2 => part::<1, L>(tile, first, column),
                    3 | 4 => part::<2, L>(tile, first, column),
                    _ => part::<3, L>(tile, first, column),
                }
            }
        }
    }
}

/// Vector `V` of two groups of B: 4 columns, both groups of a column side by side, in two registers.
///
/// # Safety
/// [`WIDTH`] columns of both groups must be readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn columns<const V: usize>(group: *const u32, next: *const u32) -> [uint32x4_t; 2] {
    let (low, high);
    // SAFETY: the instructions read these columns and write registers only.
    unsafe {
        // Not intrinsics: the compiler would move their loads up, and sums into memory to have registers for them.
        asm!(
            "ldr {low:q}, [{group}, #{offset}]",
            "ldr {other:q}, [{next}, #{offset}]",
            "zip2 {high:v}.4s, {low:v}.4s, {other:v}.4s",
            "zip1 {low:v}.4s, {low:v}.4s, {other:v}.4s",
            group = in(reg) group,
            next = in(reg) next,
            offset = const V * size_of::<uint32x4_t>(),
            other = out(vreg) _,
            low = out(vreg) low,
            high = out(vreg) high,
            options(readonly, nostack, preserves_flags)
        );
    }
    [low, high]
}

/// Adds the products of 2 rows and 2 columns of 4 bf16 to 2 × 2 sums. The intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn multiply(mut sums: float32x4_t, rows: uint32x4_t, columns: uint32x4_t) -> float32x4_t {
    // SAFETY: the instruction reads and writes registers only. It is not marked as pure, so it stays behind its columns.
    unsafe {
        asm!(
            "bfmmla {sums:v}.4s, {rows:v}.8h, {columns:v}.8h",
            sums = inout(vreg) sums,
            rows = in(vreg) rows,
            columns = in(vreg) columns,
            options(nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Repeats the body for each number below a bound, with the number as a constant, so that all sums stay in registers.
/// Closures would not do: functions of the standard library, which lack the instruction, do not inline them.
macro_rules! unrolled {
    ($bound:ident, $i:ident => $body:block) => {
        unrolled!(@ $bound, $i, $body, 0 1 2 3)
    };
    (@ $bound:ident, $i:ident, $body:block, $($number:literal)*) => {
        $(if $number < $bound {
            const $i: usize = $number;
            $body
        })*
    };
}

/// Adds the products of two groups to sums: `$left` has the groups of A, and those of B begin at `$group` and `$next`.
macro_rules! step {
    ($sums:ident, $twos:ident, $left:ident, $group:expr, $next:expr) => {
        unrolled!(VECTORS, V => {
            let [low, high] = columns::<V>($group, $next);
            unrolled!($twos, I => {
                $sums[I][V][0] = multiply($sums[I][V][0], $left[I], low);
                $sums[I][V][1] = multiply($sums[I][V][1], $left[I], high);
            });
        })
    };
}

/// A group of B that is not there.
static ZEROS: [u32; WIDTH] = [0; WIDTH];

/// Twice `TWOS` rows from `first` and [`WIDTH`] columns from `column` of a tile: 24 registers of sums, 3 of A and up to 4 of
/// B. Two rows and two columns share a register of sums. Past the last row, it is computed again.
///
/// # Safety
/// See [`super::super::kernel::Kernel`]; needs the bf16 products of NEON, and A must lie as `L` says.
#[target_feature(enable = "neon,bf16")]
unsafe fn part<const TWOS: usize, L: LeftGroups>(tile: &Tile, first: usize, column: usize) {
    let (last, step) = (tile.rows - 1, tile.a_step);
    let mut sums = [[[vdupq_n_f32(0.0); 2]; VECTORS]; TWOS];
    let mut left = [vdupq_n_u32(0); TWOS];
    let mut a = [[tile.a; 2]; TWOS];
    for (i, rows) in a.iter_mut().enumerate() {
        for (r, row) in rows.iter_mut().enumerate() {
            *row = tile.a.wrapping_add((first + 2 * i + r).min(last) * tile.a_row);
        }
    }
    // SAFETY: the groups of A and B are readable and the rows of C are ours by the kernel's contract. Pointers wrap because
    // some past the last group are computed but never read.
    unsafe {
        let mut b = tile.b.add(column);
        for _ in 0..tile.groups / 2 {
            unrolled!(TWOS, I => {
                left[I] = L::load(a[I], step);
                a[I] = [a[I][0].wrapping_add(2 * step), a[I][1].wrapping_add(2 * step)];
            });
            let next = b.add(tile.b_step);
            step!(sums, TWOS, left, b, next);
            b = next.wrapping_add(tile.b_step);
        }
        if !tile.groups.is_multiple_of(2) {
            // Zeros in both operands: in one of them they would not do, because the other's place may hold an infinity.
            unrolled!(TWOS, I => { left[I] = vld1q_u32([*a[I][0], 0, *a[I][1], 0].as_ptr()) });
            step!(sums, TWOS, left, b, ZEROS.as_ptr());
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (v, [low, high]) in sums.into_iter().enumerate() {
                let of_rows = [
                    vcombine_f32(vget_low_f32(low), vget_low_f32(high)),
                    vcombine_f32(vget_high_f32(low), vget_high_f32(high)),
                ];
                for (r, sum) in of_rows.into_iter().enumerate().take(tile.rows - first - 2 * i) {
                    let c = tile.c.add((first + 2 * i + r) * tile.c_row + column + VECTOR * v);
                    vst1q_f32(c, if tile.accumulate { vaddq_f32(sum, vld1q_f32(c)) } else { sum });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::element::Element;
    use crate::test_support::numbers;

    /// Zero in place of a subnormal number.
    fn flush(value: f32) -> f32 {
        if value.abs() < f32::MIN_POSITIVE { 0f32.copysign(value) } else { value }
    }

    /// `a + b`, rounded to odd.
    fn add(a: f32, b: f32) -> f32 {
        /// The bits that an f64 has beyond an f32.
        const MORE: u64 = (1 << 29) - 1;
        let (a, b) = (f64::from(flush(a)), f64::from(flush(b)));
        let sum = a + b;
        if !sum.is_finite() {
            return sum as f32;
        }
        // What the sum in f64 lost (Knuth, The Art of Computer Programming, volume 2, section 4.2.2).
        let of_b = sum - a;
        let lost = (a - (sum - of_b)) + (b - of_b);
        let beyond = lost != 0.0 && (lost < 0.0) != (sum < 0.0);
        let toward_zero = f64::from_bits((sum.to_bits() - u64::from(beyond)) & !MORE);
        if toward_zero.abs() < f64::from(f32::MIN_POSITIVE) {
            return 0f32.copysign(toward_zero as f32);
        }
        let exact = lost == 0.0 && toward_zero == sum;
        let cut = toward_zero as f32;
        if exact || cut.is_infinite() { cut } else { f32::from_bits(cut.to_bits() | 1) }
    }

    /// What the manual defines for a group: the products of bf16 are exact unless they are too small or too large.
    fn add_group(sum: f32, a: u32, b: u32) -> f32 {
        let halves = |pair: u32| [pair << 16, pair & 0xffff_0000].map(|half| flush(f32::from_bits(half)));
        let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
        add(sum, add(flush(a0 * b0), flush(a1 * b1)))
    }

    /// The kernel's results for `groups` groups of rows in place or packed, and those of the manual.
    fn both(rows: usize, groups: usize, packed: bool, a: &[u32], b: &[u32]) -> [Vec<u32>; 2] {
        let (a_row, a_step) = if packed { (1, rows) } else { (groups, 1) };
        let mut found = vec![0f32; rows * NR];
        let tile = Tile {
            groups,
            rows,
            columns: NR,
            a: a[..rows * groups].as_ptr(),
            a_row,
            a_step,
            b: b[..groups * NR].as_ptr(),
            b_step: NR,
            c: found.as_mut_ptr(),
            c_row: NR,
            accumulate: false,
        };
        // SAFETY: the operands and the result have all rows, groups and columns, and callers ask for the instructions.
        unsafe { neon_bf16(&tile) };
        let of = |i: usize, j: usize| {
            (0..groups).fold(0.0, |sum, g| add_group(sum, a[i * a_row + g * a_step], b[g * NR + j]))
        };
        let expected = (0..rows * NR).map(|at| of(at / NR, at % NR)).collect::<Vec<f32>>();
        // Of numbers that are none, there is only one.
        [found, expected]
            .map(|c| c.into_iter().map(|c| if c.is_nan() { u32::MAX } else { c.to_bits() }).collect())
    }

    fn pairs(seed: u64, count: usize, scale: f32) -> Vec<u32> {
        let values = numbers(seed, 2 * count);
        let pair = |[low, high]: &[f32; 2]| bf16::pair(bf16::from_f32(low * scale), bf16::from_f32(*high));
        values.as_chunks().0.iter().map(pair).collect()
    }

    #[test]
    fn sums_have_the_bits_of_the_manual() {
        if !std::arch::is_aarch64_feature_detected!("bf16") {
            return;
        }
        for rows in 1..=12 {
            for (groups, packed) in [(1, false), (2, true), (37, false), (37, true), (64, false), (64, true)]
            {
                let (a, b) = (pairs(1, rows * groups, 64.0), pairs(2, groups * NR, 1.0));
                let [found, expected] = both(rows, groups, packed, &a, &b);
                assert_eq!(found, expected, "{rows} rows, {groups} groups, packed: {packed}");
            }
        }
    }

    #[test]
    fn numbers_at_the_ends_of_the_range_have_the_bits_of_the_manual() {
        if !std::arch::is_aarch64_feature_detected!("bf16") {
            return;
        }
        let of = |low: f32, high: f32| bf16::pair(bf16::from_f32(low), bf16::from_f32(high));
        let (small, large) = (2f32.powi(-70), 2f32.powi(70));
        let values = [
            of(small, small),
            of(large, -large),
            of(f32::INFINITY, 0.0),
            of(1.0, 2f32.powi(-30)),
            of(f32::NAN, 1.0),
            of(2f32.powi(-127), 1.0),
            of(-1.0, 3.0),
        ];
        // Each value meets each in every group, and an odd number of groups ends with an infinity.
        for groups in [1, 2, 3, 7] {
            let a: Vec<u32> = (0..7 * groups).map(|i| values[(i / groups + i % groups) % 7]).collect();
            let b: Vec<u32> = (0..groups * NR).map(|i| values[i % NR % 7]).collect();
            let [found, expected] = both(7, groups, false, &a, &b);
            assert_eq!(found, expected, "{groups} groups");
        }
    }
}
