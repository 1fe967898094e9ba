//! The tokens of a batch in the form that the kernels read.

use dipaco_model::{IGNORE, ModelConfig};

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
    /// token that occurs the place of its first position in `order`, filled up with N. [`check`] must have passed the
    /// tokens.
    pub(crate) fn pack(&mut self, tokens: &[u32], targets: &[u32]) -> &[u32] {
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

/// Checks a batch and returns T.
///
/// The kernels index the embedding by token and the logits by target without any test, so ids are checked
/// here and in [`check_targets`].
pub(crate) fn check(config: &ModelConfig, tokens: &[u32], batch: usize) -> Result<usize, CudaError> {
    let wrong = |problem: String| Err(CudaError::Argument { what: "tokens", problem });
    if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
        return wrong(format!("{} tokens are not {batch} rows of one length", tokens.len()));
    }
    let time = tokens.len() / batch;
    if time > config.context {
        return wrong(format!("rows of {time} tokens are longer than the context of {}", config.context));
    }
    let vocabulary = config.vocab_size;
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(token) => wrong(format!("token id {token} is not in the vocabulary of {vocabulary} entries")),
        None => Ok(time),
    }
}

/// Checks the targets and returns the number of targets that are not [`IGNORE`].
pub(crate) fn check_targets(
    config: &ModelConfig,
    tokens: &[u32],
    targets: &[u32],
) -> Result<usize, CudaError> {
    let wrong = |problem: String| Err(CudaError::Argument { what: "targets", problem });
    if targets.len() != tokens.len() {
        return wrong(format!("{} targets were given for {} tokens", targets.len(), tokens.len()));
    }
    let counted = || targets.iter().filter(|&&target| target != IGNORE);
    let vocabulary = config.vocab_size;
    match counted().find(|&&target| target as usize >= vocabulary) {
        Some(target) => wrong(format!("target {target} is not in the vocabulary of {vocabulary} entries")),
        None => Ok(counted().count()),
    }
}
