//! Causal attention, block by block (arXiv:2205.14135): the T × T scores are never in memory.

mod backward;
mod forward;
pub(crate) mod paged;

use rayon::prelude::*;

use crate::element::Element;
use crate::product::{Group, LeftRows, Shared};
use crate::rope::RopeTable;
use crate::vector::convert;

/// The shape of attention within one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    /// T.
    pub(crate) time: usize,
    /// H.
    pub(crate) heads: usize,
    /// Hkv.
    pub(crate) kv_heads: usize,
    /// Dh.
    pub(crate) head_dim: usize,
}

impl AttentionShape {
    /// H × Dh.
    fn width(self) -> usize {
        self.heads * self.head_dim
    }

    /// (H + 2 · Hkv) × Dh.
    fn qkv_width(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// H / Hkv, the query heads of a group.
    fn members(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Where the row of one head and position begins in an array (B, T, H + 2 · Hkv, Dh) of queries, keys and values.
    fn qkv_row(self, part: Part, task: GroupTask, t: usize) -> usize {
        let head = match part {
            Part::Query { member } => task.group * self.members() + member,
            Part::Key => self.heads + task.group,
            Part::Value => self.heads + self.kv_heads + task.group,
        };
        (task.sequence * self.time + t) * self.qkv_width() + head * self.head_dim
    }

    /// Where the row of a group's query head and position begins in an array (B, T, H, Dh).
    fn row(self, task: GroupTask, member: usize, t: usize) -> usize {
        let head = task.group * self.members() + member;
        (task.sequence * self.time + t) * self.width() + head * self.head_dim
    }
}

/// The rows of a group in an array (B, T, H + 2 · Hkv, Dh).
#[derive(Clone, Copy)]
enum Part {
    /// A query head of the group.
    Query {
        member: usize,
    },
    Key,
    Value,
}

/// One head of keys and values of one sequence, and the query heads that share it.
#[derive(Clone, Copy)]
struct GroupTask {
    sequence: usize,
    group: usize,
}

impl GroupTask {
    /// Groups are numbered like the chunks of H / Hkv rows of `log_sums` (B, H, T).
    fn new(number: usize, shape: AttentionShape) -> Self {
        Self { sequence: number / shape.kv_heads, group: number % shape.kv_heads }
    }
}

/// The rows (T, Dh) of one head in an array of several: row `t` begins at `t * stride`.
#[derive(Clone, Copy)]
struct HeadRows<'a, E> {
    data: &'a [E],
    stride: usize,
    head_dim: usize,
}

impl<'a, E: Element> HeadRows<'a, E> {
    fn row(&self, t: usize) -> &'a [E] {
        &self.data[t * self.stride..][..self.head_dim]
    }

    /// `count` rows from row `t` on as rows of a left operand.
    fn left(&self, t: usize, count: usize) -> LeftRows<'a, E> {
        LeftRows { data: &self.data[t * self.stride..], count, depth: self.head_dim, stride: self.stride }
    }
}

fn scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// `softmax(q · kᵀ / sqrt(Dh)) · v` with a causal mask for qkv (B, T, H + 2 · Hkv, Dh) and y (B, T, H, Dh). Writes the
/// logarithm of each row's sum of exponentials to `log_sums` (B, H, T).
pub(crate) fn forward_all<E: Element>(qkv: &[E], y: &mut [E], log_sums: &mut [f32], shape: AttentionShape) {
    let AttentionShape { time, head_dim, .. } = shape;
    let y = Shared::new(y);
    log_sums.par_chunks_mut(time).enumerate().for_each(|(number, log_sums)| {
        let (task, member) = (GroupTask::new(number / shape.members(), shape), number % shape.members());
        let rows = |part| HeadRows {
            data: &qkv[shape.qkv_row(part, task, 0)..],
            stride: shape.qkv_width(),
            head_dim,
        };
        let input = forward::HeadInput {
            q: rows(Part::Query { member }),
            k: rows(Part::Key),
            v: rows(Part::Value),
            queries: time,
            keys: time,
        };
        forward::head(input, log_sums, |t, row| {
            let at = shape.row(task, member, t);
            // SAFETY: each task writes the columns of its own sequence and head.
            convert(row, unsafe { y.part(at..at + head_dim) });
        });
    });
}

/// Replaces qkv (B, T, H + 2 · Hkv, Dh) by its gradient, given y (B, T, H, Dh), its gradient `dy` and the `log_sums`
/// (B, H, T) of [`forward_all`]. The gradients of queries and keys are rotated back.
pub(crate) fn backward_all<E: Element>(
    qkv: &mut [E],
    y: &[E],
    dy: &[E],
    log_sums: &[f32],
    rope: &RopeTable,
    shape: AttentionShape,
) {
    let AttentionShape { time, head_dim, .. } = shape;
    let qkv = Shared::new(qkv);
    // A group is one task: its query heads add to the gradients of the same keys and values.
    log_sums.par_chunks(time * shape.members()).enumerate().for_each(|(number, log_sums)| {
        let task = GroupTask::new(number, shape);
        let results = log_sums.chunks_exact(time).enumerate().map(|(member, log_sums)| {
            let from = shape.row(task, member, 0);
            let rows = |data| HeadRows { data, stride: shape.width(), head_dim };
            backward::HeadResult { y: rows(&y[from..]), dy: rows(&dy[from..]), log_sums }
        });
        let row = |part: Part, t: usize| {
            let at = shape.qkv_row(part, task, t);
            // SAFETY: each task reads and writes the columns of its own sequence and group, one row at a time.
            unsafe { qkv.part(at..at + head_dim) }
        };
        backward::group(&row, results, rope, time);
    });
}

/// The next even number of elements where groups are pairs: the elements of the last pair must both be there.
fn even(group: Group, elements: usize) -> usize {
    match group {
        Group::Single => elements,
        Group::Pair => elements.next_multiple_of(2),
    }
}
