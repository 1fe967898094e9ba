//! The tokenizer over HTTP, with vLLM's API. Evaluation harnesses use it in place of a local tokenizer.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use dipaco_infer::EngineError;
use serde::Serialize;
use serde_json::{Value, json};

use crate::completions::{Prompt, list_of_messages};
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::fields::{Fields, tokens, wrong};
use crate::{ChatTemplate, ServerState};

/// A request for the tokens of a text or of a chat.
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    prompt: Prompt,
    /// Asks for the text of each token.
    strings: bool,
}

impl TokenizeRequest {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let (model, prompt) = (fields.string("model")?, prompt(fields)?);
        // No token is added to a text. A template adds the tokens of a chat.
        fields.flag("add_special_tokens")?;
        Ok(Self { model, prompt, strings: fields.flag("return_token_strs")? })
    }
}

/// The tokens of a text or of a chat. They may be many, so there is no JSON value of each.
#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// The text or the chat of a request.
fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    let text = fields.string("prompt")?;
    let messages = fields.take("messages").map(list_of_messages).transpose()?;
    let answer_begins = fields.flag_or("add_generation_prompt", true)?;
    match (text, messages) {
        (Some(text), None) => Ok(Prompt::Text(text)),
        (None, Some(messages)) => Ok(Prompt::Chat { messages, answer_begins }),
        (Some(_), Some(_)) => {
            Err(ApiError::field("messages", "the request has prompt and messages: give one of them"))
        }
        (None, None) => {
            Err(ApiError::field("prompt", "prompt is missing: give a text, or the messages of a chat"))
        }
    }
}

pub(crate) async fn tokenize(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Tokenized>, ApiError> {
    let deadline = Deadline::of(&state, request.headers(), Instant::now())?;
    let mut fields = Fields::read(&state, request).await?;
    let TokenizeRequest { model, prompt, strings } = TokenizeRequest::read(&mut fields)?;
    if let Some(model) = model {
        state.resolve(&model)?;
    }
    if matches!(prompt, Prompt::Chat { .. }) {
        state.chat()?;
    }
    let body = fields.end();
    let work = Arc::clone(&state);
    let answer = move || {
        let _body = body;
        tokenized(&work, prompt, strings)
    };
    deadline.bound(state.blocking.run(answer)).await.map(Json)
}

/// The answer for a prompt, with the text of each token if `strings` asks for it. Occupies a core.
fn tokenized(state: &ServerState, prompt: Prompt, strings: bool) -> Result<Tokenized, ApiError> {
    let field = if matches!(prompt, Prompt::Chat { .. }) { "messages" } else { "prompt" };
    let tokens = match prompt {
        // Harnesses ask for the text of the end-of-text token to learn its id. In a longer text it is ordinary text.
        Prompt::Text(text) if text == state.codec.info().end_of_text => vec![state.codec.end_of_text()],
        prompt => prompt.tokens(state)?,
    };
    check_size(state, field, tokens.len() * (1 + usize::from(strings)))?;
    let token_strs = strings.then(|| tokens.iter().map(|&token| state.codec.token_text(token)).collect());
    let max_model_len = state.engine.model().context();
    Ok(Tokenized { count: tokens.len(), max_model_len, tokens, token_strs })
}

/// Refuses a request that holds too many tokens and texts of tokens, itself or in its answer. They come from a field.
fn check_size(state: &ServerState, field: &str, held: usize) -> Result<(), ApiError> {
    let limit = state.config.max_answer_tokens;
    if held <= limit {
        return Ok(());
    }
    let message = format!(
        "the request or its answer holds {held} tokens and texts of tokens, over the limit of {limit}: send less at a time"
    );
    Err(ApiError { code: Some("request_too_large"), ..ApiError::field(field, message) })
}

/// A request for the text of token ids.
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    ids: Vec<u32>,
}

impl DetokenizeRequest {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let model = fields.string("model")?;
        let ids = match fields.take("tokens") {
            Some(Value::Array(values)) => tokens("tokens", &values)?,
            Some(other) => return Err(wrong("tokens", &other, "a list of token ids")),
            None => return Err(ApiError::field("tokens", "tokens is missing: give a list of token ids")),
        };
        Ok(Self { model, ids })
    }
}

pub(crate) async fn detokenize(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::of(&state, request.headers(), Instant::now())?;
    let mut fields = Fields::read(&state, request).await?;
    let DetokenizeRequest { model, ids } = DetokenizeRequest::read(&mut fields)?;
    if let Some(model) = model {
        state.resolve(&model)?;
    }
    check_size(&state, "tokens", ids.len())?;
    // A tokenizer may pass over ids that it does not know.
    let vocab_size = state.engine.model().vocab_size();
    if let Some(&token) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(EngineError::Token { token, vocab_size, field: "tokens" }.into());
    }
    let body = fields.end();
    let work = Arc::clone(&state);
    let answer = move || {
        let _body = body;
        let text = work.codec.decode(&ids);
        let text =
            text.map_err(|error| ApiError::field("tokens", format!("tokens can't be decoded: {error}")))?;
        Ok(json!({"prompt": text}))
    };
    deadline.bound(state.blocking.run(answer)).await.map(Json)
}

pub(crate) async fn info(State(state): State<Arc<ServerState>>) -> Json<Value> {
    let info = state.codec.info();
    // There is no `bos_token`: documents have no first token of their own. Clients that need one use the end-of-text
    // token, which stands between documents.
    Json(json!({
        "tokenizer_class": info.class, "bos_token": null, "eos_token": info.end_of_text, "pad_token": info.end_of_text,
        "unk_token": null, "chat_template": state.chat().ok().map(ChatTemplate::text), "model_max_length": state.engine.model().context(),
        "vocab_size": state.codec.vocab_size(),
    }))
}
