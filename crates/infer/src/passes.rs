//! The texts that the router reads next.
//!
//! A pass reads the first tokens of many texts, or all tokens before one chunk. The second kind may take much longer, so the
//! two take turns: nobody waits for all chunks of the others. Within a kind, clients take turns as in the scheduler: the next
//! text is that of the client for which the router has read the fewest tokens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::shared::{Question, Unrouted};

/// Prefixes of sequences that one pass reads, and prefixes of questions.
const MOST: usize = 64;

/// The texts that a pass of the router reads.
pub(crate) enum Pass {
    /// The first tokens of texts.
    Prefixes(BTreeSet<Arc<[u32]>>),
    /// All tokens before a chunk.
    Chunk(Arc<[u32]>),
}

/// The order of passes.
#[derive(Default)]
pub(crate) struct Passes {
    prefixes: Turns,
    chunks: Turns,
    /// True if the last pass read prefixes.
    read_prefixes: bool,
}

impl Passes {
    /// The next pass; `None` if nobody waits for one.
    pub(crate) fn next(
        &mut self,
        unrouted: &VecDeque<Unrouted>,
        questions: &VecDeque<Question>,
    ) -> Option<Pass> {
        let pass = if self.read_prefixes {
            self.next_chunk(unrouted).or_else(|| self.next_prefixes(unrouted, questions))
        } else {
            self.next_prefixes(unrouted, questions).or_else(|| self.next_chunk(unrouted))
        };
        self.read_prefixes = matches!(pass, Some(Pass::Prefixes(_)));
        pass
    }

    fn next_prefixes(
        &mut self,
        unrouted: &VecDeque<Unrouted>,
        questions: &VecDeque<Question>,
    ) -> Option<Pass> {
        let of_questions = questions.iter().take(MOST);
        let mut prefixes: BTreeSet<Arc<[u32]>> =
            of_questions.map(|question| Arc::clone(&question.prefix)).collect();
        let waiting =
            unrouted.iter().filter_map(|sequence| Some((sequence.client, sequence.asked.prefix()?)));
        let mut waiting: Vec<(u64, &Arc<[u32]>)> = waiting.collect();
        let most = prefixes.len() + MOST;
        while prefixes.len() < most
            && let Some(prefix) = self.prefixes.next(waiting.iter().copied())
        {
            waiting.retain(|(_, other)| *other != prefix);
            prefixes.insert(Arc::clone(prefix));
        }
        (!prefixes.is_empty()).then_some(Pass::Prefixes(prefixes))
    }

    fn next_chunk(&mut self, unrouted: &VecDeque<Unrouted>) -> Option<Pass> {
        let waiting = unrouted.iter().filter_map(|sequence| Some((sequence.client, sequence.asked.chunk()?)));
        self.chunks.next(waiting).map(|tokens| Pass::Chunk(Arc::clone(tokens)))
    }
}

/// The tokens that the router has read for each client.
#[derive(Default)]
struct Turns {
    /// Tokens of the clients with more than `level`.
    read: BTreeMap<u64, u64>,
    /// Tokens of the client with the last turn, before that turn. A client that was away gets no credit for it: it counts as
    /// if it had at least these.
    level: u64,
}

impl Turns {
    /// The first text of the client with the fewest tokens.
    fn next<'a>(&mut self, waiting: impl Iterator<Item = (u64, &'a Arc<[u32]>)>) -> Option<&'a Arc<[u32]>> {
        let read = |client: u64| self.read.get(&client).copied().unwrap_or(self.level);
        let (client, text) = waiting.min_by_key(|(client, _)| read(*client))?;
        let level = read(client);
        self.level = level;
        self.read.retain(|_, read| *read > level);
        self.read.insert(client, level + text.len() as u64);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clients of the next turns, while clients wait with one text for each entry of `waiting`.
    fn next(turns: &mut Turns, count: usize, waiting: &[u32]) -> Vec<u32> {
        let texts: Vec<Arc<[u32]>> = waiting.iter().map(|&client| [client; 10].into()).collect();
        let waiting = || texts.iter().map(|text| (u64::from(text[0]), text));
        (0..count).filter_map(|_| turns.next(waiting()).map(|text| text[0])).collect()
    }

    #[test]
    fn clients_take_turns_and_get_no_credit_for_the_time_before() {
        let mut turns = Turns::default();
        assert!(next(&mut turns, 3, &[]).is_empty());
        assert_eq!(next(&mut turns, 5, &[1]), [1; 5]);
        assert_eq!(next(&mut turns, 5, &[1, 1, 2]), [2, 1, 2, 1, 2]);
        // Clients that were away for long are forgotten.
        assert_eq!(next(&mut turns, 9, &[3]), [3; 9]);
        assert_eq!(turns.read.keys().collect::<Vec<_>>(), [&3]);
        assert_eq!(next(&mut turns, 4, &[3, 1, 1]), [1, 3, 1, 3]);
    }
}
