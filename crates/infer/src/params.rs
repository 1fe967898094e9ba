//! Parameters of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_topology::PathId;

use crate::EngineError;

/// Parameters of sampling. The default is plain sampling with seed 0.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the likeliest token. From 0 to 2.
    pub temperature: f32,
    /// Draws only from the smallest set of likeliest tokens whose probabilities add up to this. Above 0 and at most 1;
    /// 1 turns it off.
    pub top_p: f32,
    /// Draws only from this number of likeliest tokens; 0 turns it off.
    pub top_k: usize,
    /// Draws only from tokens whose probability is at least this fraction of the largest. From 0 to 1; 0 turns it off.
    pub min_p: f32,
    /// Subtracted from the logit of every token generated before. From -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time that it was generated before. From -2 to 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens of the prompt and the continuation. From 0.01 to 100; 1
    /// turns it off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens. From -100 to 100. Shared by the sequences of a request.
    pub logit_bias: Arc<BTreeMap<u32, f32>>,
    /// Seed of the random draws.
    pub seed: u64,
    /// Index of the choice among the choices of a prompt. Choices with the same seed draw different random numbers.
    pub choice: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Arc::default(),
            seed: 0,
            choice: 0,
        }
    }
}

impl SamplingParams {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`EngineError::Parameter`] with the first parameter that is out of its range. [`EngineError::Token`] for the bias of a
    /// token that is not in the vocabulary.
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
        for (&token, &bias) in self.logit_bias.iter() {
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
    /// Token ids of the prompt, at least one. Shared by the choices of the prompt.
    pub prompt: Arc<[u32]>,
    /// Path to run; `None` lets the router pick it.
    pub path: Option<PathId>,
    /// Largest number of tokens to generate; 0 only scores the prompt.
    pub max_tokens: usize,
    /// Number of tokens before which the continuation can't end.
    pub min_tokens: usize,
    /// Parameters of sampling.
    pub sampling: SamplingParams,
    /// Texts that end the continuation. Shared by the sequences of a request.
    pub stop: Arc<[String]>,
    /// Tokens that end the continuation, besides the end-of-text token. Shared as the texts are.
    pub stop_token_ids: Arc<[u32]>,
    /// Keeps the stop text or stop token in the text.
    pub include_stop: bool,
    /// Treats the end-of-text token as an ordinary token, which does not end the continuation.
    pub ignore_eos: bool,
    /// Number of likeliest tokens that get log-probabilities at each generated token, besides the token itself; `None` turns
    /// log-probabilities off.
    pub log_probs: Option<usize>,
    /// The same at each token of the prompt; `None` scores no prompt. A scored prompt is computed whole, without the prefix
    /// cache.
    pub prompt_log_probs: Option<usize>,
    /// W, the number of tokens after which the path is chosen anew, again and again (arXiv:2403.10616 §2.4.3); `None` keeps
    /// the first path.
    pub route_every: Option<usize>,
    /// Number of the client. Clients get equal shares of a busy engine, and each reads its own pages of the prefix cache only.
    pub client: u64,
    /// Priority among the waiting sequences of the client: lower numbers get their places first.
    pub priority: i32,
}

impl GenerateRequest {
    /// A request with all defaults: 16 tokens, plain sampling, no log-probabilities.
    #[must_use]
    pub fn new(prompt: impl Into<Arc<[u32]>>) -> Self {
        Self {
            prompt: prompt.into(),
            path: None,
            max_tokens: 16,
            min_tokens: 0,
            sampling: SamplingParams::default(),
            stop: Arc::default(),
            stop_token_ids: Arc::default(),
            include_stop: false,
            ignore_eos: false,
            log_probs: None,
            prompt_log_probs: None,
            route_every: None,
            client: 0,
            priority: 0,
        }
    }

    /// True if this request has the prompt of the one before it in a submission, as the choices of one prompt have.
    #[must_use]
    pub fn shares_prompt_of(&self, before: &Self) -> bool {
        Arc::ptr_eq(&before.prompt, &self.prompt)
    }

    /// Checks the request before the model runs.
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
        if self.route_every == Some(0) {
            let (value, expected) = ("0".to_owned(), "it must be at least 1");
            return Err(EngineError::Parameter { field: "route_every", value, expected });
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
