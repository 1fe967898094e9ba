//! The prompts of a request.

use serde_json::Value;

use crate::ServerState;
use crate::chat_template::Message;
use crate::error::ApiError;
use crate::fields::{tokens, wrong};

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// The messages of a chat, which the model continues as the assistant if the answer begins behind them.
    Chat {
        messages: Vec<Message>,
        answer_begins: bool,
    },
}

impl Prompt {
    /// The token ids of the prompt. Rendering a chat and tokenizing occupy a core.
    pub(crate) fn tokens(self, state: &ServerState) -> Result<Vec<u32>, ApiError> {
        let failed = |error| ApiError::field("prompt", format!("prompt can't be tokenized: {error}"));
        match self {
            Self::Tokens(tokens) => Ok(tokens),
            Self::Text(text) => state.codec.encode(&text).map_err(failed),
            Self::Chat { messages, answer_begins } => state.chat()?.prompt(&messages, answer_begins),
        }
    }
}

/// Reads a prompt in any of its four forms: a text, texts, token ids, lists of token ids.
pub(super) fn prompts(value: Value) -> Result<Vec<Prompt>, ApiError> {
    const FORMS: &str = "a text, a list of texts, a list of token ids or a list of such lists";
    let list = match value {
        Value::String(text) => vec![Value::String(text)],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => vec![Value::Array(list)],
        Value::Array(list) => list,
        other => return Err(wrong("prompt", &other, FORMS)),
    };
    let prompt = |value| match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => tokens("prompt", &ids).map(Prompt::Tokens),
        other => Err(wrong("prompt", &other, FORMS)),
    };
    let prompts = list.into_iter().map(prompt).collect::<Result<Vec<_>, _>>()?;
    let empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Tokens(tokens) => tokens.is_empty(),
        Prompt::Chat { messages, .. } => messages.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(empty) {
        let message = "the prompt is empty: give at least one token";
        return Err(ApiError { code: Some("empty_prompt"), ..ApiError::field("prompt", message) });
    }
    Ok(prompts)
}
