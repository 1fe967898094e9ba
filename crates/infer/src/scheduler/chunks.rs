//! Sequences whose path is chosen anew after each chunk.

use dipaco_model::PAGE_TOKENS;

use super::{Plan, Scheduler, SequenceId};
use crate::PageCopy;

impl Scheduler {
    /// True if the sequence has not ended.
    pub(crate) fn contains(&self, id: SequenceId) -> bool {
        self.sequences.contains_key(&id)
    }

    /// The first `count` tokens of a sequence.
    pub(crate) fn first_tokens(&self, id: SequenceId, count: usize) -> &[u32] {
        self.sequences.get(&id).and_then(|sequence| sequence.tokens.get(..count)).unwrap_or(&[])
    }

    /// The path of the next chunk is that of the last.
    pub(crate) fn stay(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Some(chunks) = &mut sequence.chunks
        {
            chunks.end = chunks.end.saturating_add(chunks.every);
            sequence.routing = false;
        }
    }

    /// The next chunk has another path. The sequence waits until it is [`ready`](Self::ready) again, and holds no pages.
    pub(crate) fn leave(&mut self, id: SequenceId) {
        self.stay(id);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.leave();
        }
        if self.running.contains(&id) {
            self.preempt(id, &mut Plan::default(), &mut 0);
        }
    }

    /// Gives a sequence that begins a path fresh pages with what is left of its pages on the path before, from page number
    /// `pages.len()` on.
    pub(super) fn keep(&mut self, id: SequenceId, pages: &mut Vec<u32>, plan: &mut Plan) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let begin = pages.len();
        while let Some((before, tokens)) = sequence.left_page(pages.len())
            && let Some((from, _)) = self.pool.find(before, tokens)
        {
            // Held, so that it is not taken itself.
            self.pool.hold(from);
            let to = self.pool.take();
            self.pool.release(from);
            let Some(to) = to else { break };
            plan.copies.push(PageCopy { from, to, stage: sequence.left.shared });
            pages.push(to);
        }
        sequence.left.tokens = if pages.len() > begin { pages.len() * PAGE_TOKENS } else { 0 };
    }
}
