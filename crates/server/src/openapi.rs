//! `GET /openapi.json`: the description of the interface for programs (OpenAPI 3.1). `GET /docs` shows it to people.
//!
//! The lists of fields below are compared with what the server reads by a test, in both directions.

mod answers;
mod fields;
mod page;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use serde_json::{Map, Value, json};

use crate::ServerState;

/// A field of a request.
struct Field {
    name: &'static str,
    /// Its JSON schema.
    schema: Value,
    /// Its meaning, in whole sentences.
    text: &'static str,
}

/// An address, and what is sent to it and comes back.
struct Address {
    path: &'static str,
    summary: &'static str,
    /// Name of the request's schema; `None` for GET.
    request: Option<&'static str>,
    /// Name of the answer's schema; `None` for text.
    answer: Option<&'static str>,
}

const ADDRESSES: &[Address] = &[
    Address {
        path: "/v1/completions",
        summary: "Completes one prompt or several, whole or as a stream of server-sent events.",
        request: Some("CompletionRequest"),
        answer: Some("Completion"),
    },
    Address {
        path: "/v1/chat/completions",
        summary: "Answers a chat, if the run has a chat template.",
        request: Some("ChatRequest"),
        answer: Some("ChatCompletion"),
    },
    Address {
        path: "/v1/route",
        summary: "The path of a text, its module of each level, and the distances behind the choice.",
        request: Some("RouteRequest"),
        answer: Some("ChosenPath"),
    },
    Address {
        path: "/v1/models",
        summary: "The run, and each of its paths as a model.",
        request: None,
        answer: Some("ModelList"),
    },
    Address {
        path: "/v1/models/{name}",
        summary: "The run, or one of its paths.",
        request: None,
        answer: Some("Model"),
    },
    Address {
        path: "/tokenize",
        summary: "The token ids of a text.",
        request: Some("TokenizeRequest"),
        answer: Some("Tokenized"),
    },
    Address {
        path: "/detokenize",
        summary: "The text of token ids.",
        request: Some("DetokenizeRequest"),
        answer: Some("Detokenized"),
    },
    Address {
        path: "/tokenizer_info",
        summary: "Facts about the tokenizer.",
        request: None,
        answer: Some("TokenizerInfo"),
    },
    Address {
        path: "/info",
        summary: "The model, its paths, its memory and the limits of a request.",
        request: None,
        answer: Some("Info"),
    },
    Address {
        path: "/health",
        summary: "200 when the server takes requests. The same as /v1/health, /ready and /ping.",
        request: None,
        answer: Some("Health"),
    },
    Address {
        path: "/metrics",
        summary: "Counts and histograms in the text format of Prometheus.",
        request: None,
        answer: None,
    },
    Address {
        path: "/openapi.json",
        summary: "This description.",
        request: None,
        answer: Some("Description"),
    },
    Address { path: "/docs", summary: "This description as a page.", request: None, answer: None },
];

pub(crate) async fn openapi(State(state): State<Arc<ServerState>>) -> Json<Value> {
    Json(document(&state.run.version, !state.metrics_apart()))
}

pub(crate) async fn docs(State(state): State<Arc<ServerState>>) -> impl IntoResponse {
    let page = page::page(&document(&state.run.version, !state.metrics_apart()));
    // Nothing but the page itself, should a text of it ever be taken for a script.
    ([(header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'")], Html(page))
}

/// The whole document, for a version of the program. `/metrics` may be elsewhere.
fn document(version: &str, metrics: bool) -> Value {
    let here = ADDRESSES.iter().filter(|at| metrics || at.path != "/metrics");
    let paths: Map<String, Value> = here.map(|at| (at.path.to_owned(), operations(at))).collect();
    let mut schemas = answers::schemas();
    for (name, fields, required) in fields::requests() {
        schemas.insert(name.to_owned(), object(&fields, required));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "dipaco serve",
            "version": version,
            "description": "OpenAI's completions over the paths of a run. Unknown fields of a request are ignored. The log names those of completions and chats.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    })
}

/// The schema of a request with these fields.
fn object(fields: &[Field], required: &[&str]) -> Value {
    let property = |field: &Field| {
        let mut schema = field.schema.clone();
        schema["description"] = field.text.into();
        (field.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn operations(address: &Address) -> Value {
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let body = |schema: Value| json!({"application/json": {"schema": schema}});
    let mut content = match address.answer {
        Some(name) => body(reference(name)),
        None => {
            let kind = if address.path == "/docs" { "text/html" } else { "text/plain" };
            json!({kind: {"schema": {"type": "string"}}})
        }
    };
    if address.path.ends_with("/completions") {
        content["text/event-stream"] = json!({"schema": {"type": "string"}});
    }
    let errors = json!({"description": "An error in OpenAI's format.", "content": body(reference("Error"))});
    let mut operation = json!({
        "summary": address.summary,
        "responses": {"200": {"description": "The answer.", "content": content}, "default": errors},
    });
    if address.path.contains('{') {
        operation["parameters"] =
            json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    match address.request {
        None => json!({"get": operation}),
        Some(name) => {
            operation["requestBody"] = json!({"required": true, "content": body(reference(name))});
            json!({"post": operation})
        }
    }
}

#[cfg(test)]
mod tests;
