//! `POST /v1/route`: the path of a text, its module of each level, and the distances behind the choice.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use dipaco_infer::Measure;
use dipaco_topology::{ModuleId, PathId, Topology};
use serde_json::{Value, json};

use crate::ServerState;
use crate::completions::Prompt;
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::fields::{Fields, tokens, wrong};

pub(crate) async fn route(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::of(&state, request.headers(), Instant::now())?;
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
        let ids = prompt.tokens(&work)?;
        let route = work.engine.route(&ids)?;
        let prefix = &ids[..route.prefix_tokens.min(ids.len())];
        let topology = work.engine.model().topology();
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
        Ok(json!({
            "path": route.path, "model": work.path_model(route.path), "distance": own, "measure": measure,
            "levels": levels, "distances": route.distances, "prefix_tokens": prefix.len(), "prefix": prefix,
            "prefix_text": work.codec.decode(prefix).unwrap_or_default(),
        }))
    };
    deadline.bound(state.blocking.run(answer)).await.map(Json)
}

/// The smallest distance to a path that does not go through `module`; `None` if all do.
fn nearest_beside(topology: &Topology, module: ModuleId, distances: &[f32]) -> Option<f32> {
    let others = (0..).map(PathId).zip(distances).filter(|&(path, _)| !topology.goes_through(path, module));
    others.map(|(_, &distance)| distance).min_by(f32::total_cmp)
}
