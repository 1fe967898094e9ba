//! A right operand that is read in place or packed.

use super::{Group, Matrix, NR, Rhs, pack_all, packed_len};
use crate::buffer::{Buffer, Workspace};
use crate::element::Element;

/// Largest size in bytes of a matrix that is read in place. Each task reads the whole matrix row by row. That is faster
/// than copying it first as long as it stays in a cache, and slower when it comes from memory.
const IN_PLACE: usize = 2 << 20;

/// A right operand: the matrix itself where the kernels can read it, otherwise a packed copy.
pub(crate) enum RightOperand<'a> {
    /// Read in place.
    Direct(Rhs<'a>),
    /// A copy in memory of the workspace.
    Packed { memory: Buffer, group: Group, depth: usize, columns: usize },
}

impl<'a> RightOperand<'a> {
    /// A matrix as the right operand of products on E. Packing uses all threads.
    pub(crate) fn new<E: Element, W: Element>(workspace: &Workspace, matrix: Matrix<'a, W>) -> Self {
        let group = Group::of::<E>();
        if size_of_val(matrix.data) <= IN_PLACE
            && let Some(rhs) = Rhs::direct(group, matrix)
        {
            return Self::Direct(rhs);
        }
        let Matrix { depth, lanes: columns, .. } = matrix;
        let mut memory = workspace.take(packed_len(group, depth, columns, NR));
        pack_all(group, matrix, NR, bytemuck::cast_slice_mut(&mut memory));
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

    /// Gives the memory of a copy back.
    pub(crate) fn give(self, workspace: &Workspace) {
        if let Self::Packed { memory, .. } = self {
            workspace.give(memory);
        }
    }
}
