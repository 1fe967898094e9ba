//! Labels of documents, for shards that follow labels instead of features.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

/// Labels by the first tokens of documents. Labels are known for prepared text only, so a router of labels is a control: it
/// shows the gain of routing by the true kinds of text, and can't route other text.
#[derive(Clone, Debug)]
pub struct PrefixLabels {
    prefix_tokens: usize,
    /// The labels, each with its place in the order of the text.
    names: BTreeMap<String, u32>,
    /// Places of labels in the order of the text.
    of_prefix: HashMap<Vec<u32>, u32>,
    /// Place of each label in alphabetical order, in the order of the text. Empty until all labels are known.
    numbers: OnceLock<Vec<u32>>,
}

impl PrefixLabels {
    /// No labels. The first `prefix_tokens` tokens of a document will identify it.
    #[must_use]
    pub fn new(prefix_tokens: usize) -> Self {
        Self { prefix_tokens, names: BTreeMap::new(), of_prefix: HashMap::new(), numbers: OnceLock::new() }
    }

    /// Labels the documents that begin with the first of these tokens. Of several labels for equal beginnings the first
    /// counts.
    pub fn label(&mut self, tokens: &[u32], name: &str) {
        let prefix = tokens.get(..self.prefix_tokens).unwrap_or(tokens);
        if self.of_prefix.contains_key(prefix) {
            return;
        }
        let place = match self.names.get(name) {
            Some(&place) => place,
            None => {
                let place = self.names.len() as u32;
                self.names.insert(name.to_owned(), place);
                self.numbers.take();
                place
            }
        };
        self.of_prefix.insert(prefix.to_vec(), place);
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
        let place = *self.of_prefix.get(prefix)? as usize;
        self.numbers.get_or_init(|| self.alphabetical()).get(place).copied()
    }

    /// Numbers follow the alphabet, not the order of the text.
    fn alphabetical(&self) -> Vec<u32> {
        let mut numbers = vec![0; self.names.len()];
        for (number, &place) in (0..).zip(self.names.values()) {
            numbers[place as usize] = number;
        }
        numbers
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

    #[test]
    fn many_labels_are_numbered_by_the_alphabet() {
        let mut labels = PrefixLabels::new(1);
        // Each with its own label: numbering all of them anew for each one would take an hour.
        let count = 300_000u32;
        (0..count).rev().for_each(|token| labels.label(&[token], &format!("{token:06}")));
        assert!((0..count).step_by(1000).all(|token| labels.number(&[token]) == Some(token)));
        labels.label(&[count], "a later one");
        assert_eq!((labels.names(), labels.number(&[count])), (300_001, Some(count)));
    }
}
