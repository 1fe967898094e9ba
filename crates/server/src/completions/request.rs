//! The body of a completion request.

mod prompt;
mod sampling;

use std::sync::Arc;

use dipaco_topology::PathId;
use serde_json::Value;

use crate::admission::Asked;
use crate::client_text::shortened;
use crate::error::ApiError;
use crate::fields::{Fields, token, wrong};

pub(crate) use prompt::Prompt;
use prompt::prompts;
use sampling::AskedSampling;

/// Most choices of one prompt, as in OpenAI's API.
pub(crate) const MAX_N: u32 = 128;
/// Most log-probabilities of a token. OpenAI allows 5, vLLM 20.
pub(crate) const MAX_LOG_PROBS: u32 = 20;
/// Most tokens of any count. Larger ones are refused with the other values out of range.
pub(crate) const MAX_TOKENS: u32 = u32::MAX >> 8;
/// Most stop texts, and most bytes of a stop text. Every token is compared with all stop texts.
pub(crate) const MAX_STOPS: usize = 64;
pub(crate) const MAX_STOP_BYTES: usize = 1024;
/// Most entries of `logit_bias` and of `stop_token_ids`.
pub(crate) const MAX_TOKEN_RULES: usize = 1024;

/// Most unknown fields that the log names: a client must not fill the log.
const MOST_UNKNOWN: usize = 16;

/// Tokens generated without `max_tokens`, as in OpenAI's completions.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 16;

/// Fields of other servers that change the text and are not supported here. They are refused, because ignoring them would
/// silently give wrong results. `false` and the empty text turn a field off, so they are accepted.
const UNSUPPORTED: [&str; 2] = ["suffix", "use_beam_search"];

/// Fields of other servers that change nothing here: no token is ever added to a prompt, and the text of special tokens
/// is never shown.
const WITHOUT_EFFECT: [&str; 2] = ["add_special_tokens", "skip_special_tokens"];

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A completion.
    Text,
    /// A chat completion.
    Chat,
}

/// A completion request, with the defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionRequest {
    pub(crate) form: Form,
    pub(crate) model: Option<String>,
    pub(crate) prompts: Vec<Prompt>,
    /// Largest number of tokens of a prompt, of which the last are kept; `None` keeps all.
    pub(crate) truncate: Option<Truncation>,
    pub(crate) path: Option<PathId>,
    /// Tokens after which the path is chosen anew; `Some(0)` keeps the first path.
    pub(crate) route_every: Option<usize>,
    /// Lower numbers first, among the waiting requests of an API key.
    pub(crate) priority: i32,
    pub(crate) max_tokens: Option<usize>,
    /// Largest number of tokens without `max_tokens`, as far as the context has room.
    pub(crate) default_max_tokens: usize,
    pub(crate) min_tokens: usize,
    pub(crate) n: usize,
    pub(crate) sampling: AskedSampling,
    pub(crate) stop: Arc<[String]>,
    pub(crate) stop_token_ids: Arc<[u32]>,
    pub(crate) include_stop: bool,
    pub(crate) ignore_eos: bool,
    pub(crate) log_probs: Option<usize>,
    /// Likeliest tokens at each token of the prompt, for the field `prompt_logprobs` of the answer.
    pub(crate) prompt_log_probs: Option<usize>,
    pub(crate) echo: bool,
    pub(crate) stream: bool,
    pub(crate) usage: StreamUsage,
    pub(crate) return_route: bool,
    pub(crate) token_ids_as_text: bool,
    pub(crate) return_token_ids: bool,
    /// Names of the first fields that this server does not know.
    pub(crate) unknown: Vec<String>,
}

/// The field `truncate_prompt_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// The last tokens that leave room for the continuation.
    Fit,
    /// At most this many last tokens.
    Last(usize),
}

/// Chunks of a stream that hold the usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    /// None.
    #[default]
    Nowhere,
    /// A chunk of its own at the end.
    AtTheEnd,
    /// That chunk, and each chunk before it the usage so far.
    Everywhere,
}

impl CompletionRequest {
    /// Reads a request. Unknown fields are accepted, as by other servers. The log names them.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let prompt = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", "prompt is missing"))?;
        Self::of_prompts(prompts(prompt)?, fields)
    }

    /// The smallest size that the request of a client can have, known before its texts are tokenized.
    pub(crate) fn least(&self, client: u64, context: usize) -> Asked {
        // A request that no context holds is refused with another status.
        let longest = self.max_tokens.unwrap_or(1).min(context);
        // The choices of a prompt may read it once.
        let answers = longest.saturating_mul(self.n);
        let of_prompt = |prompt: &Prompt| match prompt {
            Prompt::Tokens(ids) if self.truncate.is_none() => ids.len().min(context).saturating_add(answers),
            Prompt::Tokens(_) | Prompt::Text(_) | Prompt::Chat { .. } => answers.saturating_add(1),
        };
        let tokens = self.prompts.iter().map(of_prompt).fold(0, usize::saturating_add);
        let sequences = self.prompts.len().saturating_mul(self.n);
        Asked { client, sequences, tokens: tokens as u64, longest }
    }

    /// Reads a request whose prompts are known.
    pub(crate) fn of_prompts(prompts: Vec<Prompt>, fields: &mut Fields) -> Result<Self, ApiError> {
        for name in UNSUPPORTED {
            let off = |value: &Value| *value == Value::Bool(false) || value.as_str() == Some("");
            if fields.take(name).is_some_and(|value| !off(&value)) {
                let message = format!("{name} is not supported by this server: leave it out");
                return Err(ApiError { code: Some("unsupported"), ..ApiError::field(name, message) });
            }
        }
        if let Some(best_of) = fields.integer("best_of", i64::MIN, i64::MAX)?
            && best_of != 1
        {
            return Err(ApiError::field(
                "best_of",
                "best_of is not supported by this server: leave it out and use n",
            ));
        }
        let stream = fields.flag("stream")?;
        let usage = match fields.take("stream_options") {
            None => StreamUsage::Nowhere,
            Some(_) if !stream => {
                return Err(ApiError::field("stream_options", "stream_options needs stream to be true"));
            }
            Some(options) => stream_usage(options)
                .map_err(|error| ApiError { param: Some("stream_options".into()), ..error })?,
        };
        for name in WITHOUT_EFFECT {
            fields.flag(name)?;
        }
        // The name of the client's own user is of no use here, so it goes nowhere.
        fields.string("user")?;
        let mut completion = Self {
            form: Form::Text,
            model: fields.string("model")?,
            prompts,
            truncate: truncation(fields)?,
            path: fields
                .integer("path", 0, i64::from(u32::MAX))?
                .and_then(|path| u32::try_from(path).ok())
                .map(PathId),
            route_every: fields.count("route_every", 0, MAX_TOKENS)?,
            priority: fields
                .integer("priority", i32::MIN.into(), i32::MAX.into())?
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or(0),
            max_tokens: fields.count("max_tokens", 0, MAX_TOKENS)?,
            default_max_tokens: DEFAULT_MAX_TOKENS,
            min_tokens: fields.count("min_tokens", 0, MAX_TOKENS)?.unwrap_or(0),
            n: fields.count("n", 1, MAX_N)?.unwrap_or(1),
            sampling: AskedSampling::read(fields)?,
            stop: stops(fields.take("stop"))?.into(),
            stop_token_ids: stop_tokens(fields.take("stop_token_ids"))?.into(),
            include_stop: fields.flag("include_stop_str_in_output")?,
            ignore_eos: fields.flag("ignore_eos")?,
            log_probs: fields.count("logprobs", 0, MAX_LOG_PROBS)?,
            prompt_log_probs: fields.count("prompt_logprobs", 0, MAX_LOG_PROBS)?,
            echo: fields.flag("echo")?,
            stream,
            usage,
            return_route: fields.flag("return_route")?,
            token_ids_as_text: fields.flag("return_tokens_as_token_ids")?,
            return_token_ids: fields.flag("return_token_ids")?,
            unknown: Vec::new(),
        };
        if completion.stream && completion.prompt_log_probs.is_some() {
            let message = "prompt_logprobs is not supported in a stream: leave out one of the two";
            return Err(ApiError {
                code: Some("unsupported"),
                ..ApiError::field("prompt_logprobs", message)
            });
        }
        completion.unknown = fields.rest().into_iter().take(MOST_UNKNOWN).map(shortened).collect();
        Ok(completion)
    }
}

fn stream_usage(options: Value) -> Result<StreamUsage, ApiError> {
    let mut options = Fields::new("stream_options", options)?;
    let (at_the_end, everywhere) = (options.flag("include_usage")?, options.flag("continuous_usage_stats")?);
    Ok(match (at_the_end, everywhere) {
        (false, _) => StreamUsage::Nowhere,
        (true, false) => StreamUsage::AtTheEnd,
        (true, true) => StreamUsage::Everywhere,
    })
}

fn truncation(fields: &mut Fields) -> Result<Option<Truncation>, ApiError> {
    let asked = fields.integer("truncate_prompt_tokens", -1, i64::from(u32::MAX))?;
    match asked {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation::Fit)),
        Some(0) => Err(ApiError::field(
            "truncate_prompt_tokens",
            "truncate_prompt_tokens is 0: give at least 1, or -1",
        )),
        Some(asked) => Ok(usize::try_from(asked).ok().map(Truncation::Last)),
    }
}

fn stops(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let list = match value {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![Value::String(stop)],
        Some(Value::Array(list)) if list.len() <= MAX_STOPS => list,
        Some(other) => {
            return Err(wrong("stop", &other, &format!("a text or a list of at most {MAX_STOPS} texts")));
        }
    };
    let stop = |value| match value {
        Value::String(stop) if stop.len() <= MAX_STOP_BYTES => Ok(stop),
        other => Err(wrong("stop", &other, &format!("a text of at most {MAX_STOP_BYTES} bytes"))),
    };
    list.into_iter().map(stop).collect()
}

fn stop_tokens(value: Option<Value>) -> Result<Vec<u32>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MAX_TOKEN_RULES => {
            list.iter().map(|value| token("stop_token_ids", value)).collect()
        }
        Some(other) => {
            Err(wrong("stop_token_ids", &other, &format!("a list of at most {MAX_TOKEN_RULES} token ids")))
        }
    }
}

#[cfg(test)]
mod tests;
