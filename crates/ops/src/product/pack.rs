//! Packing operands into the order in which the kernels read them.

use rayon::prelude::*;

use super::kernel::transpose;
use super::tile::BLOCK;
use super::{Group, MR, Matrix, NR, Order, Shared};
use crate::element::Element;
use crate::vector;

/// Rows of the panels of an outer product with the vector kernels.
const PANEL: usize = 4 * MR;
/// Rows of its tall panels.
const TALL: usize = 2 * PANEL;

/// Groups of a task: with fewer, waking a thread costs more than it saves.
const TASK: usize = 1 << 15;

/// Number of groups in the panels of `width` lanes that hold a matrix of `depth` × `lanes` elements.
pub(crate) fn packed_len(group: Group, depth: usize, lanes: usize, width: usize) -> usize {
    lanes.div_ceil(width) * width * group.count(depth)
}

/// Packs a matrix into panels of `width` lanes, in this thread. A panel holds its groups one after the other, a group its
/// lanes one after the other. Lanes and elements past the matrix are zero.
///
/// # Panics
/// When the matrix or the panels are longer than their slices.
pub(super) fn pack<E: Element>(group: Group, matrix: Matrix<'_, E>, width: usize, packed: &mut [u32]) {
    let length = width * group.count(matrix.depth);
    let whole = packed_len(group, matrix.depth, matrix.lanes, width);
    assert!(packed.len() >= whole, "no room for the packed operand");
    if length == 0 {
        return;
    }
    let panels = matrix.lanes.div_ceil(width);
    for (p, panel) in packed.chunks_exact_mut(length).take(panels).enumerate() {
        pack_panel(group, matrix, width, p, panel);
    }
}

/// [`pack`] with all threads.
pub(crate) fn pack_all<E: Element>(group: Group, matrix: Matrix<'_, E>, width: usize, packed: &mut [u32]) {
    let Matrix { data, order, stride, depth, lanes } = matrix;
    let (groups, panels) = (group.count(depth), lanes.div_ceil(width));
    let length = width * groups;
    assert!(packed.len() >= panels * length, "no room for the packed operand");
    if length == 0 {
        return;
    }
    match order {
        // A task packs a few rows across all panels, so that it reads them from start to end.
        Order::Rows => {
            let per_group = group.elements();
            let packed = Shared::new(&mut packed[..panels * length]);
            let tasks = (0..groups.div_ceil(BLOCK)).into_par_iter();
            tasks.with_min_len((TASK / (BLOCK * lanes)).max(1)).for_each(|task| {
                let first = task * BLOCK;
                let depth = (BLOCK * per_group).min(depth - first * per_group);
                let own = Matrix { data: &data[first * per_group * stride..], depth, ..matrix };
                // SAFETY: each task writes its own groups of every panel.
                unsafe { rows_by_width(group, own, width, &packed, GroupsPlace { first, panel: length }) };
            });
        }
        Order::Columns => {
            let panels = packed.par_chunks_exact_mut(length).take(panels).enumerate();
            panels
                .with_min_len((TASK / length).max(1))
                .for_each(|(p, panel)| pack_panel(group, matrix, width, p, panel));
        }
    }
}

/// Packs panel number `p`: see [`pack`].
fn pack_panel<E: Element>(group: Group, matrix: Matrix<'_, E>, width: usize, p: usize, panel: &mut [u32]) {
    let first = p * width;
    let lanes = width.min(matrix.lanes - first);
    let own = |data| Matrix { data, lanes, ..matrix };
    match matrix.order {
        Order::Rows => {
            let own = own(&matrix.data[first.min(matrix.data.len())..]);
            let panel = Shared::new(panel);
            // SAFETY: the panel is borrowed exclusively.
            unsafe { rows_by_width(group, own, width, &panel, GroupsPlace { first: 0, panel: 0 }) };
        }
        Order::Columns => {
            let own = own(&matrix.data[(first * matrix.stride).min(matrix.data.len())..]);
            vector::dispatch(
                #[inline(always)]
                || columns(group, own, width, panel),
            );
        }
    }
}

/// Where some groups go in a series of panels.
#[derive(Clone, Copy)]
struct GroupsPlace {
    /// Number of the first group in each panel.
    first: usize,
    /// Groups times lanes of a panel: from the start of one panel to the next.
    panel: usize,
}

/// Calls [`rows`] with a width that is known to the compiler when products use it often.
///
/// # Safety
/// As [`rows`].
unsafe fn rows_by_width<E: Element>(
    group: Group,
    matrix: Matrix<'_, E>,
    width: usize,
    packed: &Shared<u32>,
    place: GroupsPlace,
) {
    vector::dispatch(
        #[inline(always)]
        // SAFETY: passed on.
        || unsafe {
            match width {
                NR => rows(group, matrix, NR, packed, place),
                PANEL => rows(group, matrix, PANEL, packed, place),
                TALL => rows(group, matrix, TALL, packed, place),
                _ => rows(group, matrix, width, packed, place),
            }
        },
    );
}

/// Packs a matrix of [`Order::Rows`]: its group g goes to group `place.first + g` of each panel. Each row is read from
/// start to end, because the processor fetches memory ahead in that order.
///
/// # Safety
/// No other thread may use these groups of the panels meanwhile.
#[inline(always)]
unsafe fn rows<E: Element>(
    group: Group,
    matrix: Matrix<'_, E>,
    width: usize,
    packed: &Shared<u32>,
    place: GroupsPlace,
) {
    let lanes = matrix.lanes;
    for (p, first) in (0..lanes).step_by(width).enumerate() {
        for g in 0..group.count(matrix.depth) {
            let at = p * place.panel + (place.first + g) * width;
            // SAFETY: this group of this panel is ours by this function's contract.
            let to = unsafe { packed.part(at..at + width) };
            // A branch of its own for whole panels: the compiler knows their length.
            if first + width <= lanes {
                pack_group(group, matrix, g, first, to);
            } else {
                let (to, rest) = to.split_at_mut(lanes - first);
                pack_group(group, matrix, g, first, to);
                rest.fill(0);
            }
        }
    }
}

/// Packs group g of the lanes from `first` on, as many as `to` has room for.
#[inline(always)]
pub(super) fn pack_group<E: Element>(
    group: Group,
    matrix: Matrix<'_, E>,
    g: usize,
    first: usize,
    to: &mut [u32],
) {
    let Matrix { data, stride, depth, .. } = matrix;
    match group {
        Group::Single => {
            let from = &data[g * stride + first..][..to.len()];
            for_lines(to, from, from, |from, _| from.to_f32().to_bits());
        }
        Group::Pair => {
            let low = &data[2 * g * stride + first..][..to.len()];
            if 2 * g + 1 < depth {
                let high = &data[(2 * g + 1) * stride + first..][..to.len()];
                for_lines(to, low, high, E::pair);
            } else {
                // The last element of an odd depth is paired with zero, which adds nothing to a sum.
                for_lines(to, low, low, |low, _| E::pair(low, E::default()));
            }
        }
    }
}

/// Writes `of(a, b)` of each two elements.
#[inline(always)]
fn for_lines<E: Element>(to: &mut [u32], a: &[E], b: &[E], of: impl Fn(E, E) -> u32) {
    // The panels' widths are multiples of 16.
    let ((to, to_rest), (a, a_rest), (b, b_rest)) =
        (to.as_chunks_mut::<NR>(), a.as_chunks::<NR>(), b.as_chunks::<NR>());
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        one_line(to, *a, *b, &of);
    }
    let ((to, to_rest), (a, a_rest), (b, b_rest)) =
        (to_rest.as_chunks_mut::<BLOCK>(), a_rest.as_chunks::<BLOCK>(), b_rest.as_chunks::<BLOCK>());
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        one_line(to, *a, *b, &of);
    }
    for ((to, a), b) in to_rest.iter_mut().zip(a_rest).zip(b_rest) {
        *to = of(*a, *b);
    }
}

/// A part of [`for_lines`]. It reads copies and writes at the end: the compiler can't know that slices differ from each other,
/// and computes an unrolled loop over them element by element.
#[inline(always)]
fn one_line<E: Element, const N: usize>(to: &mut [u32; N], a: [E; N], b: [E; N], of: &impl Fn(E, E) -> u32) {
    let mut line = [0u32; N];
    for i in 0..N {
        line[i] = of(a[i], b[i]);
    }
    *to = line;
}

/// Packs a matrix of [`Order::Columns`] of at most `width` lanes into one panel.
#[inline(always)]
fn columns<E: Element>(group: Group, matrix: Matrix<'_, E>, width: usize, panel: &mut [u32]) {
    let Matrix { data, stride, depth, lanes, .. } = matrix;
    let groups = group.count(depth);
    for lane in (0..width).step_by(BLOCK) {
        for g in (0..groups).step_by(BLOCK) {
            // A block of lanes × groups is read lane by lane, transposed in registers and written group by group, so that
            // both sides are contiguous.
            let mut block = [[0u32; BLOCK]; BLOCK];
            let (high, wide) = (BLOCK.min(width - lane), BLOCK.min(groups - g));
            for (i, row) in block.iter_mut().enumerate().take(high.min(lanes.saturating_sub(lane))) {
                lane_groups(group, &data[(lane + i) * stride..][..depth], g, row);
            }
            transpose(&mut block);
            for (j, from) in block.iter().enumerate().take(wide) {
                let to = &mut panel[(g + j) * width + lane..][..high];
                // A copy of known length for whole blocks, which nearly all are.
                if let Ok(to) = <&mut [u32; BLOCK]>::try_from(&mut *to) {
                    *to = *from;
                } else {
                    to.copy_from_slice(&from[..high]);
                }
            }
        }
    }
}

/// Copies the groups of a lane from group g on to `row`, as many as there are or as it has room for.
#[inline(always)]
fn lane_groups<E: Element>(group: Group, lane: &[E], g: usize, row: &mut [u32; BLOCK]) {
    // Branches of their own for whole rows: the compiler knows their length.
    match group {
        Group::Single => match lane[g..].first_chunk::<BLOCK>() {
            Some(from) => *row = from.map(|from| from.to_f32().to_bits()),
            None => {
                for (to, from) in row.iter_mut().zip(&lane[g..]) {
                    *to = from.to_f32().to_bits();
                }
            }
        },
        Group::Pair => match lane[2 * g..].first_chunk::<{ 2 * BLOCK }>() {
            Some(from) => {
                *row = std::array::from_fn(
                    #[inline(always)]
                    |i| E::pair(from[2 * i], from[2 * i + 1]),
                );
            }
            None => {
                let (pairs, last) = lane[2 * g..].as_chunks::<2>();
                for (to, [low, high]) in row.iter_mut().zip(pairs) {
                    *to = E::pair(*low, *high);
                }
                if let [low] = last {
                    row[pairs.len()] = E::pair(*low, E::default());
                }
            }
        },
    }
}
