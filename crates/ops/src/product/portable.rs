//! The kernels in plain Rust, for any processor. They are the reference of the others.

use super::tile::{BLOCK, Tile};
use super::{MR, NR};

/// Transposes a block in place.
pub(super) fn transpose_portable(block: &mut [[u32; BLOCK]; BLOCK]) {
    for i in 1..BLOCK {
        let (above, row) = block.split_at_mut(i);
        for (j, above) in above.iter_mut().enumerate() {
            std::mem::swap(&mut row[0][j], &mut above[i]);
        }
    }
}

/// Columns that the portable kernels sum at a time: with [`ROWS`] rows of them, the sums fit the 16 or 32 vector
/// registers of any processor.
const COLUMNS: usize = 8;
/// Rows that the portable kernels sum at a time.
const ROWS: usize = 4;

/// f32 in plain Rust, which the compiler turns into vector code for the target's baseline (SSE2, NEON).
///
/// # Safety
/// See [`super::kernel::Kernel`].
pub(super) unsafe fn portable(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { sum(tile, columns_of_groups, |sum, a, b| *sum += f32::from_bits(a) * f32::from_bits(b)) }
}

/// f32 and bf16 in plain Rust.
///
/// # Safety
/// See [`super::kernel::Kernel`].
pub(super) unsafe fn halves_portable(tile: &Tile) {
    let widened = |tile: &Tile, g: usize, j: usize| {
        // SAFETY: columns j to j + COLUMNS of group g of B are readable by the kernel's contract.
        let halves = unsafe { &*tile.b.add(g * tile.b_step).cast::<u16>().add(j).cast::<[u16; COLUMNS]>() };
        halves.map(|half| u32::from(half) << 16)
    };
    // SAFETY: passed on.
    unsafe { sum(tile, widened, |sum, a, b| *sum += f32::from_bits(a) * f32::from_bits(b)) }
}

/// bf16 pairs in plain Rust: the reference of the vector kernel.
///
/// # Safety
/// See [`super::kernel::Kernel`].
pub(super) unsafe fn pairs_portable(tile: &Tile) {
    let halves = |pair: u32| (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000));
    // SAFETY: passed on.
    unsafe {
        sum(tile, columns_of_groups, |sum, a, b| {
            let ((a0, a1), (b0, b1)) = (halves(a), halves(b));
            *sum += a0 * b0;
            *sum += a1 * b1;
        });
    }
}

/// Groups (g, j) to (g, j + [`COLUMNS`]) of B.
#[inline(always)]
fn columns_of_groups(tile: &Tile, g: usize, j: usize) -> [u32; COLUMNS] {
    // SAFETY: columns j to j + COLUMNS of group g of B are readable by the kernel's contract.
    unsafe { *tile.b.add(g * tile.b_step + j).cast::<[u32; COLUMNS]>() }
}

/// Computes a tile; `load` reads [`COLUMNS`] columns of a group of B from a column on, and `add` adds the product of a group
/// of A and a group of B to a sum.
///
/// # Safety
/// See [`super::kernel::Kernel`].
#[inline(always)]
unsafe fn sum(
    tile: &Tile,
    load: impl Fn(&Tile, usize, usize) -> [u32; COLUMNS],
    add: impl Fn(&mut f32, u32, u32),
) {
    const { assert!(MR.is_multiple_of(ROWS) && NR.is_multiple_of(COLUMNS)) }
    for i in (0..tile.rows).step_by(ROWS) {
        let rows = ROWS.min(tile.rows - i);
        for j in (0..NR).step_by(COLUMNS) {
            let mut sums = [[0f32; COLUMNS]; ROWS];
            for g in 0..tile.groups {
                let b = load(tile, g, j);
                for (r, sums) in sums.iter_mut().enumerate() {
                    // Rows past the last repeat it, so that the loop has a fixed length and the sums stay in registers.
                    let row = i + r.min(rows - 1);
                    // SAFETY: group g of a row of A is readable by the kernel's contract.
                    let a = unsafe { *tile.a.add(row * tile.a_row + g * tile.a_step) };
                    for (sum, b) in sums.iter_mut().zip(b) {
                        add(sum, a, b);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate().take(rows) {
                // SAFETY: columns j to j + COLUMNS of row i + r of C are ours by the kernel's contract.
                let c =
                    unsafe { std::slice::from_raw_parts_mut(tile.c.add((i + r) * tile.c_row + j), COLUMNS) };
                for (c, sum) in c.iter_mut().zip(sums) {
                    *c = if tile.accumulate { *c + sum } else { *sum };
                }
            }
        }
    }
}
