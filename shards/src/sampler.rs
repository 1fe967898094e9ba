//! Cutting documents into sequences, and drawing them in a reproducible order.

mod permutation;

use std::ops::Range;
use std::sync::Arc;

use crate::{DocumentSet, ShardsError, TokenBatch, TokenSet};

pub use permutation::Permutation;

/// Sums of window counts, or with packing of tokens, are kept for every `STRIDE`-th document. The documents between are
/// counted on demand.
const STRIDE: u64 = 1024;

/// Settings for cutting documents into sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerConfig {
    /// Tokens of a sequence (T). At least 1.
    pub sequence_length: usize,
    /// Seed of the order.
    pub seed: u64,
    /// True lets sequences run across document borders, without padding. False gives each sequence tokens of one
    /// document.
    pub packing: bool,
}

/// Place of a sequence in the token file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlace {
    /// The document in the token file; with packing, the first document of the range.
    pub document: u64,
    /// Place of the first token within the document; with packing, within the range.
    pub start: u64,
}

/// Sequences of T + 1 tokens (T inputs, each with the next token as target) from a range of documents.
///
/// A document of n tokens gives windows that start at 0, T, 2T, …, so each token but the first is a target exactly once;
/// the last window is padded. An epoch draws every sequence once, in an order that depends on seed and epoch.
/// [`Self::batch`] is a pure function of the position, so a checkpoint needs to keep only the position.
///
/// The sampler chooses the places of the tokens. [`TokenSet::batch`] reads them, pads them, and checks them against the
/// vocabulary.
pub struct Sampler {
    file: Arc<TokenSet>,
    documents: Range<u64>,
    /// The documents of the range that count; all without a set.
    selected: Option<DocumentSet>,
    config: SamplerConfig,
    /// `sums[k]` is the number of windows before document k · STRIDE of the range; with packing, the number of tokens.
    /// Empty when packed sequences take all documents.
    sums: Vec<u64>,
    sequences: u64,
}

impl Sampler {
    /// Makes a sampler over a range of a file's documents.
    ///
    /// # Errors
    /// The file does not have these documents, the sequence length is 0, or no sequence can be cut.
    pub fn new(
        file: Arc<TokenSet>,
        documents: Range<u64>,
        config: SamplerConfig,
    ) -> Result<Self, ShardsError> {
        Self::of(file, documents, None, config)
    }

    /// Makes a sampler over the documents of a set. Packed sequences skip the others.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn selected(
        file: Arc<TokenSet>,
        documents: DocumentSet,
        config: SamplerConfig,
    ) -> Result<Self, ShardsError> {
        let all = 0..file.documents();
        Self::of(file, all, Some(documents), config)
    }

    fn of(
        file: Arc<TokenSet>,
        documents: Range<u64>,
        selected: Option<DocumentSet>,
        config: SamplerConfig,
    ) -> Result<Self, ShardsError> {
        if config.sequence_length == 0 {
            return Err(ShardsError::Value {
                key: "sequence_length",
                value: "0".to_owned(),
                reason: "a sequence has at least 1 token",
            });
        }
        if documents.start > documents.end || documents.end > file.documents() {
            return Err(ShardsError::DocumentRange {
                path: file.path().to_owned(),
                start: documents.start,
                end: documents.end,
                documents: file.documents(),
            });
        }
        let mut sampler = Self { file, documents, selected, config, sums: Vec::new(), sequences: 0 };
        sampler.count();
        if sampler.sequences == 0 {
            return Err(ShardsError::NoSequences {
                path: sampler.file.path().to_owned(),
                start: sampler.documents.start,
                end: sampler.documents.end,
                sequence_length: sampler.config.sequence_length,
            });
        }
        Ok(sampler)
    }

    /// Counts the sequences.
    fn count(&mut self) {
        let length_t = self.config.sequence_length;
        if self.config.packing && self.selected.is_none() {
            self.sequences = windows(tokens_of(&self.file, &self.documents), length_t);
            return;
        }
        let mut sum = 0;
        for (at, document) in self.documents.clone().enumerate() {
            if (at as u64).is_multiple_of(STRIDE) {
                self.sums.push(sum);
            }
            sum += self.weight(document);
        }
        self.sequences = if self.config.packing { windows(sum, length_t) } else { sum };
    }

    /// The part of a document in [`Self::sums`]: its windows, or with packing its tokens.
    fn weight(&self, document: u64) -> u64 {
        let tokens = self.length(document);
        if self.config.packing { tokens } else { windows(tokens, self.config.sequence_length) }
    }

    /// Tokens of a document; 0 for a document that does not count.
    fn length(&self, document: u64) -> u64 {
        if self.selected.as_ref().is_some_and(|selected| !selected.contains(document)) {
            return 0;
        }
        let range = self.file.document_range(document);
        range.end - range.start
    }

    /// The document of a place in [`Self::sums`], and the sum before this document.
    fn find(&self, place: u64) -> (u64, u64) {
        let block = self.sums.partition_point(|&sum| sum <= place).saturating_sub(1);
        let mut before = self.sums.get(block).copied().unwrap_or_default();
        let mut document = self.documents.start + block as u64 * STRIDE;
        while document + 1 < self.documents.end {
            let own = self.weight(document);
            if place < before + own {
                break;
            }
            before += own;
            document += 1;
        }
        (document, before)
    }

    /// Number of sequences of an epoch. At least 1.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// The token file.
    pub fn file(&self) -> &Arc<TokenSet> {
        &self.file
    }

    /// The range of documents.
    pub fn documents(&self) -> Range<u64> {
        self.documents.clone()
    }

    /// The settings.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Sequences `position` to `position + batch`, counted from the start of the run, in shuffled order.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or `batch` is 0.
    pub fn batch(&self, position: u64, batch: usize) -> Result<TokenBatch, ShardsError> {
        let mut order: Option<(u64, Permutation)> = None;
        let rows = (0..batch as u64).map(|row| {
            let drawn = position.wrapping_add(row);
            let (epoch, place) = (drawn / self.sequences, drawn % self.sequences);
            let permutation = match &order {
                Some((of, permutation)) if *of == epoch => permutation,
                _ => &order.insert((epoch, Permutation::new(self.sequences, self.config.seed, epoch))).1,
            };
            self.places(permutation.apply(place))
        });
        self.file.batch(&rows.collect::<Vec<_>>(), self.config.sequence_length)
    }

    /// Sequences `first` to `first + batch` in the order of the file, for evaluation. A range beyond the last sequence is
    /// cut.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the range has no sequence.
    pub fn window_batch(&self, first: u64, batch: usize) -> Result<TokenBatch, ShardsError> {
        let end = first.saturating_add(batch as u64).min(self.sequences);
        let first = first.min(end);
        let rows: Vec<_> = (first..end).map(|window| self.places(window)).collect();
        self.file.batch(&rows, self.config.sequence_length)
    }

    /// All sequences once, in the order of the file, in batches of `batch`; the last batch may be smaller.
    pub fn windows(&self, batch: usize) -> impl Iterator<Item = Result<TokenBatch, ShardsError>> + '_ {
        let batch = batch.max(1);
        (0..self.sequences).step_by(batch).map(move |first| self.window_batch(first, batch))
    }

    /// Place of a sequence, counted in the order of the file. The number is taken modulo [`Self::sequences`].
    pub fn place(&self, window: u64) -> WindowPlace {
        let window = window % self.sequences;
        let length_t = self.config.sequence_length as u64;
        if self.config.packing {
            return WindowPlace { document: self.documents.start, start: window * length_t };
        }
        let (document, before) = self.find(window);
        WindowPlace { document, start: (window - before) * length_t }
    }

    /// The places of a sequence's tokens in the file, at most T + 1.
    fn places(&self, window: u64) -> Vec<Range<u64>> {
        let place = self.place(window);
        let most = self.config.sequence_length as u64 + 1;
        if !self.config.packing || self.selected.is_none() {
            let range = if self.config.packing {
                token_range(&self.file, &self.documents)
            } else {
                self.file.document_range(place.document)
            };
            let start = range.start + place.start;
            let window = start..(start + most).min(range.end);
            return vec![window];
        }
        let (mut document, before) = self.find(place.start);
        let mut skip = place.start - before;
        let mut places = Vec::new();
        let mut left = most;
        while left > 0 && document < self.documents.end {
            let range = self.file.document_range(document);
            let start = range.start + skip;
            let end = (start + left).min(range.start + self.length(document));
            if start < end {
                left -= end - start;
                places.push(start..end);
            }
            (document, skip) = (document + 1, 0);
        }
        places
    }
}

/// Number of windows of `tokens` tokens: every token but the first is a target once.
fn windows(tokens: u64, sequence_length: usize) -> u64 {
    tokens.saturating_sub(1).div_ceil(sequence_length as u64)
}

fn token_range(file: &TokenSet, documents: &Range<u64>) -> Range<u64> {
    if documents.is_empty() {
        return 0..0;
    }
    file.document_range(documents.start).start..file.document_range(documents.end - 1).end
}

fn tokens_of(file: &TokenSet, documents: &Range<u64>) -> u64 {
    let range = token_range(file, documents);
    range.end - range.start
}

#[cfg(test)]
mod tests;
