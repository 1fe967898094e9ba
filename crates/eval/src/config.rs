//! The settings of an evaluation.

use serde::{Deserialize, Serialize};

use crate::EvalError;

/// Section `[evaluation]`: how held-out text is scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationConfig {
    /// Tokens at the start of each sequence that are read but not counted; default 32, as in the paper. Must be the same
    /// for all models that are compared, dense ones included, and no less than `routing.prefix_tokens`: else a routed
    /// model is scored on tokens that chose its path.
    pub prefix_tokens: usize,
    /// Tokens of a sequence; longer documents are cut into several. Default 0: the model's context. At most the context
    /// plus one, because the last token is only predicted. Short sequences raise the perplexity of every model.
    pub sequence_tokens: usize,
    /// Sequences that are scored at once; default 8. Costs memory, changes no result beyond rounding.
    pub batch_sequences: usize,
    /// W, tokens between two choices of a path during a sequence, by the transformer router; default 0: each document
    /// keeps the path that it was routed to. The first W tokens are scored by that path. Smaller is better and slower;
    /// 64 in the paper.
    pub reroute_tokens: usize,
    /// Paths that are evaluated at the same time, which bounds the memory for weights: those of so many paths, and the
    /// modules that they share with paths whose turn comes later. Default 0: as many as there are threads.
    pub parallel_paths: usize,
    /// The most documents of a token file that are scored, from its beginning; default 0: all. A routed model has a file
    /// for each path, so with a limit it is scored on other documents than a dense one.
    pub max_documents: u64,
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self {
            prefix_tokens: 32,
            sequence_tokens: 0,
            batch_sequences: 8,
            reroute_tokens: 0,
            parallel_paths: 0,
            max_documents: 0,
        }
    }
}

impl EvaluationConfig {
    /// Checks each value by itself; whether sequences fit the model's context is checked when it is known.
    ///
    /// # Errors
    ///
    /// [`EvalError::Config`] for the first key that can't be used.
    pub fn check(&self) -> Result<(), EvalError> {
        let wrong =
            |key, value, problem: &str| Err(EvalError::Config { key, value, problem: problem.into() });
        if self.batch_sequences == 0 || self.batch_sequences > 1 << 16 {
            return wrong("batch_sequences", self.batch_sequences, "must be from 1 to 65536");
        }
        if self.sequence_tokens != 0 && self.sequence_tokens <= self.prefix_tokens.max(1) {
            let problem =
                "leaves nothing to count: make it larger than evaluation.prefix_tokens, or 0 for the context";
            return wrong("sequence_tokens", self.sequence_tokens, problem);
        }
        if self.parallel_paths > 1 << 16 {
            return wrong("parallel_paths", self.parallel_paths, "must be at most 65536");
        }
        Ok(())
    }

    /// The length of a sequence for a model with `context` positions.
    pub(crate) fn resolve_sequence(&self, context: usize) -> Result<usize, EvalError> {
        self.check()?;
        let sequence = if self.sequence_tokens == 0 { context } else { self.sequence_tokens };
        if sequence > context.saturating_add(1) {
            let problem = format!("is over the model's context of {context} tokens plus one");
            return Err(EvalError::Config { key: "sequence_tokens", value: sequence, problem });
        }
        if sequence <= self.prefix_tokens.max(1) {
            let problem =
                format!("leaves nothing to count in a context of {context} tokens: make it smaller");
            return Err(EvalError::Config { key: "prefix_tokens", value: self.prefix_tokens, problem });
        }
        Ok(sequence)
    }
}
