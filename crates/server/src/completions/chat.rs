//! `POST /v1/chat/completions`: a chat as a completion, and a completion as a chat.

use dipaco_infer::TextCodec;
use serde::Serialize;
use serde_json::Value;

use crate::chat_template::Message;
use crate::completions::request::{MAX_LOG_PROBS, MAX_TOKENS};
use crate::completions::response::{
    ChosenRoute, CompletionChoice, LogProbs, StopCause, TopToken, UsageField,
};
use crate::error::ApiError;
use crate::fields::{Fields, wrong};

/// Most messages of a chat.
pub(crate) const MAX_MESSAGES: usize = 4096;

/// Fields of other servers' chats that change the answer and are not supported. Empty lists turn them off.
const UNSUPPORTED: [&str; 5] = ["tools", "functions", "audio", "prediction", "prompt_logprobs"];

/// Takes the messages out of a request, and turns the other fields into those of a completion.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    for name in UNSUPPORTED {
        if fields.take(name).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty())) {
            let message = format!("{name} is not supported by this server: leave it out");
            return Err(ApiError { code: Some("unsupported"), ..ApiError::field(name, message) });
        }
    }
    if let Some(format) = fields.take("response_format")
        && format["type"] != "text"
    {
        return Err(wrong("response_format", &format, "{\"type\": \"text\"}"));
    }
    let list = fields.take("messages").ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
    let messages = list_of_messages(list)?;
    // Checked here, so that an error has the name of the client's field.
    if let Some(most) = fields.count("max_completion_tokens", 0, MAX_TOKENS)? {
        fields.put("max_tokens", most.into());
    }
    let top = fields.count("top_logprobs", 0, MAX_LOG_PROBS)?;
    if fields.flag("logprobs")? {
        fields.put("logprobs", top.unwrap_or(0).into());
    } else if top.is_some() {
        return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs to be true"));
    }
    Ok(messages)
}

/// The messages of a field.
pub(crate) fn list_of_messages(value: Value) -> Result<Vec<Message>, ApiError> {
    match value {
        Value::Array(list) if !list.is_empty() && list.len() <= MAX_MESSAGES => {
            list.into_iter().map(message).collect()
        }
        other => Err(wrong("messages", &other, &format!("a list of 1 to {MAX_MESSAGES} messages"))),
    }
}

fn message(value: Value) -> Result<Message, ApiError> {
    let named = |error: ApiError| ApiError { param: Some("messages".into()), ..error };
    let mut fields = Fields::new("a message", value).map_err(named)?;
    let role = fields.string("role").map_err(named)?;
    let role = role.ok_or_else(|| ApiError::field("messages", "a message has no role"))?;
    let content = match fields.take("content") {
        None => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts.iter().map(part).collect::<Result<Vec<_>, _>>()?.concat(),
        Some(other) => return Err(named(wrong("content", &other, "a text or a list of texts"))),
    };
    Ok(Message { role, content })
}

/// The text of a part of a message.
fn part(value: &Value) -> Result<&str, ApiError> {
    let text = (value["type"] == "text").then(|| value["text"].as_str()).flatten();
    text.ok_or_else(|| {
        let error = wrong("content", value, "{\"type\": \"text\", \"text\": …}: this model reads text only");
        ApiError { param: Some("messages".into()), ..error }
    })
}

/// OpenAI's chat completion object, whole or one chunk of a stream.
#[derive(Debug, Serialize)]
pub(crate) struct ChatResponse<'a> {
    /// Id of the completion, the same in all chunks of a stream.
    pub(crate) id: &'a str,
    /// `chat.completion` or `chat.completion.chunk`.
    pub(crate) object: &'static str,
    /// Time of the request, in seconds since 1970.
    pub(crate) created: u64,
    /// The run, or the pinned path.
    pub(crate) model: &'a str,
    /// Fingerprint of the served weights.
    pub(crate) system_fingerprint: &'a str,
    /// The choices.
    pub(crate) choices: Vec<ChatChoice>,
    /// Counts of tokens.
    #[serde(skip_serializing_if = "UsageField::is_absent")]
    pub(crate) usage: UsageField,
}

/// A choice of a chat, whole or the piece of it that one event added.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    /// Index of the choice.
    index: usize,
    /// The message of a whole answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Speech>,
    /// The piece of a message, in a chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Speech>,
    /// Log-probabilities, for a request with `logprobs`.
    logprobs: Option<ChatLogProbs>,
    /// `stop` or `length`; null in all pieces of a stream but the last.
    finish_reason: Option<&'static str>,
    /// The stop text or stop token that ended the choice.
    stop_reason: Option<StopCause>,
    /// Ids of the prompt's tokens, for a request with `return_token_ids`; in the first chunk of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    /// Ids of the generated tokens, for a request with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    /// The route, for a request with `return_route`.
    #[serde(skip_serializing_if = "Option::is_none")]
    dipaco: Option<ChosenRoute>,
}

/// What the model says.
#[derive(Debug, Serialize)]
struct Speech {
    /// Always `assistant`; absent from all chunks of a choice but the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The text.
    content: String,
}

/// Log-probabilities of a chat.
#[derive(Debug, Serialize)]
struct ChatLogProbs {
    content: Vec<ChatToken>,
}

/// A token with its log-probability and the likeliest tokens of its place.
#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: Option<f64>,
    bytes: Vec<u8>,
    top_logprobs: Vec<LikelyToken>,
}

/// One of the likeliest tokens.
#[derive(Debug, Serialize)]
struct LikelyToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChatChoice {
    /// A choice of a completion as a choice of a chat: whole, or a piece. `codec` has the bytes of its tokens.
    pub(crate) fn new(choice: CompletionChoice, whole: bool, codec: &dyn TextCodec) -> Self {
        let role = (whole || choice.names_speaker).then_some("assistant");
        let speech = Some(Speech { role, content: choice.text });
        let (message, delta) = if whole { (speech, None) } else { (None, speech) };
        Self {
            index: choice.index,
            message,
            delta,
            logprobs: choice.logprobs.map(|log_probs| ChatLogProbs::new(log_probs, codec)),
            finish_reason: choice.finish_reason,
            stop_reason: choice.stop_reason,
            prompt_token_ids: choice.prompt_token_ids,
            token_ids: choice.token_ids,
            dipaco: choice.dipaco,
        }
    }
}

impl ChatLogProbs {
    fn new(log_probs: LogProbs, codec: &dyn TextCodec) -> Self {
        let LogProbs { ids, tokens, token_logprobs, top_logprobs, .. } = log_probs;
        let likely = |TopToken { id, text, log_prob }: TopToken| LikelyToken {
            token: text,
            logprob: log_prob,
            bytes: codec.token_bytes(id),
        };
        let scores = token_logprobs.into_iter().zip(top_logprobs);
        let content = ids.into_iter().zip(tokens).zip(scores).map(|((id, token), (logprob, top))| {
            let top_logprobs = top.into_iter().flat_map(|top| top.0).map(&likely).collect();
            ChatToken { token, logprob, bytes: codec.token_bytes(id), top_logprobs }
        });
        Self { content: content.collect() }
    }
}
