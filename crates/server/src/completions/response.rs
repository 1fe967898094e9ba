//! The body of a completion: whole, or one chunk of a stream.

use dipaco_topology::PathId;
use serde::Serialize;
use serde::ser::Serializer;

/// OpenAI's completion object.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionResponse<'a> {
    /// Id of the completion, the same in all chunks of a stream.
    pub(crate) id: &'a str,
    /// Always `text_completion`.
    pub(crate) object: &'static str,
    /// Time of the request, in seconds since 1970.
    pub(crate) created: u64,
    /// The run, or the pinned path.
    pub(crate) model: &'a str,
    /// Fingerprint of the served weights.
    pub(crate) system_fingerprint: &'a str,
    /// All choices of a whole answer; one choice of a chunk, or none of the chunk with the usage.
    pub(crate) choices: &'a [CompletionChoice],
    /// Counts of tokens.
    #[serde(skip_serializing_if = "UsageField::is_absent")]
    pub(crate) usage: UsageField,
}

/// The counts of tokens in a body.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum UsageField {
    /// No field, in streams without `include_usage`.
    Absent,
    /// The value `null`, in the chunks before the one with the counts.
    Null,
    /// The counts.
    Counts(Usage),
}

impl UsageField {
    /// Returns whether the field is left out.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

/// A whole choice, or the piece of it that one event added.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionChoice {
    /// Index of the choice, prompt by prompt.
    pub(crate) index: usize,
    /// True for the first piece of a choice of a chat, which names the speaker.
    #[serde(skip)]
    pub(crate) names_speaker: bool,
    /// Text.
    pub(crate) text: String,
    /// Log-probabilities, for a request with `logprobs`.
    pub(crate) logprobs: Option<LogProbs>,
    /// `stop` or `length`; null in all pieces of a stream but the last.
    pub(crate) finish_reason: Option<&'static str>,
    /// The stop text or stop token that ended the choice.
    pub(crate) stop_reason: Option<StopCause>,
    /// Log-probabilities of the prompt's tokens, for a request with `prompt_logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Vec<Option<PromptToken>>>,
    /// Ids of the prompt's tokens, for a request with `return_token_ids`; in the first chunk of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Ids of the generated tokens, for a request with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// The route, for a request with `return_route`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dipaco: Option<ChosenRoute>,
}

impl CompletionChoice {
    /// Returns true if the piece has nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        let scored = self.logprobs.as_ref().is_some_and(|log_probs| !log_probs.tokens.is_empty());
        let ids =
            self.prompt_token_ids.is_some() || self.token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        self.text.is_empty() && !self.names_speaker && !scored && !ids && self.finish_reason.is_none()
    }

    /// Adds the next piece of the same choice.
    pub(crate) fn append(&mut self, more: Self) {
        self.text.push_str(&more.text);
        match (&mut self.logprobs, more.logprobs) {
            (Some(log_probs), Some(more)) => log_probs.append(more),
            (log_probs, more) => *log_probs = log_probs.take().or(more),
        }
        self.finish_reason = more.finish_reason.or(self.finish_reason);
        self.stop_reason = more.stop_reason.or(self.stop_reason.take());
        self.prompt_logprobs = self.prompt_logprobs.take().or(more.prompt_logprobs);
        self.prompt_token_ids = self.prompt_token_ids.take().or(more.prompt_token_ids);
        match (&mut self.token_ids, more.token_ids) {
            (Some(ids), Some(more)) => ids.extend(more),
            (ids, more) => *ids = ids.take().or(more),
        }
        self.dipaco = more.dipaco.or(self.dipaco.take());
    }
}

/// The stop text or stop token of the request that ended a choice.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StopCause {
    /// A stop text.
    Text(String),
    /// A stop token.
    Token(u32),
}

/// The path of a choice, and the request's seed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChosenRoute {
    /// The path.
    pub(crate) path: PathId,
    /// The path's module of each level.
    pub(crate) modules: Vec<u32>,
    /// Seed of the request, its own or a random one.
    pub(crate) seed: u64,
    /// Number of times that the path changed within the text; 0 in all pieces of a stream but the last.
    pub(crate) rerouted: usize,
}

/// Numbers of tokens of a completion.
#[derive(Debug, Serialize)]
pub(crate) struct Usage {
    /// Tokens of all prompts; a prompt counts once, whatever its number of choices.
    pub(crate) prompt_tokens: usize,
    /// Generated tokens of all choices.
    pub(crate) completion_tokens: usize,
    /// Sum of both.
    pub(crate) total_tokens: usize,
    /// Parts of the prompt tokens.
    pub(crate) prompt_tokens_details: PromptTokens,
}

/// Parts of the prompt tokens.
#[derive(Debug, Default, Serialize)]
pub(crate) struct PromptTokens {
    /// Tokens whose keys and values came from the prefix cache.
    pub(crate) cached_tokens: usize,
}

/// OpenAI's four arrays of log-probabilities, each with one entry per token. The numbers are f32 values as f64: JSON then
/// has all their digits, so a client that reads f64 gets the exact values.
#[derive(Debug, Default, Serialize)]
pub(crate) struct LogProbs {
    /// Number of characters of the choice's text before the token.
    pub(crate) text_offset: Vec<usize>,
    /// Log-probabilities in nats; null for the first token of an echoed prompt.
    pub(crate) token_logprobs: Vec<Option<f64>>,
    /// Texts of the tokens.
    pub(crate) tokens: Vec<String>,
    /// Ids of the tokens, for their bytes in a chat.
    #[serde(skip)]
    pub(crate) ids: Vec<u32>,
    /// The likeliest tokens. In a completion the token itself is always among them.
    pub(crate) top_logprobs: Vec<Option<TopTokens>>,
}

impl LogProbs {
    fn append(&mut self, more: Self) {
        self.text_offset.extend(more.text_offset);
        self.token_logprobs.extend(more.token_logprobs);
        self.tokens.extend(more.tokens);
        self.ids.extend(more.ids);
        self.top_logprobs.extend(more.top_logprobs);
    }
}

/// The likeliest tokens, likeliest first. A completion has them by their texts, and of tokens with the same text only the
/// likeliest.
#[derive(Debug)]
pub(crate) struct TopTokens(pub(crate) Vec<TopToken>);

/// One of the likeliest tokens.
#[derive(Debug)]
pub(crate) struct TopToken {
    /// Its id.
    pub(crate) id: u32,
    /// Its text.
    pub(crate) text: String,
    /// Its log-probability in nats.
    pub(crate) log_prob: f64,
}

impl Serialize for TopTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_first = |(place, token): &(usize, &TopToken)| {
            self.0.iter().take(*place).all(|likelier| likelier.text != token.text)
        };
        let kept = self.0.iter().enumerate().filter(is_first);
        serializer.collect_map(kept.map(|(_, token)| (&token.text, token.log_prob)))
    }
}

/// vLLM's entry of `prompt_logprobs` for a token of the prompt: the likeliest tokens of its place and the token itself, by their
/// ids.
#[derive(Debug)]
pub(crate) struct PromptToken(pub(crate) Vec<(u32, PromptLogProb)>);

/// A token at a place of a prompt.
#[derive(Debug, Serialize)]
pub(crate) struct PromptLogProb {
    /// Log-probability in nats.
    pub(crate) logprob: f64,
    /// Its place among all tokens, 1 for the likeliest.
    pub(crate) rank: usize,
    /// Its text.
    pub(crate) decoded_token: String,
}

impl Serialize for PromptToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, entry)| (token, entry)))
    }
}
