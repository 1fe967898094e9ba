//! Labels of documents, for shards that follow labels instead of features.

use std::collections::{BTreeMap, HashMap};

/// Labels by the first tokens of documents. Labels are known for prepared text only, so a router of labels is a control: it
/// shows the gain of routing by the true kinds of text, and can't route other text.
#[derive(Clone, Debug)]
pub struct PrefixLabels {
    prefix_tokens: usize,
    names: BTreeMap<String, u32>,
    of_prefix: HashMap<Vec<u32>, String>,
}

impl PrefixLabels {
    /// No labels. The first `prefix_tokens` tokens of a document will identify it.
    #[must_use]
    pub fn new(prefix_tokens: usize) -> Self {
        Self { prefix_tokens, names: BTreeMap::new(), of_prefix: HashMap::new() }
    }

    /// Labels the documents that begin with the first of these tokens. Of several labels for equal beginnings the first
    /// counts.
    pub fn label(&mut self, tokens: &[u32], name: &str) {
        let prefix = tokens.get(..self.prefix_tokens).unwrap_or(tokens);
        if !self.of_prefix.contains_key(prefix) {
            self.of_prefix.insert(prefix.to_vec(), name.to_owned());
            if !self.names.contains_key(name) {
                self.names.insert(name.to_owned(), 0);
                // Numbers follow the alphabet, not the order of the text.
                self.names.values_mut().zip(0..).for_each(|(number, place)| *number = place);
            }
        }
    }

    /// Number of different labels.
    #[must_use]
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Place of a document's label among all labels, in alphabetical order; `None` without a label.
    #[must_use]
    pub fn number(&self, tokens: &[u32]) -> Option<u32> {
        let prefix = tokens.get(..self.prefix_tokens).unwrap_or(tokens);
        self.names.get(self.of_prefix.get(prefix)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_known_by_its_beginning() {
        let mut labels = PrefixLabels::new(2);
        labels.label(&[1, 2, 3], "web");
        labels.label(&[1, 2, 4], "news");
        labels.label(&[5], "books");
        assert_eq!(labels.names(), 2);
        assert_eq!(labels.number(&[1, 2, 9, 9]), Some(1));
        assert_eq!(labels.number(&[5]), Some(0));
        assert_eq!(labels.number(&[5, 6]), None);
    }
}
