//! Token ids, targets and batches of both.

use std::sync::Arc;

use crate::TokenError;

/// The target of a position that the loss does not count: padding behind the end of a document.
pub const IGNORE: u32 = u32::MAX;

/// Token ids (B, T), row-major, each below V. A copy shares the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRows {
    ids: Arc<[u32]>,
    rows: usize,
    vocabulary: usize,
}

impl TokenRows {
    /// Checks that `ids` are B = `rows` rows of one length, and that each id is below V = `vocabulary`.
    ///
    /// # Errors
    /// There is no row or no token, the rows have different lengths, or an id is not below V.
    pub fn new(ids: impl Into<Arc<[u32]>>, rows: usize, vocabulary: usize) -> Result<Self, TokenError> {
        let ids = ids.into();
        if rows == 0 || ids.is_empty() || !ids.len().is_multiple_of(rows) {
            return Err(TokenError::Rows { ids: ids.len(), rows });
        }
        match ids.iter().position(|&id| id as usize >= vocabulary) {
            Some(at) => Err(TokenError::Outside { id: ids[at], at, vocabulary }),
            None => Ok(Self { ids, rows, vocabulary }),
        }
    }

    /// The ids (B, T), row-major.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// B, the number of rows. At least 1.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// T, the number of tokens of a row. At least 1.
    #[must_use]
    pub fn time(&self) -> usize {
        self.ids.len() / self.rows
    }

    /// V, which every id is below.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The rows in parts of at most `rows`, in their order; the last part has the rest. `rows` of 0 counts as 1.
    pub fn parts(&self, rows: usize) -> impl Iterator<Item = Self> + '_ {
        let (time, vocabulary) = (self.time(), self.vocabulary);
        // The ids of a part are ids of the whole, so they need no check.
        self.ids.chunks(rows.clamp(1, self.rows) * time).map(move |ids| Self {
            ids: ids.into(),
            rows: ids.len() / time,
            vocabulary,
        })
    }
}

/// Token ids (B, T) and a target for each: below the number of outputs, or [`IGNORE`]. A copy shares the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBatch {
    tokens: TokenRows,
    targets: Arc<[u32]>,
    outputs: usize,
    counted: usize,
}

impl TokenBatch {
    /// Checks that there is one target for each token, and that each is [`IGNORE`] or below `outputs`: V where the target
    /// is the next token, P where it is a path.
    ///
    /// # Errors
    /// The numbers of tokens and targets differ, or a target is neither.
    pub fn new(
        tokens: TokenRows,
        targets: impl Into<Arc<[u32]>>,
        outputs: usize,
    ) -> Result<Self, TokenError> {
        let targets = targets.into();
        if targets.len() != tokens.ids.len() {
            return Err(TokenError::Targets { tokens: tokens.ids.len(), targets: targets.len() });
        }
        match targets.iter().position(|&id| id != IGNORE && id as usize >= outputs) {
            Some(at) => Err(TokenError::Outside { id: targets[at], at, vocabulary: outputs }),
            None => Ok(Self { counted: counted(&targets), tokens, targets, outputs }),
        }
    }

    /// The tokens (B, T).
    #[must_use]
    pub fn tokens(&self) -> &TokenRows {
        &self.tokens
    }

    /// The targets (B, T), row-major.
    #[must_use]
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// The number that every counted target is below.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of targets that are not [`IGNORE`].
    #[must_use]
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// B, the number of rows. At least 1.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.rows()
    }

    /// T, the number of tokens of a row. At least 1.
    #[must_use]
    pub fn time(&self) -> usize {
        self.tokens.time()
    }

    /// The batch in parts of at most `rows` rows, as [`TokenRows::parts`].
    pub fn parts(&self, rows: usize) -> impl Iterator<Item = Self> + '_ {
        let mut rest = &*self.targets;
        self.tokens.parts(rows).map(move |tokens| {
            let (targets, after) = rest.split_at(tokens.ids.len());
            rest = after;
            Self { tokens, targets: targets.into(), outputs: self.outputs, counted: counted(targets) }
        })
    }
}

fn counted(targets: &[u32]) -> usize {
    targets.iter().filter(|&&target| target != IGNORE).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_outside_of_the_vocabulary_are_refused_with_their_place() {
        assert!(TokenRows::new(vec![5], 1, 6).is_ok());
        for past in [6, 7, u32::MAX] {
            let refused = TokenRows::new(vec![1, past], 1, 6);
            assert_eq!(refused, Err(TokenError::Outside { id: past, at: 1, vocabulary: 6 }));
        }
        assert_eq!(TokenRows::new(vec![0], 1, 0), Err(TokenError::Outside { id: 0, at: 0, vocabulary: 0 }));
        let tokens = TokenRows::new(vec![0; 3], 1, 1).unwrap();
        for target in [4, u32::MAX - 1] {
            let refused = TokenBatch::new(tokens.clone(), vec![3, IGNORE, target], 4);
            assert_eq!(refused, Err(TokenError::Outside { id: target, at: 2, vocabulary: 4 }));
        }
        assert_eq!(TokenBatch::new(tokens, vec![3, IGNORE, 0], 4).unwrap().counted(), 2);
    }

    #[test]
    fn ids_that_are_not_whole_rows_are_refused() {
        for (ids, rows) in [(3, 2), (1, 0), (0, 1), (0, 0)] {
            let refused = TokenRows::new(vec![0; ids], rows, 1);
            assert_eq!(refused, Err(TokenError::Rows { ids, rows }));
        }
        let tokens = TokenRows::new(vec![1, 1], 1, 2).unwrap();
        let refused = TokenBatch::new(tokens, vec![1], 2);
        assert_eq!(refused, Err(TokenError::Targets { tokens: 2, targets: 1 }));
    }

    #[test]
    fn parts_are_the_rows_of_the_batch_in_their_order() {
        let tokens = TokenRows::new((0..10).collect::<Vec<_>>(), 5, 10).unwrap();
        let targets = vec![0, IGNORE, 2, 3, 4, 5, IGNORE, IGNORE, 8, 9];
        let batch = TokenBatch::new(tokens, targets, 11).unwrap();
        let parts: Vec<_> = batch.parts(2).collect();
        assert_eq!(parts.iter().map(TokenBatch::rows).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(parts.iter().map(|part| part.counted()).collect::<Vec<_>>(), [3, 2, 2]);
        assert!(parts.iter().all(|part| part.tokens().vocabulary() == 10 && part.outputs() == 11));
        let ids = |of: fn(&TokenBatch) -> &[u32]| parts.iter().flat_map(of).copied().collect::<Vec<_>>();
        assert_eq!(ids(|part| part.tokens().ids()), batch.tokens().ids());
        assert_eq!(ids(TokenBatch::targets), batch.targets());
        for rows in [0, 1, 5, usize::MAX] {
            assert_eq!(batch.parts(rows).map(|part| part.rows()).sum::<usize>(), 5, "{rows}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_is_in_the_vocabulary(ids in prop::collection::vec(0u32..20, 0..12), rows in 0usize..5, vocabulary in 0usize..20) {
            if let Ok(tokens) = TokenRows::new(ids.clone(), rows, vocabulary) {
                prop_assert!(tokens.ids().iter().all(|&id| (id as usize) < tokens.vocabulary()));
                prop_assert_eq!(tokens.rows() * tokens.time(), ids.len());
            }
        }
    }
}
