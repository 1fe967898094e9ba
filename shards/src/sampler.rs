//! Cutting documents into sequences, and drawing them in a reproducible order.

mod permutation;

use std::ops::Range;
use std::sync::Arc;

use crate::{ShardsError, TokenFile};

pub use permutation::Permutation;

/// A target that is not counted: padding behind a document's end.
pub const IGNORE: u32 = u32::MAX;

/// The window counts of documents are summed up to every so many documents; the rest is counted when it is needed.
const STRIDE: u64 = 1024;

/// How documents become sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerConfig {
    /// Tokens of a sequence (T). At least 1.
    pub sequence_length: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Whether sequences run across document borders, without padding. Otherwise a sequence has tokens of one document.
    pub packing: bool,
}

/// Sequences of a batch, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Input tokens, (B, T). Padding is the end-of-text token.
    pub tokens: Vec<u32>,
    /// The token that follows each input token, (B, T); [`IGNORE`] where there is none.
    pub targets: Vec<u32>,
    /// Number of sequences (B).
    pub batch: usize,
    /// Tokens of a sequence (T).
    pub sequence_length: usize,
}

/// Where a sequence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlace {
    /// The document in the token file; with packing, the first document of the range.
    pub document: u64,
    /// Place of the first token within the document, or with packing within the range.
    pub start: u64,
}

/// Sequences of T + 1 tokens (T inputs, each with the next token as target) from a range of documents.
///
/// A document of n tokens gives windows that start at 0, T, 2T, …, so that each token but the first is a target exactly
/// once; the last window is padded. An epoch draws every sequence once, in an order that depends on seed and epoch.
/// [`Self::batch`] is a pure function of the position, which is therefore all that a checkpoint has to keep.
pub struct Sampler {
    file: Arc<TokenFile>,
    documents: Range<u64>,
    config: SamplerConfig,
    /// `sums[k]`: windows of the documents before the (k · STRIDE)-th of the range. Empty with packing.
    sums: Vec<u64>,
    sequences: u64,
}

impl Sampler {
    /// A sampler over a range of a file's documents.
    ///
    /// # Errors
    /// The file does not have these documents, the sequence length is 0, or no sequence can be cut.
    pub fn new(
        file: Arc<TokenFile>,
        documents: Range<u64>,
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
        let mut sums = Vec::new();
        let mut sequences = 0;
        if config.packing {
            sequences = windows(tokens_of(&file, &documents), config.sequence_length);
        } else {
            for (at, document) in documents.clone().enumerate() {
                if (at as u64).is_multiple_of(STRIDE) {
                    sums.push(sequences);
                }
                sequences += windows(length(&file, document), config.sequence_length);
            }
        }
        if sequences == 0 {
            return Err(ShardsError::NoSequences {
                path: file.path().to_owned(),
                start: documents.start,
                end: documents.end,
                sequence_length: config.sequence_length,
            });
        }
        Ok(Self { file, documents, config, sums, sequences })
    }

    /// Sequences of an epoch. At least 1.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// The token file.
    pub fn file(&self) -> &Arc<TokenFile> {
        &self.file
    }

    /// The documents that sequences come from.
    pub fn documents(&self) -> Range<u64> {
        self.documents.clone()
    }

    /// How documents become sequences.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The sequences number `position` to `position + batch` since the start of the run, in shuffled order.
    ///
    /// # Errors
    /// A token is not in the vocabulary.
    pub fn batch(&self, position: u64, batch: usize) -> Result<Batch, ShardsError> {
        let mut order: Option<(u64, Permutation)> = None;
        let rows = (0..batch as u64).map(|row| {
            let drawn = position.wrapping_add(row);
            let (epoch, place) = (drawn / self.sequences, drawn % self.sequences);
            let permutation = match &order {
                Some((of, permutation)) if *of == epoch => permutation,
                _ => &order.insert((epoch, Permutation::new(self.sequences, self.config.seed, epoch))).1,
            };
            permutation.apply(place)
        });
        self.rows(rows, batch)
    }

    /// The sequences number `first` to `first + batch` in the order of the file, cut to those that exist: for
    /// evaluation.
    ///
    /// # Errors
    /// A token is not in the vocabulary.
    pub fn window_batch(&self, first: u64, batch: usize) -> Result<Batch, ShardsError> {
        let end = first.saturating_add(batch as u64).min(self.sequences);
        let first = first.min(end);
        self.rows(first..end, (end - first) as usize)
    }

    /// All sequences once, in the order of the file, in batches of `batch` (the last one may be smaller).
    pub fn windows(&self, batch: usize) -> impl Iterator<Item = Result<Batch, ShardsError>> + '_ {
        let batch = batch.max(1);
        (0..self.sequences).step_by(batch).map(move |first| self.window_batch(first, batch))
    }

    /// Where a sequence (in the order of the file) comes from. The number is taken modulo [`Self::sequences`].
    pub fn place(&self, window: u64) -> WindowPlace {
        let window = window % self.sequences;
        let length_t = self.config.sequence_length as u64;
        if self.config.packing {
            return WindowPlace { document: self.documents.start, start: window * length_t };
        }
        let block = self.sums.partition_point(|&sum| sum <= window).saturating_sub(1);
        let mut before = self.sums.get(block).copied().unwrap_or_default();
        let mut document = self.documents.start + block as u64 * STRIDE;
        while document + 1 < self.documents.end {
            let own = windows(length(&self.file, document), self.config.sequence_length);
            if window < before + own {
                break;
            }
            before += own;
            document += 1;
        }
        WindowPlace { document, start: (window - before) * length_t }
    }

    fn rows(&self, windows: impl Iterator<Item = u64>, batch: usize) -> Result<Batch, ShardsError> {
        let length_t = self.config.sequence_length;
        let mut tokens = Vec::with_capacity(batch * length_t);
        let mut targets = Vec::with_capacity(batch * length_t);
        for window in windows {
            let place = self.place(window);
            let range = if self.config.packing {
                token_range(&self.file, &self.documents)
            } else {
                self.file.document_range(place.document)
            };
            let start = range.start + place.start;
            let end = (start + length_t as u64 + 1).min(range.end);
            let own = self.file.slice(start..end);
            own.check_vocabulary(self.file.vocab_size(), self.file.path(), start)?;
            let counted = own.len().saturating_sub(1);
            tokens.extend(own.iter().take(counted));
            targets.extend(own.iter().skip(1));
            tokens.extend(std::iter::repeat_n(self.file.end_of_text(), length_t - counted));
            targets.extend(std::iter::repeat_n(IGNORE, length_t - counted));
        }
        Ok(Batch { tokens, targets, batch, sequence_length: length_t })
    }
}

/// Windows of `tokens` tokens: every token but the first is a target once.
fn windows(tokens: u64, sequence_length: usize) -> u64 {
    tokens.saturating_sub(1).div_ceil(sequence_length as u64)
}

fn length(file: &TokenFile, document: u64) -> u64 {
    let range = file.document_range(document);
    range.end - range.start
}

fn token_range(file: &TokenFile, documents: &Range<u64>) -> Range<u64> {
    if documents.is_empty() {
        return 0..0;
    }
    file.document_range(documents.start).start..file.document_range(documents.end - 1).end
}

fn tokens_of(file: &TokenFile, documents: &Range<u64>) -> u64 {
    let range = token_range(file, documents);
    range.end - range.start
}

#[cfg(test)]
mod tests;
