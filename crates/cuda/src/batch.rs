//! A batch's tokens as the device gets them.

use crate::{CudaError, IGNORE, PathShape};

/// The packed arrays of one micro-batch and the memory to make them, reused from step to step.
#[derive(Debug)]
pub(crate) struct Batch {
    packed: Vec<u32>,
    /// How often each token occurs, then where its positions begin.
    counts: Vec<u32>,
}

/// Where the arrays are among the packed numbers, for N rows.
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

impl Batch {
    pub(crate) fn new(shape: &PathShape, rows: usize) -> Self {
        Self { packed: Vec::with_capacity(4 * rows + 1), counts: vec![0; shape.vocab_size] }
    }

    /// tokens, targets, the positions sorted by token, and where each token's positions begin there, filled up with N.
    /// The tokens must have been checked.
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

/// Checks a batch and gives T.
pub(crate) fn check(shape: &PathShape, tokens: &[u32], batch: usize) -> Result<usize, CudaError> {
    let wrong = |problem: String| Err(CudaError::Argument { what: "tokens", problem });
    if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
        return wrong(format!("{} tokens are not {batch} rows of one length", tokens.len()));
    }
    let time = tokens.len() / batch;
    if time > shape.context {
        return wrong(format!("rows of {time} tokens are longer than the context of {}", shape.context));
    }
    let vocabulary = shape.vocab_size;
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(token) => wrong(format!("token id {token} is not in the vocabulary of {vocabulary} entries")),
        None => Ok(time),
    }
}

/// Checks the targets and counts those that are not [`IGNORE`].
pub(crate) fn check_targets(shape: &PathShape, tokens: &[u32], targets: &[u32]) -> Result<usize, CudaError> {
    let wrong = |problem: String| Err(CudaError::Argument { what: "targets", problem });
    if targets.len() != tokens.len() {
        return wrong(format!("{} targets were given for {} tokens", targets.len(), tokens.len()));
    }
    let counted = || targets.iter().filter(|&&target| target != IGNORE);
    let vocabulary = shape.vocab_size;
    match counted().find(|&&target| target as usize >= vocabulary) {
        Some(target) => wrong(format!("target {target} is not in the vocabulary of {vocabulary} entries")),
        None => Ok(counted().count()),
    }
}
