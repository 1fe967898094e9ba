//! Matrix products: the engine under every operation.
//!
//! A product `C = A · B` sums over *groups*. A group is one f32 of each operand, or a pair of neighbouring bf16 where the
//! processor multiplies such pairs and sums them in f32 (AVX-512 BF16, AMX, the bf16 products of NEON). A group has 4
//! bytes either way, so one set of loops serves both. The kernels read A in place when its layout allows it, and B too when it is small; otherwise the
//! operand is packed first, B in panels of [`NR`] columns. A tile of C of [`Tiling::rows`] × [`NR`] elements stays in
//! registers while it is summed (Goto's scheme, described in arXiv:1609.00076). A [`crate::KernelSet`] has the kernels and
//! their sizes. It is chosen once for the processor.
//!
//! One thread sums each element of C, in the order of the groups, so results have the same bits for any number of
//! threads. The error of an element is at most `k · 2^-24 · Σ |a b|` in f32. With bf16, the operands are rounded (by at
//! most 2^-9 of each), the sums are not. The bf16 products of NEON round half as many sums, by up to twice as much.

mod amx;
mod kernel;
mod left;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operands;
mod outer;
mod pack;
mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod probe;
mod processor;
mod rate;
mod right;
mod shared;
mod tasks;
mod tile;

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::element::{Element, Precision};
pub use kernel::LONGEST_PASS;
pub(crate) use kernel::{MOST_PANEL, Tiling};
pub(crate) use left::{left_len, pack_left};
pub(crate) use matrix::{LeftRows, Matrix, Order};
pub(crate) use operands::{Lhs, Rhs, with_rows};
pub(crate) use outer::{OuterProduct, outer_products};
pub(crate) use pack::{pack_all, packed_len};
pub(crate) use processor::Processor;
pub use rate::{LinearProduct, product_rate, product_seconds};
pub(crate) use right::RightOperand;
pub(crate) use shared::Shared;
pub(crate) use tasks::{RowSplitter, WIDTH, by_columns, part, rounded_product, row_tasks};
use tile::Tile;

/// Rows of a tile of the vector kernels.
const MR: usize = 12;
/// Columns of a tile. All sets have the same, so that a packed operand serves each of them.
pub(crate) const NR: usize = 32;

/// The unit that products sum over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// One f32.
    Single,
    /// Two bf16, the lower index in the lower half.
    Pair,
}

impl Group {
    /// The groups of products on E: pairs for bf16 where the processor multiplies them, otherwise single f32, to which
    /// bf16 is widened.
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

    /// Number of groups that hold `elements` elements.
    pub(crate) fn count(self, elements: usize) -> usize {
        elements.div_ceil(self.elements())
    }
}

/// `C = A · B`, or `C += A · B`, for all rows of A and a range of B's columns that starts at a multiple of [`NR`].
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
    // SAFETY: by the assertion, every element of C lies within the slice, which is borrowed exclusively.
    unsafe { multiply_into(lhs, rhs, columns, c.as_mut_ptr(), c_row, accumulate) }
}

/// [`multiply`] into a slice that tasks share: element `(i, j)` of C is at `at + i * c_row + j - columns.start`.
///
/// # Safety
/// No other thread may use these elements meanwhile.
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
    // A result without rows is empty, so that columns after the first begin beyond its end.
    if lhs.rows == 0 {
        return;
    }
    let end = at + (lhs.rows - 1) * c_row + columns.len();
    assert!(end <= c.len(), "the result is too short");
    // SAFETY: the elements lie in the slice by the assertion and are ours by this function's contract.
    unsafe { multiply_into(lhs, rhs, columns, c.at(at), c_row, accumulate) }
}

/// [`multiply`] into memory of which other threads may write other parts.
///
/// # Safety
/// The elements `(i, j)` for A's rows and these columns must be valid for writes at `c + i * c_row + j - columns.start`,
/// and no other thread may use them meanwhile.
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
    assert!(lhs.rows < 2 || c_row >= columns.len(), "the rows of the result overlap");
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
    let kernel = kernel::kernel(lhs.group, rhs.is_halves());
    let Tiling { rows: most, depth, .. } = Tiling::of_group(lhs.group);
    let _session = kernel::session(lhs.group);
    // Columns outside, rows inside: each panel of B comes into the first-level cache once and serves all rows of A.
    for first in (0..lhs.groups).step_by(depth) {
        let groups = depth.min(lhs.groups - first);
        let accumulate = accumulate || first > 0;
        let rhs = rhs.part(first, groups);
        for j in columns.clone().step_by(NR) {
            let valid = NR.min(columns.end - j);
            let b = rhs.panel(j);
            for i in (0..lhs.rows).step_by(most) {
                let rows = most.min(lhs.rows - i);
                let a = &lhs.data[i * lhs.row + first * lhs.step..];
                // SAFETY: row i and column j of C are there by this function's contract.
                let c = unsafe { c.add(i * c_row + (j - columns.start)) };
                let tile = Tile {
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
                // SAFETY: the kernel reads `rows` rows of `groups` groups of A, inside its slice by the assertion above,
                // and `groups` times NR elements of B, inside `b`. It writes `rows` × `valid` elements of C, which are
                // valid by this function's contract.
                unsafe { if valid == NR { kernel(&tile) } else { edge(kernel, tile) } }
            }
        }
    }
}

/// Computes a tile of fewer than [`NR`] columns. Kernels write whole tiles, so this one is computed in memory of its own
/// and its valid columns are copied from there.
///
/// # Safety
/// As [`kernel::Kernel`], but C has only `tile.columns` columns.
unsafe fn edge(kernel: kernel::Kernel, tile: Tile) {
    let mut memory = [const { MaybeUninit::<f32>::uninit() }; kernel::MOST_ROWS * NR];
    // Zeros for the tile's rows only: a tile of another kernel may have more.
    let whole = &mut memory[..tile.rows * NR];
    whole.fill(MaybeUninit::new(0.0));
    // SAFETY: A and B are there by this function's contract, and the array has room for the rows of a whole tile.
    unsafe { kernel(&Tile { c: whole.as_mut_ptr().cast(), c_row: NR, accumulate: false, ..tile }) };
    for (r, values) in whole.chunks_exact(NR).enumerate() {
        // SAFETY: the valid columns of row r of C, by this function's contract.
        let c = unsafe { std::slice::from_raw_parts_mut(tile.c.add(r * tile.c_row), tile.columns) };
        for (c, value) in c.iter_mut().zip(values) {
            // SAFETY: these rows were filled with zeros.
            let value = unsafe { value.assume_init() };
            *c = if tile.accumulate { *c + value } else { value };
        }
    }
}
