//! Pages for the tokens of a step, taken from younger sequences where none is left.

use dipaco_model::PAGE_TOKENS;

use super::{Plan, Scheduler, SequenceId};

impl Scheduler {
    /// Gives a sequence pages for its first `end` tokens. Takes them from the youngest sequences if there are none left,
    /// at last from itself. Returns how many tokens have pages.
    pub(super) fn make_room(
        &mut self,
        id: SequenceId,
        end: usize,
        plan: &mut Plan,
        budget: &mut usize,
    ) -> usize {
        loop {
            let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.running) else {
                return 0;
            };
            if sequence.pages.len() * PAGE_TOKENS >= end {
                return end;
            }
            if let Some(page) = self.pool.take() {
                sequence.pages.push(page);
                continue;
            }
            let Some(&youngest) = self.running.last() else { return 0 };
            self.preempt(youngest, plan, budget);
        }
    }

    /// Sends a running sequence back to the queue.
    pub(super) fn preempt(&mut self, id: SequenceId, plan: &mut Plan, budget: &mut usize) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let pages = std::mem::take(&mut sequence.pages);
        sequence.contents.clear();
        sequence.begins.clear();
        sequence.computed = 0;
        sequence.running = false;
        self.load.running -= 1;
        self.load.waiting += 1;
        self.load.waiting_tokens += sequence.prompt;
        self.running.remove(&id);
        self.release(&pages);
        plan.rows.retain(|rows| {
            let keep = rows.id != id;
            *budget += if keep { 0 } else { rows.tokens.len() };
            keep
        });
        plan.started.retain(|started| started.0 != id);
        plan.preempted.push(id);
    }
}
