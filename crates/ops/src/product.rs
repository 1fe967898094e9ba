//! Matrix products: the engine under every operation.
//!
//! A product `C = A · B` sums over *groups*: one f32 of each operand, or a pair of neighbouring bf16 where the processor
//! multiplies such pairs and adds them up in f32 (AVX-512 BF16). A group is 4 bytes either way, so one set of loops
//! serves both. A is read where it lies when the kernels can, B too when it is small; else they are packed first, B in
//! panels of [`NR`] columns. C is computed in tiles of [`MR`] × [`NR`] that stay in registers (arXiv:1609.00076 describes the
//! scheme, Goto's), with a kernel chosen once for the processor at hand.
//!
//! Every element of C is summed in the order of the groups by one thread, so results have the same bits for any number
//! of threads. The error of an element is at most `k · 2^-24 · Σ |a b|` in f32; bf16 operands are rounded before
//! (2^-9 of each), not the sums.

mod kernel;
mod operands;
mod outer;
mod pack;
mod rate;
mod right;
mod tasks;

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use crate::buffer::Buffer;
use crate::element::{Element, Precision};
pub(crate) use kernel::Tile;
pub use kernel::instructions;
pub(crate) use operands::{Lhs, Rhs, with_rows};
pub(crate) use outer::{OuterProduct, outer_products};
pub(crate) use pack::{Order, pack, pack_all, packed_len};
pub use rate::product_rate;
pub(crate) use right::RightOperand;
pub(crate) use tasks::{by_columns, parts, parts_mut, row_tasks};

/// Rows of a tile.
pub(crate) const MR: usize = 12;
/// Columns of a tile.
pub(crate) const NR: usize = 32;
/// Rows of a task: whole tiles, and few enough that tasks spread evenly over threads.
pub(crate) const PANEL: usize = 4 * MR;
/// Groups summed before the next column of tiles: a panel of B of this depth stays in the first-level cache.
const DEPTH: usize = 256;

/// What one group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// One f32.
    Single,
    /// Two bf16, the lower index in the lower half.
    Pair,
}

impl Group {
    /// The groups that products on E use here: pairs where the processor has them, else everything is widened to f32.
    pub(crate) fn of<E: Element>() -> Self {
        if E::PRECISION == Precision::Bf16 && kernel::has_pairs() { Self::Pair } else { Self::Single }
    }

    /// Elements of a group.
    fn elements(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Pair => 2,
        }
    }

    /// Groups of this many elements.
    pub(crate) fn count(self, elements: usize) -> usize {
        elements.div_ceil(self.elements())
    }
}

/// `C = A · B`, or `C += A · B`, for A's rows and a range of B's columns that starts at a multiple of [`NR`].
/// Element `(i, j)` of C is at `i * c_row + j - columns.start`.
///
/// # Panics
/// When operands, sizes and `c` do not fit together.
pub(crate) fn multiply(
    lhs: Lhs<'_>,
    rhs: Rhs<'_>,
    columns: Range<usize>,
    c: &mut [f32],
    c_row: usize,
    accumulate: bool,
) {
    let width = columns.len();
    assert!(
        lhs.rows == 0 || width == 0 || c.len() >= (lhs.rows - 1) * c_row + width,
        "the result is too short"
    );
    // SAFETY: the assertion says that every element of C lies within the slice, which is borrowed exclusively.
    unsafe { multiply_into(lhs, rhs, columns, c.as_mut_ptr(), c_row, accumulate) }
}

/// [`multiply`] into memory that other threads may write elsewhere.
///
/// # Safety
/// The elements `(i, j)` for A's rows and these columns must be valid for writes at `c + i * c_row + j - columns.start`,
/// and nobody else may use them meanwhile.
unsafe fn multiply_into(
    lhs: Lhs<'_>,
    rhs: Rhs<'_>,
    columns: Range<usize>,
    c: *mut f32,
    c_row: usize,
    accumulate: bool,
) {
    assert!(columns.start.is_multiple_of(NR) && columns.end <= rhs.columns, "columns that B does not have");
    assert!(lhs.groups <= rhs.groups && lhs.group == rhs.group, "operands that do not fit");
    if lhs.rows == 0 || columns.is_empty() {
        return;
    }
    if lhs.groups == 0 {
        for i in 0..if accumulate { 0 } else { lhs.rows } {
            // SAFETY: row i of C, by this function's contract.
            unsafe { std::slice::from_raw_parts_mut(c.add(i * c_row), columns.len()) }.fill(0.0);
        }
        return;
    }
    assert!(
        (lhs.rows - 1) * lhs.row + (lhs.groups - 1) * lhs.step < lhs.data.len(),
        "the left operand is too short"
    );
    let kernel = kernel::kernel(lhs.group);
    for first in (0..lhs.groups).step_by(DEPTH) {
        let groups = DEPTH.min(lhs.groups - first);
        let accumulate = accumulate || first > 0;
        let rhs = rhs.part(first, groups);
        for j in columns.clone().step_by(NR) {
            let valid = NR.min(columns.end - j);
            let b = rhs.panel(j);
            for i in (0..lhs.rows).step_by(MR) {
                let rows = MR.min(lhs.rows - i);
                let a = &lhs.data[i * lhs.row + first * lhs.step..];
                let mut tile = Tile {
                    groups,
                    rows,
                    columns: valid,
                    a: a.as_ptr(),
                    a_row: lhs.row,
                    a_step: lhs.step,
                    b: b.as_ptr(),
                    b_step: rhs.step,
                    c,
                    c_row,
                    accumulate,
                };
                if valid == NR {
                    // SAFETY: the kernel reads `rows` rows of `groups` groups of A, inside its slice by the assertion
                    // above, `groups` times NR groups of B, inside `b`, and writes `rows` × NR elements of C, which are
                    // valid by this function's contract.
                    unsafe {
                        tile.c = c.add(i * c_row + (j - columns.start));
                        kernel(&tile);
                    }
                } else {
                    let mut edge = [0f32; MR * NR];
                    (tile.c, tile.c_row, tile.accumulate) = (edge.as_mut_ptr(), NR, false);
                    // SAFETY: as above, and C is the array, which has room for a whole tile.
                    unsafe { kernel(&tile) };
                    for (r, edge) in edge.chunks_exact(NR).take(rows).enumerate() {
                        // SAFETY: the valid part of row i + r of C, by this function's contract.
                        let c = unsafe {
                            std::slice::from_raw_parts_mut(
                                c.add((i + r) * c_row + (j - columns.start)),
                                valid,
                            )
                        };
                        for (c, value) in c.iter_mut().zip(edge) {
                            *c = if accumulate { *c + value } else { *value };
                        }
                    }
                }
            }
        }
    }
}

/// [`multiply`] into the slice that tasks share: element `(i, j)` of C is at `at + i * c_row + j - columns.start`.
///
/// # Safety
/// Nobody else may use these elements meanwhile.
///
/// # Panics
/// When operands, sizes and the slice do not fit together.
pub(crate) unsafe fn multiply_shared(
    lhs: Lhs<'_>,
    rhs: Rhs<'_>,
    columns: Range<usize>,
    c: &Shared<f32>,
    at: usize,
    c_row: usize,
    accumulate: bool,
) {
    let end = at + lhs.rows.saturating_sub(1) * c_row + columns.len();
    assert!(lhs.rows == 0 || end <= c.1, "the result is too short");
    // SAFETY: the elements lie in the slice by the assertion and are ours by this function's contract.
    unsafe { multiply_into(lhs, rhs, columns, c.at(at), c_row, accumulate) }
}

/// A pointer that tasks share to write disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(*mut T, usize);

// SAFETY: the pointer comes from an exclusive borrow, and the methods' contracts give each thread parts of its own.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr(), slice.len())
    }

    /// The pointer to an element.
    fn at(&self, index: usize) -> *mut T {
        assert!(index <= self.1, "an element outside of the slice");
        self.0.wrapping_add(index)
    }

    /// Part of the slice.
    ///
    /// # Safety
    /// No two parts that exist at the same time may overlap, and the slice must still be borrowed.
    #[expect(clippy::mut_from_ref, reason = "the contract keeps parts disjoint")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.1, "a part outside of the slice");
        // SAFETY: inside the slice by the assertion, disjoint by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

thread_local! {
    /// Scratch memory of this thread, by nesting depth: a task that waits for others may run one of them meanwhile.
    static SCRATCH: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with scratch memory of this thread; its contents are arbitrary.
pub(crate) fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.with_borrow_mut(|free| free.pop().unwrap_or_default());
    buffer.resize(length);
    let result = f(&mut buffer);
    SCRATCH.with_borrow_mut(|free| free.push(buffer));
    result
}
