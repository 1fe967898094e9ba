//! `POST /v1/route`: the path of a text, and the distances behind the choice.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use crate::ServerState;
use crate::completions::Prompt;
use crate::error::ApiError;
use crate::fields::{Fields, tokens, wrong};

pub(crate) async fn route(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::read(&state, request).await?;
    if let Some(model) = fields.string("model")? {
        state.resolve(&model)?;
    }
    let prompt = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", "prompt is missing"))?;
    let work = Arc::clone(&state);
    let answer = move || {
        let prompt = match prompt {
            Value::String(text) => Prompt::Text(text),
            Value::Array(values) => Prompt::Tokens(tokens("prompt", &values)?),
            other => return Err(wrong("prompt", &other, "a text or a list of token ids")),
        };
        let ids = prompt.tokens(work.codec.as_ref())?;
        let route = work.engine.route(&ids)?;
        let prefix = &ids[..route.prefix_tokens.min(ids.len())];
        let modules = work.engine.model().topology().modules_of(route.path);
        let levels: Vec<Value> = modules
            .iter()
            .map(|module| json!({"level": module.level, "module": module.index, "id": module.to_string()}))
            .collect();
        Ok(json!({
            "path": route.path, "model": work.path_model(route.path), "levels": levels, "distances": route.distances,
            "prefix_tokens": prefix.len(), "prefix": prefix,
            "prefix_text": work.codec.decode(prefix).unwrap_or_default(),
        }))
    };
    state.blocking.run(answer).await.map(Json)
}
