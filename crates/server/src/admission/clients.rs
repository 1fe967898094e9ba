//! The admitted work of each client.

use std::collections::BTreeMap;

use super::Asked;

/// The clients with admitted sequences that have not ended.
#[derive(Debug, Default)]
pub(super) struct Clients(BTreeMap<u64, Client>);

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    sequences: usize,
    tokens: u64,
}

/// The admitted work of one client, among that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Tokens of its admitted sequences that have not ended: prompts and `max_tokens`, also those that are done.
    pub(super) tokens: u64,
    /// Number of clients with such sequences, this one included even if it has none.
    pub(super) clients: usize,
}

impl Clients {
    pub(super) fn add(&mut self, asked: Asked) {
        let client = self.0.entry(asked.client).or_default();
        client.sequences += asked.sequences;
        client.tokens += asked.tokens;
    }

    pub(super) fn take(&mut self, asked: Asked) {
        let Some(client) = self.0.get_mut(&asked.client) else { return };
        client.sequences = client.sequences.saturating_sub(asked.sequences);
        client.tokens = client.tokens.saturating_sub(asked.tokens);
        if client.sequences == 0 {
            self.0.remove(&asked.client);
        }
    }

    pub(super) fn share(&self, client: u64) -> Share {
        let own = self.0.get(&client);
        let tokens = own.map_or(0, |own| own.tokens);
        Share { tokens, clients: self.0.len() + usize::from(own.is_none()) }
    }
}
