//! `GET /v1/models`: the run and each of its paths as models.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use dipaco_topology::PathId;
use serde_json::{Value, json};

use crate::ServerState;
use crate::error::ApiError;

pub(crate) async fn list(State(state): State<Arc<ServerState>>) -> Json<Value> {
    let paths = state.engine.model().topology().path_ids();
    let all = [None].into_iter().chain(paths.map(Some));
    let data: Vec<Value> = all.map(|path| model(&state, path)).collect();
    Json(json!({"object": "list", "data": data}))
}

pub(crate) async fn one(
    State(state): State<Arc<ServerState>>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // A name that is no UTF-8 is that of no model. The error shows it as it came.
    let encoded = || uri.path().strip_prefix("/v1/models/").unwrap_or_default().to_owned();
    let name = name.map_or_else(|_| encoded(), |Path(name)| name);
    Ok(Json(model(&state, state.resolve(&name)?)))
}

fn model(state: &ServerState, path: Option<PathId>) -> Value {
    let (run, model) = (&state.run, state.engine.model());
    let (id, parent, parameters, bytes) = match path {
        None => (run.name.clone(), None, run.total_parameters, run.total_bytes),
        Some(path) => (state.path_model(path), Some(run.name.as_str()), run.path_parameters, run.path_bytes),
    };
    let mut value = json!({
        "id": id, "object": "model", "created": run.created, "owned_by": "dipaco", "root": run.name, "parent": parent,
        "max_model_len": model.context(),
        // The fields of llama.cpp.
        "meta": {
            "n_vocab": model.vocab_size(), "n_ctx_train": model.context(), "n_embd": run.width,
            "n_params": parameters, "size": bytes,
        },
    });
    if let Some(path) = path {
        let modules: Vec<String> =
            model.topology().modules_of(path).iter().map(ToString::to_string).collect();
        value["dipaco"] = json!({"path": path, "modules": modules});
    }
    value
}
