//! The cache of prefixes: what pages hold of a sequence's beginning, for all stages of its path and for the first ones.
//!
//! Pages of all stages are read where they are. Of another page, a sequence copies what the stages that it shares have left,
//! because the later stages write keys and values of their own. They go on from the border behind the shared stages.
//!
//! Each client has a cache of its own in the common pages.

use dipaco_model::PAGE_TOKENS;

use super::pages::{Content, PagePool};
use super::{Plan, Scheduler, Sequence, SequenceId};
use crate::PageCopy;

impl Scheduler {
    /// True if a running sequence is about to compute the next page that this waiting one could read. Waiting for it is
    /// less work than computing it twice: choices of one prompt share its pages this way.
    pub(super) fn follows(&self, waiting: &Sequence, pages: &[u32]) -> bool {
        let end = (pages.len() + 1) * PAGE_TOKENS;
        if !waiting.reads_cache || end >= waiting.tokens.len() {
            return false;
        }
        self.running.iter().map(|id| &self.sequences[id]).any(|leader| {
            leader.client == waiting.client
                && leader.roots.last() == waiting.roots.last()
                && leader.computed < end
                && leader.tokens.get(..end) == waiting.tokens.get(..end)
        })
    }

    /// The pages that hold the beginning of a sequence, valid until a page is taken. At least one token is left to compute,
    /// because its logits give the next token.
    pub(super) fn cached(&self, sequence: &Sequence) -> Vec<u32> {
        let Some(&root) = sequence.roots.last() else { return Vec::new() };
        let most = sequence.cacheable().min(sequence.tokens.len() - 1) / PAGE_TOKENS;
        let (mut pages, mut before) = (Vec::new(), root);
        while pages.len() < most
            && let Some((page, content)) = self.pool.page_of(sequence, pages.len(), before)
        {
            pages.push(page);
            before = content;
        }
        pages
    }

    /// Gives a sequence fresh pages behind `pages`, with what the first stages of its path have left in pages of other paths.
    /// Returns the stages that its rows begin in, the last one first, each with the end of its tokens.
    pub(super) fn copy_stages(
        &mut self,
        id: SequenceId,
        pages: &mut Vec<u32>,
        plan: &mut Plan,
    ) -> Vec<(usize, usize)> {
        let mut begins = Vec::new();
        let Some(sequence) = self.sequences.get(&id) else { return begins };
        let most = sequence.cacheable() / PAGE_TOKENS;
        for stage in (1..sequence.roots.len()).rev() {
            let mut before = sequence.roots[stage - 1];
            for index in 0..most {
                let Some((from, content)) = self.pool.page_of(sequence, index, before) else { break };
                before = content;
                if index < pages.len() {
                    continue;
                }
                // Held, so that it is not taken itself.
                self.pool.hold(from);
                let to = self.pool.take();
                self.pool.release(from);
                let Some(to) = to else { break };
                plan.copies.push(PageCopy { from, to, stage });
                pages.push(to);
            }
            begins.push((stage, pages.len() * PAGE_TOKENS));
        }
        begins
    }
}

impl PagePool {
    /// The page with a page's tokens of a sequence behind a content.
    fn page_of(&self, sequence: &Sequence, index: usize, before: Content) -> Option<(u32, Content)> {
        self.find(sequence.client, before, sequence.page(index)?)
    }

    /// Records the contents of a sequence's full pages.
    pub(super) fn publish_all(&mut self, sequence: &mut Sequence) {
        let mut contents = std::mem::take(&mut sequence.contents);
        contents.resize_with(sequence.roots.len(), Vec::new);
        for (contents, root) in contents.iter_mut().zip(&sequence.roots) {
            for index in contents.len()..sequence.computed / PAGE_TOKENS {
                let before = contents.last().unwrap_or(root);
                let Some(tokens) = sequence.page(index) else { break };
                contents.push(self.publish(sequence.pages[index], sequence.client, *before, tokens));
            }
        }
        sequence.contents = contents;
    }
}
