//! What documents are about, as a label file says.

use std::collections::HashMap;

use dipaco_shards::{TokenFile, Tokens};

/// Name of the domain of documents without a label.
pub const UNLABELLED: &str = "(no label)";

/// The domains of the documents of a token file. A document is known by its tokens, so it keeps its label wherever a
/// router puts it and however its file was made. For measuring only: nothing that chooses a path sees it.
#[derive(Clone, Debug)]
pub struct Domains {
    names: Vec<String>,
    known: HashMap<[u8; 16], Option<usize>>,
    unlabelled: usize,
}

impl Domains {
    /// The documents of a file, none of which has a label yet. Memory: some 40 bytes for each.
    #[must_use]
    pub fn of_documents(file: &TokenFile) -> Self {
        let keys = (0..file.documents()).map(|document| (key(file.document(document).iter()), None));
        let known: HashMap<_, _> = keys.collect();
        Self { names: Vec::new(), unlabelled: known.len(), known }
    }

    /// Labels a document with these tokens, its end-of-text token included. One that is not among the documents is left
    /// out; of several labels of equal documents the first counts.
    pub fn label(&mut self, tokens: &[u32], domain: &str) {
        let Some(own) = self.known.get_mut(&key(tokens.iter().copied())).filter(|own| own.is_none()) else {
            return;
        };
        let index = self.names.iter().position(|name| name == domain).unwrap_or_else(|| {
            self.names.push(domain.to_owned());
            self.names.len() - 1
        });
        *own = Some(index);
        self.unlabelled -= 1;
    }

    /// The domain of a document.
    #[must_use]
    pub fn of(&self, tokens: Tokens<'_>) -> Option<&str> {
        let index = self.known.get(&key(tokens.iter())).copied()??;
        self.names.get(index).map(String::as_str)
    }

    /// How many different documents there are.
    #[must_use]
    pub fn documents(&self) -> usize {
        self.known.len()
    }

    /// How many of them have no label.
    #[must_use]
    pub fn unlabelled(&self) -> usize {
        self.unlabelled
    }
}

/// A part of the hash of a document's tokens: 128 bits are enough that two documents never share them.
fn key(tokens: impl Iterator<Item = u32>) -> [u8; 16] {
    let bytes: Vec<u8> = tokens.flat_map(u32::to_le_bytes).collect();
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..16]);
    key
}
