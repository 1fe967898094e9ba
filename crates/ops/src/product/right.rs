//! A right operand that is read where it lies, or packed.

use super::{Group, NR, Order, Rhs, pack_all, packed_len};
use crate::buffer::{Buffer, Workspace};
use crate::element::Element;

/// Bytes of a matrix up to which it is read where it lies. It is read once for each task, row by row, which is faster than
/// copying it first while it stays in a cache, and slower when it comes from memory.
const IN_PLACE: usize = 2 << 20;

/// A right operand: a matrix itself where the kernels can read it, else a packed copy in memory that is given back.
pub(crate) enum RightOperand<'a> {
    /// Read where it lies.
    Direct(Rhs<'a>),
    /// A copy.
    Packed { memory: Buffer, group: Group, depth: usize, columns: usize },
}

impl<'a> RightOperand<'a> {
    /// A matrix of `depth` × `columns` whose rows or columns (`order`) lie `stride` apart, for products on E. Packing uses
    /// all threads.
    pub(crate) fn new<E: Element, W: Element>(
        workspace: &Workspace,
        order: Order,
        matrix: &'a [W],
        stride: usize,
        (depth, columns): (usize, usize),
    ) -> Self {
        let group = Group::of::<E>();
        if order == Order::Rows
            && size_of_val(matrix) <= IN_PLACE
            && let Some(rhs) = Rhs::direct(group, matrix, stride, (depth, columns))
        {
            return Self::Direct(rhs);
        }
        let mut memory = workspace.take(packed_len(group, depth, columns, NR));
        pack_all(group, order, matrix, stride, (depth, columns), NR, bytemuck::cast_slice_mut(&mut memory));
        Self::Packed { memory, group, depth, columns }
    }

    pub(crate) fn rhs(&self) -> Rhs<'_> {
        match self {
            Self::Direct(rhs) => *rhs,
            Self::Packed { memory, group, depth, columns } => {
                Rhs::new(bytemuck::cast_slice(memory), *group, *depth, *columns)
            }
        }
    }

    /// Gives its memory back.
    pub(crate) fn give(self, workspace: &Workspace) {
        if let Self::Packed { memory, .. } = self {
            workspace.give(memory);
        }
    }
}
