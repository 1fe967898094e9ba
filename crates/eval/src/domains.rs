//! Domains of documents, given by a label file.

use std::collections::HashMap;

use dipaco_shards::{TokenSet, Tokens};

/// Name of the domain of documents without a label.
pub const UNLABELLED: &str = "(no label)";

/// The domains of the documents of a token file. A document is identified by its tokens, so it keeps its label in every
/// shard and every file. Labels are for measuring only: no router sees them.
#[derive(Clone, Debug)]
pub struct Domains {
    names: Vec<String>,
    /// The place of each name in `names`.
    places: HashMap<String, usize>,
    known: HashMap<[u8; 16], Option<usize>>,
    unlabelled: usize,
}

impl Domains {
    /// The documents of a file, all without a label. Takes about 40 bytes of memory a document.
    #[must_use]
    pub fn of_documents(file: &TokenSet) -> Self {
        let keys = (0..file.documents()).map(|document| (key(file.document(document).iter()), None));
        let known: HashMap<_, _> = keys.collect();
        Self { names: Vec::new(), places: HashMap::new(), unlabelled: known.len(), known }
    }

    /// Labels the document with these tokens, its end-of-text token included. A document that is not in the file is
    /// ignored. Of several labels for equal documents the first counts.
    pub fn label(&mut self, tokens: &[u32], domain: &str) {
        let Some(own) = self.known.get_mut(&key(tokens.iter().copied())).filter(|own| own.is_none()) else {
            return;
        };
        let place = self.places.get(domain).copied().unwrap_or_else(|| {
            let place = self.names.len();
            self.names.push(domain.to_owned());
            self.places.insert(domain.to_owned(), place);
            place
        });
        *own = Some(place);
        self.unlabelled -= 1;
    }

    /// Returns the domain of a document, `None` without a label.
    #[must_use]
    pub fn of(&self, tokens: Tokens<'_>) -> Option<&str> {
        let index = self.known.get(&key(tokens.iter())).copied()??;
        self.names.get(index).map(String::as_str)
    }

    /// Number of different documents.
    #[must_use]
    pub fn documents(&self) -> usize {
        self.known.len()
    }

    /// Number of different documents without a label.
    #[must_use]
    pub fn unlabelled(&self) -> usize {
        self.unlabelled
    }
}

/// The first 128 bits of the hash of a document's tokens, enough that two documents never share them.
pub(crate) fn key(tokens: impl Iterator<Item = u32>) -> [u8; 16] {
    let bytes: Vec<u8> = tokens.flat_map(u32::to_le_bytes).collect();
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..16]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_place_however_many_documents_it_labels() {
        let documents = [[1], [2], [3], [4]];
        let known: HashMap<_, _> =
            documents.iter().map(|tokens| (key(tokens.iter().copied()), None)).collect();
        let (names, places) = (Vec::new(), HashMap::new());
        let mut domains = Domains { names, places, unlabelled: known.len(), known };
        for (tokens, domain) in documents.iter().zip(["law", "art", "law", "art"]) {
            domains.label(tokens, domain);
        }
        assert_eq!(domains.names, ["law", "art"]);
        let of = |id: u32| domains.of(Tokens::U32(&[id])).map(str::to_owned);
        assert_eq!([1, 2, 3, 4].map(of), ["law", "art", "law", "art"].map(|name| Some(name.to_owned())));
        assert_eq!(domains.unlabelled(), 0);
    }
}
