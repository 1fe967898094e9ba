//! Counts and best examples of a path's documents.

use serde::{Deserialize, Serialize};

use crate::shard_set::Example;

/// Number of examples in the manifest for each path: its documents with the best scores.
pub(super) const EXAMPLES: usize = 16;

/// Counts and best examples of a path's documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) documents: u64,
    pub(super) tokens: u64,
    pub(super) score: f64,
    pub(super) nearest: Vec<Example>,
}

impl Tally {
    /// Adds a document without a score.
    pub(super) fn count(&mut self) {
        self.documents += 1;
    }

    /// Adds a document of the divided text with the path's score.
    pub(super) fn add(&mut self, source_document: u64, score: f32) {
        let document = self.documents;
        self.count();
        self.score += f64::from(score);
        self.insert(Example { document, source_document, score });
    }

    /// Adds the documents of a later section.
    pub(super) fn append(&mut self, later: &Self) {
        for example in &later.nearest {
            self.insert(Example { document: self.documents + example.document, ..*example });
        }
        self.documents += later.documents;
        self.tokens += later.tokens;
        self.score += later.score;
    }

    fn insert(&mut self, example: Example) {
        // Behind equal scores, so that the first documents stay.
        let place = self.nearest.partition_point(|other| other.score >= example.score);
        if place < EXAMPLES {
            self.nearest.truncate(EXAMPLES - 1);
            self.nearest.insert(place, example);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_together_have_the_examples_of_all_documents() {
        let scores: Vec<f32> = (0..90u32).map(|at| (at * 37 % 41) as f32).collect();
        let mut whole = Tally::default();
        (0..).zip(&scores).for_each(|(document, &score)| whole.add(document, score));
        let mut joined = Tally::default();
        for (section, scores) in (0..).zip(scores.chunks(25)) {
            let mut own = Tally::default();
            (section * 25..).zip(scores).for_each(|(document, &score)| own.add(document, score));
            joined.append(&own);
        }
        assert_eq!(joined, whole);
        assert_eq!(joined.nearest.len(), EXAMPLES);
    }
}
