//! The order in which waiting sequences get free places.

use super::{Scheduler, Sequence, SequenceId};

impl Scheduler {
    /// The waiting sequence that is next, with the pages that hold its beginning: of the least served client, the first in
    /// turn.
    pub(super) fn next_waiting(&self) -> Option<(SequenceId, Vec<u32>)> {
        let served =
            |sequence: &Sequence| self.clients.get(&sequence.client).map_or(0, |client| client.served);
        let waiting =
            self.sequences.iter().filter(|(_, sequence)| !sequence.running && !sequence.roots.is_empty());
        let mut waiting: Vec<_> =
            waiting.map(|(id, sequence)| (served(sequence), sequence.turn, *id)).collect();
        waiting.sort_unstable();
        waiting.into_iter().find_map(|(.., id)| {
            let sequence = &self.sequences[&id];
            let pages = self.cached(sequence);
            (!self.follows(sequence, &pages)).then_some((id, pages))
        })
    }

    /// Gives the turns of a client's waiting sequences to them in the order of their priorities, and of their arrivals among
    /// equals. They only trade turns, so priorities gain a client nothing over the others.
    pub(super) fn order(&mut self, client: u64) {
        let waiting =
            self.sequences.iter().filter(|(_, sequence)| sequence.client == client && !sequence.running);
        let mut waiting: Vec<(i32, SequenceId)> =
            waiting.map(|(&id, sequence)| (sequence.priority, id)).collect();
        waiting.sort_unstable();
        let mut turns: Vec<u64> = waiting.iter().map(|(_, id)| self.sequences[id].turn).collect();
        turns.sort_unstable();
        for ((_, id), turn) in waiting.into_iter().zip(turns) {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.turn = turn;
            }
        }
    }
}
