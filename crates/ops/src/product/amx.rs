//! Products of bf16 pairs in the tiles of AMX.
//!
//! A tile instruction multiplies 16 rows of 16 pairs by 16 pairs of 16 columns. A block of C takes 2 × 2 tiles. B is packed as
//! for the other kernels, and a row of A is read in place. A [`TileUnit`] computes a block from start to end: the tiles between
//! two pieces of inline assembly would be undefined. There are two units: the instructions, and a model of them in plain Rust.

#[cfg(target_arch = "x86_64")]
mod instructions;
mod model;
#[cfg(target_arch = "x86_64")]
mod permission;
#[cfg(target_arch = "x86_64")]
mod self_check;

#[cfg(target_arch = "x86_64")]
pub(super) use instructions::{Instructions, SESSION};
pub(super) use model::Model;
#[cfg(target_arch = "x86_64")]
pub(super) use permission::ready;

use super::NR;
use super::tile::Tile;

/// Rows and columns of a block of C.
pub(super) const BLOCK: usize = 32;
/// Groups of a step: the pairs in a row of a tile.
const STEP: usize = 16;
/// Groups of an edge that are copied at the same time.
const CHUNK: usize = 4 * STEP;

const _: () = assert!(BLOCK == NR, "a panel of B has the columns of a block");

/// A whole block of C and its operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Times [`STEP`] groups to sum, at least 1.
    steps: usize,
    /// Group (i, g) of A at `i * a_row + g`.
    a: *const u32,
    a_row: usize,
    /// Group (g, j) of B at `g * b_step + j`.
    b: *const u32,
    b_step: usize,
    /// Element (i, j) of C at `i * c_row + j`.
    c: *mut f32,
    c_row: usize,
    accumulate: bool,
}

/// Computes blocks with eight tiles.
pub(super) trait TileUnit {
    /// Computes a block.
    ///
    /// # Safety
    /// The block must have a step. [`BLOCK`] rows of A, all groups of B and [`BLOCK`] rows and columns of C must be there, and C
    /// must be this thread's. The unit's instructions must be there, with tiles of 16 rows of 64 bytes.
    unsafe fn multiply(block: &Block);
}

/// Computes a tile of up to [`BLOCK`] rows.
///
/// # Safety
/// See [`super::kernel::Kernel`].
pub(super) unsafe fn kernel<U: TileUnit>(tile: &Tile) {
    // A unit computes at least one step. Without groups, the edge writes zeros, or C as it is.
    let whole = tile.rows == BLOCK && tile.a_step == 1 && tile.groups > 0 && tile.groups.is_multiple_of(STEP);
    if !whole {
        // SAFETY: passed on.
        return unsafe { edge::<U>(tile) };
    }
    let block = Block {
        steps: tile.groups / STEP,
        a: tile.a,
        a_row: tile.a_row,
        b: tile.b,
        b_step: tile.b_step,
        c: tile.c,
        c_row: tile.c_row,
        accumulate: tile.accumulate,
    };
    // SAFETY: the tile has all rows and groups of the block by the kernel's contract, and at least one step.
    unsafe { U::multiply(&block) }
}

/// Memory that begins on a cache line.
#[repr(align(64))]
struct Lines<T, const N: usize>([T; N]);

/// Computes a tile whose operands are no whole blocks: from copies with zeros in place of what is not there. Zeros in one
/// operand only would not do, because the other's place may hold an infinity.
///
/// # Safety
/// See [`super::kernel::Kernel`].
unsafe fn edge<U: TileUnit>(tile: &Tile) {
    let mut sums = Lines([0f32; BLOCK * BLOCK]);
    if tile.accumulate {
        for (i, sums) in sums.0.chunks_exact_mut(BLOCK).take(tile.rows).enumerate() {
            // SAFETY: row i of C is ours by the kernel's contract.
            sums.copy_from_slice(unsafe { std::slice::from_raw_parts(tile.c.add(i * tile.c_row), BLOCK) });
        }
    }
    let (mut a, mut b) = (Lines([0u32; BLOCK * CHUNK]), Lines([0u32; CHUNK * NR]));
    for first in (0..tile.groups).step_by(CHUNK) {
        let groups = CHUNK.min(tile.groups - first);
        let steps = groups.div_ceil(STEP);
        for (i, row) in a.0.chunks_exact_mut(CHUNK).take(tile.rows).enumerate() {
            for (g, to) in row[..groups].iter_mut().enumerate() {
                // SAFETY: the groups of A are readable by the kernel's contract.
                *to = unsafe { *tile.a.add(i * tile.a_row + (first + g) * tile.a_step) };
            }
            row[groups..steps * STEP].fill(0);
        }
        for (g, row) in b.0.chunks_exact_mut(NR).take(groups).enumerate() {
            // SAFETY: the groups of B are readable by the kernel's contract.
            row.copy_from_slice(unsafe {
                std::slice::from_raw_parts(tile.b.add((first + g) * tile.b_step), NR)
            });
        }
        b.0[groups * NR..steps * STEP * NR].fill(0);
        let block = Block {
            steps,
            a: a.0.as_ptr(),
            a_row: CHUNK,
            b: b.0.as_ptr(),
            b_step: NR,
            c: sums.0.as_mut_ptr(),
            c_row: BLOCK,
            accumulate: tile.accumulate || first > 0,
        };
        // SAFETY: the copies have all rows and groups of a block, and at least one step.
        unsafe { U::multiply(&block) };
    }
    for (i, sums) in sums.0.chunks_exact(BLOCK).take(tile.rows).enumerate() {
        // SAFETY: row i of C is ours by the kernel's contract.
        unsafe { std::slice::from_raw_parts_mut(tile.c.add(i * tile.c_row), BLOCK) }.copy_from_slice(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model, for blocks that the instructions can compute.
    struct WithSteps;

    impl TileUnit for WithSteps {
        unsafe fn multiply(block: &Block) {
            assert!(block.steps > 0, "the instructions would count down from 0");
            // SAFETY: passed on.
            unsafe { Model::multiply(block) }
        }
    }

    #[test]
    fn a_tile_without_groups_is_zero_or_stays_as_it_is() {
        for (accumulate, expected) in [(false, 0.0), (true, 1.5)] {
            let mut c = [1.5f32; BLOCK * BLOCK];
            let tile = Tile {
                groups: 0,
                rows: BLOCK,
                columns: NR,
                a: std::ptr::dangling(),
                a_row: 0,
                a_step: 1,
                b: std::ptr::dangling(),
                b_step: NR,
                c: c.as_mut_ptr(),
                c_row: BLOCK,
                accumulate,
            };
            // SAFETY: the tile reads no groups, and C has all of its rows and columns.
            unsafe { kernel::<WithSteps>(&tile) };
            assert_eq!(c, [expected; BLOCK * BLOCK]);
        }
    }
}
