//! The tokens of a batch in the form that the kernels read.

use dipaco_model::{ModelConfig, TokenBatch, TokenRows};

use crate::CudaError;

/// Packed arrays of one micro-batch. The memory is reused from step to step.
#[derive(Debug)]
pub(crate) struct PackedBatch {
    packed: Vec<u32>,
    /// While packing: the number of occurrences of each token, then the place of its next position in `order`.
    counts: Vec<u32>,
}

/// Places of the arrays among the packed numbers, for N rows. The tokens come first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchOffsets {
    pub(crate) targets: usize,
    pub(crate) order: usize,
    pub(crate) starts: usize,
}

impl BatchOffsets {
    pub(crate) fn new(rows: usize) -> Self {
        Self { targets: rows, order: 2 * rows, starts: 3 * rows }
    }
}

impl PackedBatch {
    /// Reserves memory for `rows` rows.
    pub(crate) fn new(vocabulary: usize, rows: usize) -> Self {
        Self { packed: Vec::with_capacity(4 * rows + 1), counts: vec![0; vocabulary] }
    }

    /// Packs tokens (N), targets (N), `order` (N) and `starts` (N + 1): the positions sorted by token, and for each
    /// token that occurs the place of its first position in `order`, filled up with N. [`check_tokens`] must have
    /// passed the tokens.
    pub(crate) fn pack(&mut self, tokens: &TokenRows, targets: &[u32]) -> &[u32] {
        let tokens = tokens.ids();
        let rows = tokens.len();
        let at = BatchOffsets::new(rows);
        self.packed.clear();
        self.packed.extend_from_slice(tokens);
        self.packed.extend_from_slice(targets);
        self.packed.resize(4 * rows + 1, rows as u32);
        self.counts.fill(0);
        for &token in tokens {
            self.counts[token as usize] += 1;
        }
        let (mut next, mut place) = (0, at.starts);
        for count in &mut self.counts {
            if *count > 0 {
                self.packed[place] = next;
                place += 1;
            }
            next += std::mem::replace(count, next);
        }
        for (position, &token) in tokens.iter().enumerate() {
            let next = &mut self.counts[token as usize];
            self.packed[at.order + *next as usize] = position as u32;
            *next += 1;
        }
        &self.packed
    }
}

/// Checks that tokens fit the path: T and the vocabulary. The kernels index the embedding by token without any test, and
/// [`TokenRows`] has checked each id against its vocabulary.
pub(crate) fn check_tokens(config: &ModelConfig, tokens: &TokenRows) -> Result<(), CudaError> {
    let (time, context) = (tokens.time(), config.context);
    if time > context {
        let problem = format!("rows of {time} tokens are longer than the context of {context}");
        return Err(CudaError::Argument { what: "tokens", problem });
    }
    check_vocabulary("tokens", config, tokens.vocabulary())
}

/// Checks that a batch fits the path. The kernels index the logits by target without any test.
pub(crate) fn check_batch(config: &ModelConfig, batch: &TokenBatch) -> Result<(), CudaError> {
    check_tokens(config, batch.tokens())?;
    check_vocabulary("targets", config, batch.outputs())
}

fn check_vocabulary(what: &'static str, config: &ModelConfig, ids: usize) -> Result<(), CudaError> {
    let entries = config.vocab_size;
    if ids <= entries {
        return Ok(());
    }
    let problem = format!("they are of a vocabulary of {ids} entries, and the path has {entries}");
    Err(CudaError::Argument { what, problem })
}
