//! Section `[evaluation]`: perplexity on validation text.

use serde::{Deserialize, Serialize};

use crate::{RerouteBy, SettingError};

/// Most sequences of a batch, and most paths evaluated at the same time. Larger values are mistakes.
const MAX_COUNT: usize = 1 << 16;

/// The text for which a routed model chooses a path once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteUnit {
    /// A document: its first tokens choose the path of all its sequences.
    #[default]
    Document,
    /// A sequence: its own first tokens choose its path.
    Window,
}

/// Section `[evaluation]`: perplexity on validation text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationConfig {
    /// Key `evaluation.prefix_tokens`.
    pub prefix_tokens: usize,
    /// Key `evaluation.sequence_tokens`.
    pub sequence_tokens: usize,
    /// Key `evaluation.batch_sequences`.
    pub batch_sequences: usize,
    /// Key `evaluation.route`.
    pub route: RouteUnit,
    /// Key `evaluation.reroute_tokens`.
    pub reroute_tokens: usize,
    /// Key `evaluation.reroute_by`.
    pub reroute_by: RerouteBy,
    /// Key `evaluation.parallel_paths`.
    pub parallel_paths: usize,
    /// Key `evaluation.max_documents`.
    pub max_documents: u64,
    /// Key `evaluation.rank_candidates`.
    pub rank_candidates: usize,
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self {
            prefix_tokens: 32,
            sequence_tokens: 0,
            batch_sequences: 8,
            route: RouteUnit::default(),
            reroute_tokens: 0,
            reroute_by: RerouteBy::default(),
            parallel_paths: 0,
            max_documents: 0,
            rank_candidates: 0,
        }
    }
}

impl EvaluationConfig {
    /// Checks the values that need no model; [`EvaluationConfig::sequence_for`] checks the others.
    ///
    /// # Errors
    /// [`SettingError`] for the first key with an unusable value.
    pub fn check(&self) -> Result<(), SettingError> {
        if !(1..=MAX_COUNT).contains(&self.batch_sequences) {
            return Err(wrong("batch_sequences", self.batch_sequences, "it must be from 1 to 65536"));
        }
        if self.sequence_tokens != 0 && self.sequence_tokens <= self.prefix_tokens.max(1) {
            let problem = "no token is left to count: make it larger than evaluation.prefix_tokens, or 0 for the context";
            return Err(wrong("sequence_tokens", self.sequence_tokens, problem));
        }
        if self.parallel_paths > MAX_COUNT {
            return Err(wrong("parallel_paths", self.parallel_paths, "it must be at most 65536"));
        }
        if self.rank_candidates == 1 || self.rank_candidates > MAX_COUNT {
            return Err(wrong("rank_candidates", self.rank_candidates, "it must be 0 or from 2 to 65536"));
        }
        Ok(())
    }

    /// Number of tokens of a sequence, for a model with `context` positions.
    ///
    /// # Errors
    /// [`SettingError`] for the first key with an unusable value. A sequence may be one token longer than the context,
    /// because the model only predicts the last token.
    pub fn sequence_for(&self, context: usize) -> Result<usize, SettingError> {
        self.check()?;
        let sequence = if self.sequence_tokens == 0 { context } else { self.sequence_tokens };
        if sequence > context.saturating_add(1) {
            let problem = format!("it must be at most the model's context of {context} tokens plus 1");
            return Err(wrong("sequence_tokens", self.sequence_tokens, problem));
        }
        if sequence <= self.prefix_tokens.max(1) {
            let problem =
                format!("no token is left to count in a context of {context} tokens: make it smaller");
            return Err(wrong("prefix_tokens", self.prefix_tokens, problem));
        }
        Ok(sequence)
    }
}

fn wrong(key: &'static str, value: usize, problem: impl Into<String>) -> SettingError {
    SettingError::new("evaluation", key, &value, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_sequence_follows_the_context() {
        let config = |sequence_tokens| EvaluationConfig { sequence_tokens, ..EvaluationConfig::default() };
        assert_eq!(config(0).sequence_for(48), Ok(48));
        assert_eq!(config(49).sequence_for(48), Ok(49), "the last token is only predicted");
        assert_eq!(config(50).sequence_for(48).unwrap_err().key, "sequence_tokens");
        assert_eq!(config(0).sequence_for(32).unwrap_err().key, "prefix_tokens");
    }
}
