//! A set of documents of a token file.

/// Numbers of documents, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentSet {
    words: Vec<u64>,
    documents: u64,
}

impl DocumentSet {
    /// The documents below `count` for which `holds` is true.
    pub fn of(count: u64, mut holds: impl FnMut(u64) -> bool) -> Self {
        let mut set = Self { words: vec![0; count.div_ceil(64) as usize], documents: 0 };
        for document in 0..count {
            if holds(document) {
                set.words[(document / 64) as usize] |= 1 << (document % 64);
                set.documents += 1;
            }
        }
        set
    }

    /// Returns whether the set has a document.
    #[must_use]
    pub fn contains(&self, document: u64) -> bool {
        self.words.get((document / 64) as usize).is_some_and(|word| word >> (document % 64) & 1 == 1)
    }

    /// Number of documents in the set.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.documents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_documents_and_no_others() {
        let set = DocumentSet::of(130, |document| document % 3 == 0);
        assert_eq!(set.documents(), 44);
        assert!((0..200).all(|document| set.contains(document) == (document < 130 && document % 3 == 0)));
        assert_eq!(DocumentSet::of(0, |_| true), DocumentSet::default());
    }
}
