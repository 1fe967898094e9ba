//! Sequences whose path is chosen anew after each chunk.

use super::{Plan, Scheduler, SequenceId};

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
            sequence.roots.clear();
        }
        if self.running.contains(&id) {
            self.preempt(id, &mut Plan::default(), &mut 0);
        }
    }
}
