//! What documents are about, as a label file says.

use std::collections::HashMap;

use dipaco_shards::Tokens;

/// Name of the domain of documents without a label.
pub const UNLABELLED: &str = "(no label)";

/// The domains of documents. A document is known by its tokens, so it keeps its label wherever a router puts it and
/// however its file was made. For measuring only: nothing that chooses a path sees it.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    names: Vec<String>,
    known: HashMap<[u8; 16], u32>,
}

impl Domains {
    /// Labels a document. The first label of a document that comes several times counts.
    pub fn insert(&mut self, tokens: impl Iterator<Item = u32>, domain: &str) {
        let index = self.names.iter().position(|name| name == domain).unwrap_or_else(|| {
            self.names.push(domain.to_owned());
            self.names.len() - 1
        });
        // Far fewer than 2^32 names fit into the memory that holds them.
        self.known.entry(key(tokens)).or_insert(u32::try_from(index).unwrap_or(u32::MAX));
    }

    /// The domain of a document with these tokens, its end-of-text token included.
    #[must_use]
    pub fn of(&self, tokens: Tokens<'_>) -> Option<&str> {
        let index = *self.known.get(&key(tokens.iter()))?;
        self.names.get(index as usize).map(String::as_str)
    }

    /// How many documents have a label.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no document has a label.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// A part of the hash of a document's tokens: 128 bits are enough that two documents never share them.
fn key(tokens: impl Iterator<Item = u32>) -> [u8; 16] {
    let bytes: Vec<u8> = tokens.flat_map(u32::to_le_bytes).collect();
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..16]);
    key
}
