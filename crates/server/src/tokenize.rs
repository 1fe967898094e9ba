//! The tokenizer over HTTP, with vLLM's API. Evaluation harnesses use it in place of a local tokenizer.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use crate::completions::{Prompt, list_of_messages};
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::fields::{Fields, tokens, wrong};
use crate::{ChatTemplate, ServerState};

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
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::of(&state, request.headers(), Instant::now())?;
    let mut fields = Fields::read(&state, request).await?;
    if let Some(model) = fields.string("model")? {
        state.resolve(&model)?;
    }
    let prompt = prompt(&mut fields)?;
    if matches!(prompt, Prompt::Chat { .. }) {
        state.chat()?;
    }
    // No token is added to a text. A template adds the tokens of a chat.
    fields.flag("add_special_tokens")?;
    let strings = fields.flag("return_token_strs")?;
    let _body = fields.end();
    let work = Arc::clone(&state);
    let answer = move || {
        let tokens = match prompt {
            // Harnesses ask for the text of the end-of-text token to learn its id. In a longer text it is ordinary text.
            Prompt::Text(text) if text == work.codec.info().end_of_text => vec![work.codec.end_of_text()],
            prompt => prompt.tokens(&work)?,
        };
        let shown =
            strings.then(|| tokens.iter().map(|&token| work.codec.token_text(token)).collect::<Vec<_>>());
        let context = work.engine.model().context();
        Ok(json!({"count": tokens.len(), "max_model_len": context, "tokens": tokens, "token_strs": shown}))
    };
    deadline.bound(state.blocking.run(answer)).await.map(Json)
}

pub(crate) async fn detokenize(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::of(&state, request.headers(), Instant::now())?;
    let mut fields = Fields::read(&state, request).await?;
    let ids = match fields.take("tokens") {
        Some(Value::Array(values)) => tokens("tokens", &values)?,
        Some(other) => return Err(wrong("tokens", &other, "a list of token ids")),
        None => return Err(ApiError::field("tokens", "tokens is missing: give a list of token ids")),
    };
    let _body = fields.end();
    let work = Arc::clone(&state);
    let answer = move || {
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
