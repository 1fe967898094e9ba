//! Packing left operands.

use super::kernel::{LeftOrder, left_order, transpose};
use super::pack::{pack, pack_group};
use super::tile::BLOCK;
use super::{Group, Lhs, Matrix, Order, packed_len};
use crate::element::Element;
use crate::vector;

/// Number of groups of memory that [`pack_left`] needs for a matrix of `depth` × `lanes` elements.
pub(crate) fn left_len(group: Group, depth: usize, lanes: usize) -> usize {
    match left_order(group) {
        LeftOrder::Lanes => packed_len(group, depth, lanes, lanes.max(1)),
        LeftOrder::Rows => lanes * row_len(group, depth),
    }
}

/// From one packed row to the next: a line more than the groups take, so that rows do not share a few sets of a cache.
fn row_len(group: Group, depth: usize) -> usize {
    group.count(depth).next_multiple_of(BLOCK) + BLOCK
}

/// Packs a matrix in the order in which the kernel reads left operands: its lanes are the rows of the operand.
///
/// # Panics
/// When the matrix or the operand is longer than its slice.
pub(crate) fn pack_left<'a, E: Element>(
    group: Group,
    matrix: Matrix<'_, E>,
    packed: &'a mut [u32],
) -> Lhs<'a> {
    let (rows, groups) = (matrix.lanes, group.count(matrix.depth));
    match left_order(group) {
        LeftOrder::Lanes => {
            // One panel as wide as there are rows: the kernels take tiles of any height out of it.
            let width = rows.max(1);
            pack(group, matrix, width, packed);
            Lhs { data: packed, group, row: 1, step: width, rows, groups }
        }
        LeftOrder::Rows => {
            let row = row_len(group, matrix.depth);
            assert!(packed.len() >= rows * row, "no room for the packed operand");
            vector::dispatch(
                #[inline(always)]
                || match matrix.order {
                    Order::Rows => transposed(group, matrix, row, packed),
                    Order::Columns => copied(group, matrix, row, packed),
                },
            );
            Lhs { data: packed, group, row, step: 1, rows, groups }
        }
    }
}

/// Packs a matrix of [`Order::Rows`] lane by lane.
#[inline(always)]
fn transposed<E: Element>(group: Group, matrix: Matrix<'_, E>, row: usize, packed: &mut [u32]) {
    let groups = group.count(matrix.depth);
    // Lanes inside, so that each row of the matrix is read from start to end.
    for g in (0..groups).step_by(BLOCK) {
        let wide = BLOCK.min(groups - g);
        for lane in (0..matrix.lanes).step_by(BLOCK) {
            let high = BLOCK.min(matrix.lanes - lane);
            let mut block = [[0u32; BLOCK]; BLOCK];
            for (j, to) in block.iter_mut().enumerate().take(wide) {
                // A branch of its own for whole blocks: the compiler knows their length.
                if high == BLOCK {
                    pack_group(group, matrix, g + j, lane, &mut to[..BLOCK]);
                } else {
                    pack_group(group, matrix, g + j, lane, &mut to[..high]);
                }
            }
            transpose(&mut block);
            for (i, from) in block.iter().enumerate().take(high) {
                packed[(lane + i) * row + g..][..wide].copy_from_slice(&from[..wide]);
            }
        }
    }
}

/// Packs a matrix of [`Order::Columns`], whose lanes lie as the operand's rows.
#[inline(always)]
fn copied<E: Element>(group: Group, matrix: Matrix<'_, E>, row: usize, packed: &mut [u32]) {
    let Matrix { data, stride, depth, lanes, .. } = matrix;
    for (lane, to) in packed.chunks_exact_mut(row).take(lanes).enumerate() {
        let from = &data[lane * stride..][..depth];
        match group {
            Group::Single => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from.to_f32().to_bits();
                }
            }
            Group::Pair => {
                let (pairs, last) = from.as_chunks::<2>();
                for (to, [low, high]) in to.iter_mut().zip(pairs) {
                    *to = E::pair(*low, *high);
                }
                if let [low] = last {
                    to[pairs.len()] = E::pair(*low, E::default());
                }
            }
        }
    }
}
