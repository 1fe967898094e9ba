//! `GET /health`, `/metrics` and `/info`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::ServerState;
use crate::error::ApiError;
use crate::metrics::EngineState;

pub(crate) async fn health(State(state): State<Arc<ServerState>>) -> Result<Json<Value>, ApiError> {
    state.closed().map_or_else(|| Ok(Json(json!({"status": "ok"}))), Err)
}

pub(crate) async fn metrics(State(state): State<Arc<ServerState>>) -> impl IntoResponse {
    let model = state.engine.model();
    let engine = EngineState {
        load: state.engine.load(),
        weights: model.module_memory(),
        fingerprint: model.generation().fingerprint().to_string(),
        kv_type: state.config.kv_type,
        waiting: state.engine.waiting_by_path(),
    };
    let text = state.metrics.render(&engine);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

pub(crate) async fn info(State(state): State<Arc<ServerState>>) -> Json<Value> {
    let ServerState { config, run, engine, .. } = state.as_ref();
    let (model, topology) = (engine.model(), engine.model().topology());
    let memory = model.module_memory();
    let levels: Vec<u32> = (0..topology.levels()).map(|level| topology.modules_in(level)).collect();
    Json(json!({
        "model": run.name, "version": run.version, "git": run.commit, "system_fingerprint": &*model.generation().fingerprint(), "created": run.created,
        "max_model_len": model.context(), "vocab_size": model.vocab_size(),
        "paths": topology.paths(), "modules_per_level": levels, "route_prefix_tokens": model.prefix_tokens(),
        "reroutes": model.reroutes(), "route_every": config.route_every, "reroute_by": config.reroute_by,
        "path_parameters": run.path_parameters, "total_parameters": run.total_parameters,
        "format": config.format, "kv_type": config.kv_type, "weight_bytes": memory.bytes, "weight_bytes_limit": memory.limit,
        "modules_loaded": memory.modules,
        "limits": {
            "slots": engine.slots(), "queued_requests": config.queued_requests, "queued_tokens": config.queued_tokens,
            "choices": config.max_choices, "answer_tokens": config.max_answer_tokens,
            "body_bytes": config.body_limit, "request_seconds": config.request_timeout,
        },
    }))
}
