//! Matrix products: the engine under every operation.
//!
//! A product `C = A · B` sums over *groups*: one f32 of each operand, or a pair of neighbouring bf16 where the processor
//! multiplies such pairs and adds them up in f32 (AVX-512 BF16). A group is 4 bytes either way, so one set of loops
//! serves both. B is packed first, in panels of [`NR`] columns; A is read where it lies when its groups are contiguous,
//! else packed too. C is computed in tiles of [`MR`] × [`NR`] that stay in registers (arXiv:1609.00076 describes the
//! scheme, Goto's), with a kernel chosen once for the processor at hand.
//!
//! Every element of C is summed in the order of the groups by one thread, so results have the same bits for any number
//! of threads. The error of an element is at most `k · 2^-24 · Σ |a b|` in f32; bf16 operands are rounded before
//! (2^-9 of each), not the sums.

mod kernel;
mod pack;

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::{Element, Precision};
pub(crate) use kernel::Tile;
pub use kernel::instructions;
pub(crate) use pack::{Order, pack, pack_all, packed_len};

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

/// Packed columns of a matrix B (k × n): panels of [`NR`] columns, each with all groups one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhs<'a> {
    data: &'a [u32],
    group: Group,
    /// Groups of a panel.
    groups: usize,
    /// The first of them that a product uses.
    first: usize,
    columns: usize,
}

impl<'a> Rhs<'a> {
    /// What [`pack`] wrote into `data` for a matrix of `depth` × `columns` elements.
    pub(crate) fn new(data: &'a [u32], group: Group, depth: usize, columns: usize) -> Self {
        let groups = group.count(depth);
        assert!(data.len() >= columns.div_ceil(NR) * NR * groups, "the packed operand is too short");
        Self { data, group, groups, first: 0, columns }
    }

    /// The same columns from group `first` on.
    fn from(self, first: usize) -> Self {
        Self { first, ..self }
    }
}

/// Rows of a matrix A: group `(i, g)` is at `i * row + g * step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lhs<'a> {
    data: &'a [u32],
    group: Group,
    row: usize,
    step: usize,
    rows: usize,
    groups: usize,
}

impl<'a> Lhs<'a> {
    /// Rows of `depth` contiguous elements each, `stride` elements from one to the next, read where they are.
    /// `None` when groups of this type do not lie so: a pair at an odd place, or bf16 to be widened.
    fn direct<E: Element>(data: &'a [E], rows: usize, depth: usize, stride: usize) -> Option<Self> {
        let group = Group::of::<E>();
        let per_group = match (group, E::PRECISION) {
            (Group::Single, Precision::F32) => 1,
            (Group::Pair, Precision::Bf16) => 2,
            _ => return None,
        };
        if !depth.is_multiple_of(per_group) || !stride.is_multiple_of(per_group) {
            return None;
        }
        let whole = data.len() / per_group * per_group;
        let data: &[u32] = bytemuck::try_cast_slice(&data[..whole]).ok()?;
        Some(Self { data, group, row: stride / per_group, step: 1, rows, groups: depth / per_group })
    }

    /// What [`pack`] wrote for panels of `width` rows: this one.
    pub(crate) fn packed(data: &'a [u32], group: Group, rows: usize, depth: usize, width: usize) -> Self {
        Self { data, group, row: 1, step: width, rows, groups: group.count(depth) }
    }
}

/// Runs `f` on A's rows as a left operand: where they lie, or packed into scratch memory.
///
/// # Panics
/// When `data` is shorter than its sizes say.
pub(crate) fn with_rows<E: Element, R>(
    data: &[E],
    (rows, depth, stride): (usize, usize, usize),
    f: impl FnOnce(Lhs<'_>) -> R,
) -> R {
    assert!(rows == 0 || data.len() >= (rows - 1) * stride + depth, "the left operand is too short");
    if let Some(lhs) = Lhs::direct(data, rows, depth, stride) {
        return f(lhs);
    }
    let group = Group::of::<E>();
    with_scratch(packed_len(group, depth, rows, rows.max(1)), |memory| {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(memory);
        pack(group, Order::Columns, data, stride, (depth, rows), rows.max(1), packed);
        f(Lhs::packed(packed, group, rows, depth, rows.max(1)))
    })
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
    assert!(rhs.first + lhs.groups <= rhs.groups && lhs.group == rhs.group, "operands that do not fit");
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
        for j in columns.clone().step_by(NR) {
            let valid = NR.min(columns.end - j);
            let b = &rhs.data[j * rhs.groups + (rhs.first + first) * NR..][..groups * NR];
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
                    c,
                    c_row,
                    accumulate,
                };
                if valid == NR {
                    // SAFETY: the kernel reads `rows` rows of `groups` groups of A, inside its slice by the assertion
                    // above, `groups` × NR groups of B, inside `b`, and writes `rows` × NR elements of C, which are
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

/// Runs `f` on the tiles of a task: a few of the `n` columns of the result at a time, at most `step`, and for these one
/// panel of the rows of x (rows, k) after the other. `f` gets the panel's rows, the columns and the left operand.
pub(crate) fn for_each_tile<E: Element>(
    x: &[E],
    k: usize,
    (n, step): (usize, usize),
    mut f: impl FnMut(Range<usize>, Range<usize>, Lhs<'_>),
) {
    let count = x.len() / k;
    for first in (0..n).step_by(step) {
        for row in (0..count).step_by(PANEL) {
            let rows = row..count.min(row + PANEL);
            let sizes = (rows.len(), k, k);
            with_rows(&x[row * k..], sizes, |lhs| f(rows, first..n.min(first + step), lhs));
        }
    }
}

/// Rows of a task whose columns are taken a few at a time: many, so that the columns of B that are at hand serve several
/// panels before they leave the second-level cache, but as many tasks for each thread. Results do not depend on it.
pub(crate) fn task_rows(rows: usize) -> usize {
    const MOST: usize = 4 * PANEL;
    let tasks = rows.div_ceil(MOST).next_multiple_of(rayon::current_num_threads().max(1));
    rows.div_ceil(tasks.max(1)).next_multiple_of(4).max(4)
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

/// `C = Aᵀ · B` or `C += Aᵀ · B` with all threads: A (k × m) with rows `stride` apart, C (m × n) row-major. The gradient of
/// a matrix of weights is such a product.
///
/// # Panics
/// When operands and `c` do not fit together.
pub(crate) fn outer_product<E: Element>(
    (a, stride): (&[E], usize),
    (depth, rows): (usize, usize),
    rhs: Rhs<'_>,
    c: &mut [f32],
    accumulate: bool,
) {
    let (group, columns) = (Group::of::<E>(), rhs.columns);
    assert!(c.len() >= rows * columns, "the result is too short");
    let down = rows.div_ceil(PANEL);
    // Columns are shared out too when there are few panels, although each task packs its part of A: results have the same
    // bits however they are.
    let most = (8 * rayon::current_num_threads()).div_ceil(down.max(1));
    let width = columns.div_ceil(most).next_multiple_of(NR);
    let across = columns.div_ceil(width.max(1));
    let per_group = group.elements();
    let c = Shared::new(c);
    (0..down * across).into_par_iter().for_each(|task| {
        let (row, first) = (task / across * PANEL, task % across * width);
        let own = PANEL.min(rows - row);
        let range = first..columns.min(first + width);
        with_scratch(DEPTH * PANEL, |scratch| {
            let packed: &mut [u32] = bytemuck::cast_slice_mut(scratch);
            for k in (0..depth).step_by(DEPTH * per_group) {
                let depth = (DEPTH * per_group).min(depth - k);
                pack(group, Order::Rows, &a[k * stride + row..], stride, (depth, own), PANEL, packed);
                let lhs = Lhs::packed(packed, group, own, depth, PANEL);
                let (rhs, at) = (rhs.from(k / per_group), row * columns + first);
                // SAFETY: tasks are disjoint blocks of rows and columns of C.
                unsafe { multiply_shared(lhs, rhs, range.clone(), &c, at, columns, accumulate || k > 0) };
            }
        });
    });
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

/// Measures the product rate that this engine reaches with all threads of the current pool, in FLOP/s: the best of
/// `tries` products of two 1,536 × 1,536 matrices, the right one packed beforehand. `now` gives the time in seconds.
pub fn product_rate(precision: Precision, tries: usize, now: impl Fn() -> f64) -> f64 {
    match precision {
        Precision::F32 => rate::<f32>(tries, now),
        Precision::Bf16 => rate::<half::bf16>(tries, now),
    }
}

fn rate<E: Element>(tries: usize, now: impl Fn() -> f64) -> f64 {
    const SIZE: usize = 1536;
    let values: Vec<E> = (0..SIZE * SIZE).map(|i| E::from_f32((i % 7) as f32 * 0.25 - 0.5)).collect();
    let group = Group::of::<E>();
    let mut memory = Buffer::default();
    memory.resize(packed_len(group, SIZE, SIZE, NR));
    let packed: &mut [u32] = bytemuck::cast_slice_mut(&mut memory);
    pack(group, Order::Columns, &values, SIZE, (SIZE, SIZE), NR, packed);
    let rhs = Rhs::new(packed, group, SIZE, SIZE);
    let mut c = Buffer::default();
    c.resize(SIZE * SIZE);
    let mut best = f64::MAX;
    for _ in 0..tries.max(1) {
        let start = now();
        c.par_chunks_mut(PANEL * SIZE).zip(values.par_chunks(PANEL * SIZE)).for_each(|(c, a)| {
            with_rows(a, (PANEL, SIZE, SIZE), |a| multiply(a, rhs, 0..SIZE, c, SIZE, false));
        });
        best = best.min(now() - start);
    }
    2.0 * (SIZE as f64).powi(3) / best
}
