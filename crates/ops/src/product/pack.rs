//! Packing operands: the order in which the kernels read them.

use rayon::prelude::*;

use super::kernel::{BLOCK, transpose};
use super::{Group, NR, PANEL, Shared};
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
            let panel = Shared::new(panel);
            // SAFETY: the panel is borrowed exclusively.
            unsafe { rows_by_width(group, matrix, stride, (depth, valid), width, &panel, (0, 0)) };
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

/// [`rows`] with the width known to the compiler where it is one that products use.
///
/// # Safety
/// As [`rows`].
unsafe fn rows_by_width<E: Element>(
    group: Group,
    matrix: &[E],
    stride: usize,
    sizes: (usize, usize),
    width: usize,
    packed: &Shared<u32>,
    place: (usize, usize),
) {
    vector::dispatch(
        #[inline(always)]
        // SAFETY: passed on.
        || unsafe {
            match width {
                NR => rows(group, matrix, stride, sizes, NR, packed, place),
                PANEL => rows(group, matrix, stride, sizes, PANEL, packed, place),
                TALL => rows(group, matrix, stride, sizes, TALL, packed, place),
                _ => rows(group, matrix, stride, sizes, width, packed, place),
            }
        },
    );
}

/// Packs all lanes of a few groups: group g of panel p goes to `p * length + (first + g) * width`, where place is
/// (first, length). Rows are read one after the other, as far as they go, which is the order that the processor fetches
/// memory ahead in.
///
/// # Safety
/// Nobody else may use these groups of the panels meanwhile.
#[inline(always)]
unsafe fn rows<E: Element>(
    group: Group,
    matrix: &[E],
    stride: usize,
    (depth, lanes): (usize, usize),
    width: usize,
    packed: &Shared<u32>,
    (first_group, length): (usize, usize),
) {
    for (p, first) in (0..lanes).step_by(width).enumerate() {
        for g in 0..group.count(depth) {
            let at = p * length + (first_group + g) * width;
            // SAFETY: this group of this panel is ours by this function's contract.
            let to = unsafe { packed.part(at..at + width) };
            // Whole panels have a length that the compiler knows.
            if first + width <= lanes {
                pack_group(group, matrix, stride, depth, g, first, to);
            } else {
                let (to, rest) = to.split_at_mut(lanes - first);
                pack_group(group, matrix, stride, depth, g, first, to);
                rest.fill(0);
            }
        }
    }
}

/// Packs group g of the lanes from `first` on.
#[inline(always)]
fn pack_group<E: Element>(
    group: Group,
    matrix: &[E],
    stride: usize,
    depth: usize,
    g: usize,
    first: usize,
    to: &mut [u32],
) {
    match group {
        Group::Single => {
            let from = &matrix[g * stride + first..][..to.len()];
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.to_f32().to_bits();
            }
        }
        Group::Pair => {
            let low = &matrix[2 * g * stride + first..][..to.len()];
            if 2 * g + 1 < depth {
                let high = &matrix[(2 * g + 1) * stride + first..][..to.len()];
                for ((to, low), high) in to.iter_mut().zip(low).zip(high) {
                    *to = E::pair(*low, *high);
                }
            } else {
                for (to, low) in to.iter_mut().zip(low) {
                    *to = E::pair(*low, E::default());
                }
            }
        }
    }
}

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
            transpose(&mut block);
            for (j, from) in block.iter().enumerate().take(wide) {
                let to = &mut panel[(g + j) * width + lane..][..high];
                if let Ok(to) = <&mut [u32; BLOCK]>::try_from(&mut *to) {
                    *to = *from;
                } else {
                    to.copy_from_slice(&from[..high]);
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
    let (groups, panels) = (group.count(depth), lanes.div_ceil(width));
    let length = width * groups;
    assert!(packed.len() >= panels * length, "no room for the packed operand");
    if length == 0 {
        return;
    }
    match order {
        // A task takes a few rows across all panels.
        Order::Rows => {
            let per_group = group.elements();
            let packed = Shared::new(&mut packed[..panels * length]);
            let tasks = (0..groups.div_ceil(BLOCK)).into_par_iter();
            tasks.with_min_len((TASK / (BLOCK * lanes)).max(1)).for_each(|task| {
                let first = task * BLOCK;
                let depth = (BLOCK * per_group).min(depth - first * per_group);
                let matrix = &matrix[first * per_group * stride..];
                let sizes = (depth, lanes);
                // SAFETY: each task writes its own groups of every panel.
                unsafe { rows_by_width(group, matrix, stride, sizes, width, &packed, (first, length)) };
            });
        }
        Order::Columns => {
            let panels = packed.par_chunks_exact_mut(length).take(panels).enumerate();
            panels.with_min_len((TASK / length).max(1)).for_each(|(p, panel)| {
                pack_panel(group, order, matrix, stride, (depth, lanes), width, p, panel);
            });
        }
    }
}

/// Rows of the tall panels of an outer product.
const TALL: usize = 2 * PANEL;

/// Groups of a task: with fewer, waking a thread costs more than it saves.
const TASK: usize = 1 << 15;
