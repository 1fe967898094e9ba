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
mod pack;
mod right;

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use crate::buffer::{Buffer, Workspace};
use crate::element::{Element, Precision};
pub(crate) use kernel::Tile;
pub use kernel::instructions;
pub(crate) use pack::{Order, pack, pack_all, packed_len};
pub(crate) use right::RightOperand;

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

/// Columns of a matrix B (k × n), in panels of [`NR`] of them: group `(g, j)` is at
/// `j / NR * panel + g * step + j % NR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhs<'a> {
    data: &'a [u32],
    group: Group,
    /// From the beginning of one panel to the next.
    panel: usize,
    /// From one group to the next.
    step: usize,
    groups: usize,
    columns: usize,
}

impl<'a> Rhs<'a> {
    /// What [`pack`] wrote into `data` for a matrix of `depth` × `columns` elements.
    pub(crate) fn new(data: &'a [u32], group: Group, depth: usize, columns: usize) -> Self {
        let groups = group.count(depth);
        assert!(data.len() >= columns.div_ceil(NR) * NR * groups, "the packed operand is too short");
        Self { data, group, panel: NR * groups, step: NR, groups, columns }
    }

    /// Rows of `columns` neighbours, `stride` elements from one to the next, read where they are. `None` when the kernels
    /// can't: bf16, or a last panel that would reach over the end.
    pub(crate) fn direct<E: Element>(
        group: Group,
        data: &'a [E],
        stride: usize,
        (depth, columns): (usize, usize),
    ) -> Option<Self> {
        if group != Group::Single || E::PRECISION != Precision::F32 || !columns.is_multiple_of(NR) {
            return None;
        }
        assert!(depth == 0 || data.len() >= (depth - 1) * stride + columns, "the right operand is too short");
        Some(Self {
            data: bytemuck::try_cast_slice(data).ok()?,
            group,
            panel: NR,
            step: stride,
            groups: depth,
            columns,
        })
    }

    /// `count` of the groups of all columns, from `first` on.
    fn part(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.groups, "groups that B does not have");
        let data = &self.data[(first * self.step).min(self.data.len())..];
        Self { data, groups: count, ..self }
    }

    /// The panel that begins with this column.
    fn panel(&self, column: usize) -> &'a [u32] {
        let panel = &self.data[column / NR * self.panel..];
        assert!(self.groups == 0 || panel.len() >= (self.groups - 1) * self.step + NR, "B is too short");
        panel
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

    /// Rows whose elements lie `stride` apart, neighbours in memory being of neighbouring rows: Aᵀ of a matrix A whose rows
    /// are f32. `None` when this is not.
    fn transposed<E: Element>(data: &'a [E], rows: usize, depth: usize, stride: usize) -> Option<Self> {
        if Group::of::<E>() != Group::Single || E::PRECISION != Precision::F32 {
            return None;
        }
        let data: &[u32] = bytemuck::try_cast_slice(data).ok()?;
        Some(Self { data, group: Group::Single, row: 1, step: stride, rows, groups: depth })
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

/// Runs `f` on the rows of x (rows, k) as a left operand and on a few of the `n` columns of the result at a time, at most
/// `step`: what is done with a result finds it in the first cache then.
pub(crate) fn by_columns<E: Element>(
    x: &[E],
    k: usize,
    (n, step): (usize, usize),
    mut f: impl FnMut(Range<usize>, Lhs<'_>),
) {
    with_rows(x, (x.len() / k, k, k), |lhs| {
        for first in (0..n).step_by(step) {
            f(first..n.min(first + step), lhs);
        }
    });
}

/// The rows of each task when every task takes a few of `rows` through several products: whole tiles, and many, so that the
/// columns of B that are at hand serve several panels before they leave the second-level cache, but as many tasks for each
/// thread. Results do not depend on it.
pub(crate) fn row_tasks(rows: usize) -> Vec<Range<usize>> {
    const MOST: usize = 4 * PANEL;
    let tiles = rows.div_ceil(MR);
    let tasks = rows.div_ceil(MOST).next_multiple_of(rayon::current_num_threads().max(1)).min(tiles);
    (0..tasks).map(|task| tiles * task / tasks * MR..rows.min(tiles * (task + 1) / tasks * MR)).collect()
}

/// The parts of a matrix with rows of `width` elements that belong to tasks.
///
/// # Panics
/// When the matrix has other rows than the tasks.
pub(crate) fn parts<'a, T>(tasks: &[Range<usize>], matrix: &'a [T], width: usize) -> Vec<&'a [T]> {
    tasks.iter().map(|rows| &matrix[rows.start * width..rows.end * width]).collect()
}

/// [`parts`] to write.
///
/// # Panics
/// As [`parts`].
pub(crate) fn parts_mut<'a, T>(
    tasks: &[Range<usize>],
    mut matrix: &'a mut [T],
    width: usize,
) -> Vec<&'a mut [T]> {
    let mut part = |rows: &Range<usize>| {
        let (part, rest) = std::mem::take(&mut matrix).split_at_mut(rows.len() * width);
        matrix = rest;
        part
    };
    tasks.iter().map(&mut part).collect()
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

/// A product `C = Aᵀ · B`: A (k × m) with rows `stride` apart, C (m × n) row-major. The gradient of a matrix of weights is
/// such a product, summed over positions.
pub(crate) struct OuterProduct<'a, E> {
    pub(crate) a: &'a [E],
    pub(crate) stride: usize,
    /// m.
    pub(crate) rows: usize,
    /// B (k × n).
    pub(crate) rhs: Rhs<'a>,
    pub(crate) c: &'a mut [f32],
}

/// Computes several products of the same depth k with all threads, or adds them to what is there.
///
/// # Panics
/// When operands and results do not fit together.
pub(crate) fn outer_products<E: Element>(
    products: &mut [OuterProduct<'_, E>],
    depth: usize,
    accumulate: bool,
) {
    let panels = |height| products.iter().map(|product| product.rows.div_ceil(height)).sum::<usize>();
    let enough = 8 * rayon::current_num_threads();
    // Results have the same bits however rows and columns are shared out.
    let height = if panels(2 * PANEL) < enough { PANEL } else { 2 * PANEL };
    let most = enough.div_ceil(panels(height).max(1));
    let mut tasks = Vec::new();
    for OuterProduct { a, stride, rows, rhs, c } in products {
        assert!(c.len() >= *rows * rhs.columns, "the result is too short");
        assert!(depth == 0 || a.len() >= (depth - 1) * *stride + *rows, "the left operand is too short");
        let (a, c): (&[E], _) = (a, Shared::new(c));
        let width = rhs.columns.div_ceil(most).next_multiple_of(NR);
        for row in (0..*rows).step_by(height) {
            let own = height.min(*rows - row);
            for first in (0..rhs.columns).step_by(width) {
                let columns = first..rhs.columns.min(first + width);
                tasks.push((
                    &a[row.min(a.len())..],
                    *stride,
                    own,
                    *rhs,
                    columns,
                    c,
                    row * rhs.columns + first,
                ));
            }
        }
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(a, stride, rows, rhs, columns, c, at)| {
        with_columns(a, stride, (rows, depth), |lhs, first| {
            let (rhs, accumulate) = (rhs.part(first, lhs.groups), accumulate || first > 0);
            // SAFETY: tasks are disjoint blocks of rows and columns of C.
            unsafe { multiply_shared(lhs, rhs, columns.clone(), &c, at, rhs.columns, accumulate) };
        });
    });
}

/// Runs `f` on `rows` columns of a matrix A (depth, …) with rows `stride` apart as rows of a left operand: where they lie,
/// or packed some groups at a time; `f` gets the number of the first of them.
fn with_columns<E: Element>(
    a: &[E],
    stride: usize,
    (rows, depth): (usize, usize),
    mut f: impl FnMut(Lhs<'_>, usize),
) {
    let group = Group::of::<E>();
    if let Some(lhs) = Lhs::transposed(a, rows, depth, stride) {
        return f(lhs, 0);
    }
    with_scratch(DEPTH * rows, |scratch| {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(scratch);
        let some = DEPTH * group.elements();
        for k in (0..depth.max(1)).step_by(some) {
            let own = some.min(depth - k);
            pack(group, Order::Rows, &a[k * stride..], stride, (own, rows), rows, packed);
            f(Lhs::packed(packed, group, rows, own, rows), k / group.elements());
        }
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
/// `tries` products of two 1,536 × 1,536 matrices as a library is asked for them, from operands that are not packed.
pub fn product_rate(precision: Precision, tries: usize, now: impl Fn() -> f64) -> f64 {
    match precision {
        Precision::F32 => rate::<f32>(tries, now),
        Precision::Bf16 => rate::<half::bf16>(tries, now),
    }
}

fn rate<E: Element>(tries: usize, now: impl Fn() -> f64) -> f64 {
    const SIZE: usize = 1536;
    let values: Vec<E> = (0..SIZE * SIZE).map(|i| E::from_f32((i % 7) as f32 * 0.25 - 0.5)).collect();
    let workspace = Workspace::default();
    let mut c = workspace.take(SIZE * SIZE);
    let mut best = f64::MAX;
    for _ in 0..tries.max(1) {
        let start = now();
        let rhs = RightOperand::new::<E, E>(&workspace, Order::Columns, &values, SIZE, (SIZE, SIZE));
        c.par_chunks_mut(PANEL * SIZE).zip(values.par_chunks(PANEL * SIZE)).for_each(|(c, a)| {
            with_rows(a, (PANEL, SIZE, SIZE), |a| multiply(a, rhs.rhs(), 0..SIZE, c, SIZE, false));
        });
        rhs.give(&workspace);
        best = best.min(now() - start);
    }
    2.0 * (SIZE as f64).powi(3) / best
}
