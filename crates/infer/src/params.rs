//! What a request asks for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dipaco_topology::PathId;

use crate::EngineError;

/// How the next token is chosen from the logits. The default is plain sampling with seed 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token. 0 to 2.
    pub temperature: f32,
    /// Only the smallest set of likeliest tokens whose probability reaches this is drawn from; 1 is off.
    pub top_p: f32,
    /// Only this many likeliest tokens are drawn from; 0 is off.
    pub top_k: usize,
    /// Only tokens at least this fraction as likely as the likeliest are drawn from; 0 is off.
    pub min_p: f32,
    /// Subtracted from the logit of every token that was generated before. -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it was generated before. -2 to 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens of the prompt and the continuation; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of tokens. -100 to 100.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the random draws.
    pub seed: u64,
    /// Number of the choice among those of one prompt: choices with the same seed draw differently.
    pub choice: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
            choice: 0,
        }
    }
}

impl Sampling {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`EngineError::Parameter`] with the first parameter that is out of its range, [`EngineError::Token`] for a bias
    /// on a token outside of the vocabulary.
    pub fn check(&self, vocab_size: usize) -> Result<(), EngineError> {
        let within = |field, value: f32, low: f32, high: f32, expected| {
            let fits = (low..=high).contains(&value);
            fits.then_some(()).ok_or_else(|| EngineError::Parameter {
                field,
                value: value.to_string(),
                expected,
            })
        };
        within("temperature", self.temperature, 0.0, 2.0, "it must be from 0 to 2")?;
        within("top_p", self.top_p, f32::MIN_POSITIVE, 1.0, "it must be above 0 and at most 1")?;
        within("min_p", self.min_p, 0.0, 1.0, "it must be from 0 to 1")?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0, "it must be from -2 to 2")?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "it must be from -2 to 2")?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0, "it must be from 0.01 to 100")?;
        for (&token, &bias) in &self.logit_bias {
            if token as usize >= vocab_size {
                return Err(EngineError::Token { token, vocab_size, field: "logit_bias" });
            }
            within("logit_bias", bias, -100.0, 100.0, "a bias must be from -100 to 100")?;
        }
        Ok(())
    }
}

/// One sequence to generate or to score.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// The prompt's token ids, at least one; shared by the choices of one prompt.
    pub prompt: Arc<[u32]>,
    /// The path to run; `None` lets the router pick it.
    pub path: Option<PathId>,
    /// How many tokens to generate at most; 0 scores the prompt only.
    pub max_tokens: usize,
    /// No stop and no end of text before this many tokens.
    pub min_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Texts that end the continuation.
    pub stop: Vec<String>,
    /// Tokens that end the continuation, beside the end-of-text token.
    pub stop_token_ids: Vec<u32>,
    /// Whether the text keeps the stop text or token that ended it.
    pub include_stop: bool,
    /// Whether the end-of-text token is a token like any other.
    pub ignore_eos: bool,
    /// How many of the likeliest tokens to give log-probabilities of, beside the token itself; `None` gives none at all.
    pub log_probs: Option<usize>,
    /// Whether the prompt's own tokens are scored too (needs `log_probs`).
    pub score_prompt: bool,
    /// The time the request has, from its admission.
    pub deadline: Duration,
}

impl GenerateRequest {
    /// A request with all defaults: 16 tokens, plain sampling, no log-probabilities, ten minutes.
    #[must_use]
    pub fn new(prompt: impl Into<Arc<[u32]>>) -> Self {
        Self {
            prompt: prompt.into(),
            path: None,
            max_tokens: 16,
            min_tokens: 0,
            sampling: Sampling::default(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            include_stop: false,
            ignore_eos: false,
            log_probs: None,
            score_prompt: false,
            deadline: Duration::from_secs(600),
        }
    }

    /// Checks everything that can be wrong before the model runs.
    ///
    /// # Errors
    /// When the prompt is empty, too long or holds an unknown token, the path does not exist, or a parameter is out of
    /// its range.
    pub fn check(&self, context: usize, vocab_size: usize, paths: u32) -> Result<(), EngineError> {
        let prompt = self.prompt.len();
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.saturating_add(self.max_tokens) > context {
            return Err(EngineError::Context { prompt, max_tokens: self.max_tokens, context });
        }
        if let Some(path) = self.path
            && path.0 >= paths
        {
            return Err(EngineError::Path { path, paths });
        }
        let unknown = |field, tokens: &[u32]| {
            let found = tokens.iter().copied().find(|&token| token as usize >= vocab_size);
            found.map_or(Ok(()), |token| Err(EngineError::Token { token, vocab_size, field }))
        };
        unknown("prompt", &self.prompt)?;
        unknown("stop_token_ids", &self.stop_token_ids)?;
        self.sampling.check(vocab_size)
    }
}
