//! The operands of a product, as the kernels read them.

use super::kernel::reads_apart;
use super::pack::pack;
use super::{Group, LeftRows, Matrix, NR, Order, left_len, pack_left};
use crate::element::{Element, Precision};
use crate::scratch::with_scratch;

/// A right operand B (k × n) in panels of [`NR`] columns: group `(g, j)` is at `j / NR * panel + g * step + j % NR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhs<'a> {
    pub(super) data: &'a [u32],
    pub(super) group: Group,
    /// From the start of one panel to the next.
    panel: usize,
    /// From one group to the next.
    pub(super) step: usize,
    /// Of a group of all columns of a panel: [`NR`], or half of it for bf16 that the kernels widen.
    width: usize,
    pub(super) groups: usize,
    pub(super) columns: usize,
}

impl<'a> Rhs<'a> {
    /// A matrix of `depth` × `columns` elements that [`pack`] wrote into `data`.
    pub(crate) fn new(data: &'a [u32], group: Group, depth: usize, columns: usize) -> Self {
        let groups = group.count(depth);
        assert!(data.len() >= columns.div_ceil(NR) * NR * groups, "the packed operand is too short");
        Self { data, group, panel: NR * groups, step: NR, width: NR, groups, columns }
    }

    /// A matrix of `depth` × `columns` elements in panels of bf16, each of which is a group of its own. The kernels widen
    /// them in registers.
    pub(crate) fn halves(data: &'a [u32], depth: usize, columns: usize) -> Self {
        let (width, group) = (NR / 2, Group::Single);
        assert!(data.len() >= columns.div_ceil(NR) * width * depth, "the packed operand is too short");
        Self { data, group, panel: width * depth, step: width, width, groups: depth, columns }
    }

    /// Whether elements are bf16 that the kernels widen.
    pub(super) fn is_halves(&self) -> bool {
        self.width < NR
    }

    /// Packs a matrix into `memory`, which holds [`super::packed_len`] groups, in this thread.
    pub(crate) fn pack<E: Element>(group: Group, matrix: Matrix<'_, E>, memory: &'a mut [f32]) -> Self {
        let packed: &mut [u32] = bytemuck::cast_slice_mut(memory);
        pack(group, matrix, NR, packed);
        Self::new(packed, group, matrix.depth, matrix.lanes)
    }

    /// A matrix that is read in place. `None` when the kernels can't read it so: when it is bf16 or [`Order::Columns`],
    /// or when its last panel would reach over the end; and when they are faster on a copy.
    pub(super) fn direct<E: Element>(group: Group, matrix: Matrix<'a, E>) -> Option<Self> {
        let Matrix { data, order, stride, depth, lanes } = matrix;
        if group != Group::Single
            || E::PRECISION != Precision::F32
            || order != Order::Rows
            || !lanes.is_multiple_of(NR)
            || !reads_apart(group)
        {
            return None;
        }
        assert!(depth == 0 || data.len() >= (depth - 1) * stride + lanes, "the right operand is too short");
        let data = bytemuck::try_cast_slice(data).ok()?;
        Some(Self { data, group, panel: NR, step: stride, width: NR, groups: depth, columns: lanes })
    }

    /// Number of columns n.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// `count` groups of all columns, from group `first` on.
    pub(super) fn part(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.groups, "groups that B does not have");
        let data = &self.data[(first * self.step).min(self.data.len())..];
        Self { data, groups: count, ..self }
    }

    /// The panel that begins with this column.
    pub(super) fn panel(&self, column: usize) -> &'a [u32] {
        let panel = &self.data[column / NR * self.panel..];
        assert!(
            self.groups == 0 || panel.len() >= (self.groups - 1) * self.step + self.width,
            "B is too short"
        );
        panel
    }
}

/// Rows of a left operand A: group `(i, g)` is at `i * row + g * step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lhs<'a> {
    pub(super) data: &'a [u32],
    pub(super) group: Group,
    pub(super) row: usize,
    pub(super) step: usize,
    pub(super) rows: usize,
    pub(super) groups: usize,
}

impl<'a> Lhs<'a> {
    /// Rows that are read in place. `None` when the kernels can't read them so: when a pair would begin at an odd
    /// element, or when bf16 must be widened.
    fn direct<E: Element>(rows: LeftRows<'a, E>) -> Option<Self> {
        let LeftRows { data, count, depth, stride } = rows;
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
        Some(Self { data, group, row: stride / per_group, step: 1, rows: count, groups: depth / per_group })
    }

    /// The transpose Aᵀ of a matrix of [`Order::Rows`], read in place: its lanes are the rows of the operand. `None`
    /// unless it is f32, and when the kernels are faster on a copy.
    pub(super) fn transposed<E: Element>(matrix: Matrix<'a, E>) -> Option<Self> {
        let group = Group::of::<E>();
        if group != Group::Single || E::PRECISION != Precision::F32 || !reads_apart(group) {
            return None;
        }
        let data: &[u32] = bytemuck::try_cast_slice(matrix.data).ok()?;
        let Matrix { stride, depth, lanes, .. } = matrix;
        Some(Self { data, group, row: 1, step: stride, rows: lanes, groups: depth })
    }

    /// The first `rows` rows.
    pub(crate) fn first(self, rows: usize) -> Self {
        Self { rows: rows.min(self.rows), ..self }
    }
}

/// Runs `f` on rows as a left operand, which is read in place or packed into scratch memory.
///
/// # Panics
/// When `rows.data` is shorter than the sizes say.
pub(crate) fn with_rows<E: Element, R>(rows: LeftRows<'_, E>, f: impl FnOnce(Lhs<'_>) -> R) -> R {
    let LeftRows { data, count, depth, stride } = rows;
    assert!(count == 0 || data.len() >= (count - 1) * stride + depth, "the left operand is too short");
    if let Some(lhs) = Lhs::direct(rows) {
        return f(lhs);
    }
    let group = Group::of::<E>();
    with_scratch(left_len(group, depth, count), |memory| {
        let matrix = Matrix { data, order: Order::Columns, stride, depth, lanes: count };
        f(pack_left(group, matrix, bytemuck::cast_slice_mut(memory)))
    })
}
