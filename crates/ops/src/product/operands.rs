//! The operands of a product, as the kernels read them.

use super::{Group, NR, Order, pack, packed_len, with_scratch};
use crate::element::{Element, Precision};

/// Columns of a matrix B (k × n), in panels of [`NR`] of them: group `(g, j)` is at
/// `j / NR * panel + g * step + j % NR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhs<'a> {
    pub(super) data: &'a [u32],
    pub(super) group: Group,
    /// From the beginning of one panel to the next.
    panel: usize,
    /// From one group to the next.
    pub(super) step: usize,
    pub(super) groups: usize,
    pub(super) columns: usize,
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
    pub(super) fn part(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.groups, "groups that B does not have");
        let data = &self.data[(first * self.step).min(self.data.len())..];
        Self { data, groups: count, ..self }
    }

    /// The panel that begins with this column.
    pub(super) fn panel(&self, column: usize) -> &'a [u32] {
        let panel = &self.data[column / NR * self.panel..];
        assert!(self.groups == 0 || panel.len() >= (self.groups - 1) * self.step + NR, "B is too short");
        panel
    }
}

/// Rows of a matrix A: group `(i, g)` is at `i * row + g * step`.
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
    /// Rows of `depth` contiguous elements each, `stride` elements from one to the next, read where they are.
    /// `None` when groups of this type do not lie so: a pair at an odd place, or bf16 to be widened.
    pub(super) fn direct<E: Element>(
        data: &'a [E],
        rows: usize,
        depth: usize,
        stride: usize,
    ) -> Option<Self> {
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
    pub(super) fn transposed<E: Element>(
        data: &'a [E],
        rows: usize,
        depth: usize,
        stride: usize,
    ) -> Option<Self> {
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
