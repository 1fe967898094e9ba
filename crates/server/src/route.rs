//! `POST /v1/route`: the path of a text, its module of each level, and the distances behind the choice.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use dipaco_infer::{Measure, Route};
use dipaco_topology::{ModuleId, PathId, Topology};
use serde_json::{Value, json};

use crate::ServerState;
use crate::completions::Prompt;
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::fields::{Fields, tokens, wrong};

/// The model and the prompt of a request.
pub(crate) fn read(fields: &mut Fields) -> Result<(Option<String>, Prompt), ApiError> {
    let model = fields.string("model")?;
    let prompt = match fields.take("prompt") {
        Some(Value::String(text)) => Prompt::Text(text),
        Some(Value::Array(values)) => Prompt::Tokens(tokens("prompt", &values)?),
        Some(other) => return Err(wrong("prompt", &other, "a text or a list of token ids")),
        None => return Err(ApiError::field("prompt", "prompt is missing")),
    };
    Ok((model, prompt))
}

pub(crate) async fn route(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::of(&state, request.headers(), Instant::now())?;
    let mut fields = Fields::read(&state, request).await?;
    let (model, prompt) = read(&mut fields)?;
    if let Some(model) = model {
        state.resolve(&model)?;
    }
    let body = fields.end();
    let work = Arc::clone(&state);
    let tokens = move || {
        // Free again when the text has become tokens: other bodies do not wait for the router.
        let _body = body;
        prompt.tokens(&work)
    };
    let answer = async {
        let ids = state.blocking.run(tokens).await?;
        let route = state.engine.route(&ids).await?;
        Ok(Json(explained(&state, &ids, &route)))
    };
    deadline.bound(answer).await
}

/// The route of these tokens as JSON.
fn explained(state: &ServerState, ids: &[u32], route: &Route) -> Value {
    let prefix = &ids[..route.prefix_tokens.min(ids.len())];
    let topology = state.engine.model().topology();
    let own = route.distances.get(route.path.index());
    let level = |module: ModuleId| {
        let distance = route.level_distances.get(usize::from(module.level)).copied().flatten();
        json!({
            "level": module.level, "module": module.index, "id": module.to_string(), "distance": distance,
            "margin": own.and_then(|own| Some(nearest_beside(topology, module, &route.distances)? - own)),
        })
    };
    let levels: Vec<Value> = topology.modules_of(route.path).into_iter().map(level).collect();
    let measure = own.map(|_| match route.measure {
        Measure::Euclidean => "euclidean",
        Measure::Surprise => "negative_log_probability",
    });
    json!({
        "path": route.path, "model": state.path_model(route.path), "distance": own, "measure": measure,
        "levels": levels, "distances": route.distances, "prefix_tokens": prefix.len(), "prefix": prefix,
        "prefix_text": state.codec.decode(prefix).unwrap_or_default(),
    })
}

/// The smallest distance to a path that does not go through `module`; `None` if all do.
fn nearest_beside(topology: &Topology, module: ModuleId, distances: &[f32]) -> Option<f32> {
    let others = (0..).map(PathId).zip(distances).filter(|&(path, _)| !topology.goes_through(path, module));
    others.map(|(_, &distance)| distance).min_by(f32::total_cmp)
}
