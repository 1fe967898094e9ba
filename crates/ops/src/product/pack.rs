//! Packing operands: the order in which the kernels read them.

use rayon::prelude::*;

use super::Group;
use crate::element::Element;
use crate::vector;

/// How a matrix of `depth` × `lanes` (k × n, or k × m of a left operand) lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Element (k, lane) at `k * stride + lane`.
    Rows,
    /// Element (k, lane) at `lane * stride + k`.
    Columns,
}

/// Groups that panels of `width` lanes take.
pub(crate) fn packed_len(group: Group, depth: usize, lanes: usize, width: usize) -> usize {
    lanes.div_ceil(width) * width * group.count(depth)
}

/// Packs a matrix into panels of `width` lanes: each panel holds its groups one after the other, a group the lanes.
/// Lanes and elements past the matrix are zero.
///
/// # Panics
/// When the matrix or the panels are longer than their slices.
pub(crate) fn pack<E: Element>(
    group: Group,
    order: Order,
    matrix: &[E],
    stride: usize,
    (depth, lanes): (usize, usize),
    width: usize,
    packed: &mut [u32],
) {
    let length = width * group.count(depth);
    assert!(packed.len() >= packed_len(group, depth, lanes, width), "no room for the packed operand");
    if length == 0 {
        return;
    }
    for (p, panel) in packed.chunks_exact_mut(length).take(lanes.div_ceil(width)).enumerate() {
        pack_panel(group, order, matrix, stride, (depth, lanes), width, p, panel);
    }
}

/// Packs panel number `p`: see [`pack`].
#[expect(clippy::too_many_arguments, reason = "a matrix, its layout, its sizes and a place")]
pub(crate) fn pack_panel<E: Element>(
    group: Group,
    order: Order,
    matrix: &[E],
    stride: usize,
    (depth, lanes): (usize, usize),
    width: usize,
    p: usize,
    panel: &mut [u32],
) {
    let first = p * width;
    let valid = width.min(lanes - first);
    match order {
        Order::Rows => {
            let matrix = &matrix[first.min(matrix.len())..];
            vector::dispatch(
                #[inline(always)]
                || rows(group, matrix, stride, (depth, valid), width, panel),
            );
        }
        Order::Columns => {
            let matrix = &matrix[(first * stride).min(matrix.len())..];
            vector::dispatch(
                #[inline(always)]
                || columns(group, matrix, stride, (depth, valid), width, panel),
            );
        }
    }
}

#[inline(always)]
fn rows<E: Element>(
    group: Group,
    matrix: &[E],
    stride: usize,
    (depth, valid): (usize, usize),
    width: usize,
    panel: &mut [u32],
) {
    match group {
        Group::Single => {
            for (k, to) in panel.chunks_exact_mut(width).enumerate() {
                let (to, rest) = to.split_at_mut(valid);
                for (to, from) in to.iter_mut().zip(&matrix[k * stride..][..valid]) {
                    *to = from.to_f32().to_bits();
                }
                rest.fill(0);
            }
        }
        Group::Pair => {
            for (g, to) in panel.chunks_exact_mut(width).enumerate() {
                let (to, rest) = to.split_at_mut(valid);
                let low = &matrix[2 * g * stride..][..valid];
                if 2 * g + 1 < depth {
                    let high = &matrix[(2 * g + 1) * stride..][..valid];
                    for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                        *to = E::pair(*low, *high);
                    }
                } else {
                    for (to, low) in to.iter_mut().zip(low) {
                        *to = E::pair(*low, E::default());
                    }
                }
                rest.fill(0);
            }
        }
    }
}

/// Lanes that are transposed together: as many f32 as a cache line holds.
const BLOCK: usize = 16;

#[inline(always)]
fn columns<E: Element>(
    group: Group,
    matrix: &[E],
    stride: usize,
    (depth, valid): (usize, usize),
    width: usize,
    panel: &mut [u32],
) {
    let groups = group.count(depth);
    for lane in (0..width).step_by(BLOCK) {
        for g in (0..groups).step_by(BLOCK) {
            // A block of lanes × groups is read row by row, then written column by column.
            let mut block = [[0u32; BLOCK]; BLOCK];
            let (high, wide) = (BLOCK.min(width - lane), BLOCK.min(groups - g));
            for (i, row) in block.iter_mut().enumerate().take(high.min(valid.saturating_sub(lane))) {
                let from = &matrix[(lane + i) * stride..][..depth];
                match group {
                    Group::Single => {
                        for (to, from) in row.iter_mut().zip(&from[g..g + wide]) {
                            *to = from.to_f32().to_bits();
                        }
                    }
                    Group::Pair => {
                        let from = &from[2 * g..depth.min(2 * (g + wide))];
                        let (pairs, last) = from.as_chunks::<2>();
                        for (to, [low, high]) in row.iter_mut().zip(pairs) {
                            *to = E::pair(*low, *high);
                        }
                        if let [low] = last {
                            row[wide - 1] = E::pair(*low, E::default());
                        }
                    }
                }
            }
            for j in 0..wide {
                let to = &mut panel[(g + j) * width + lane..][..high];
                for (to, row) in to.iter_mut().zip(&block) {
                    *to = row[j];
                }
            }
        }
    }
}

/// [`pack`] with all threads.
pub(crate) fn pack_all<E: Element>(
    group: Group,
    order: Order,
    matrix: &[E],
    stride: usize,
    (depth, lanes): (usize, usize),
    width: usize,
    packed: &mut [u32],
) {
    let length = width * group.count(depth);
    assert!(packed.len() >= packed_len(group, depth, lanes, width), "no room for the packed operand");
    if length == 0 {
        return;
    }
    let panels = packed.par_chunks_exact_mut(length).take(lanes.div_ceil(width)).enumerate();
    // A task of at least 32,768 groups: below that waking a thread costs more than it saves.
    panels.with_min_len((32_768 / length).max(1)).for_each(|(p, panel)| {
        pack_panel(group, order, matrix, stride, (depth, lanes), width, p, panel);
    });
}
