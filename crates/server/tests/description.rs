//! `/openapi.json` describes the answers as they are.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;

use client::Server;
use dipaco_server::{ChatTemplate, EncodeChat, ServeConfig, TemplateTokens};
use serde_json::{Value, json};

/// Fails if a value does not have the fields of a schema.
fn assert_described(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).unwrap();
        return assert_described(document, schema, value, place);
    }
    if let Some(forms) = schema["anyOf"].as_array() {
        if !value.is_null() {
            assert_described(document, &forms[0], value, place);
        }
        return;
    }
    if let Some(only) = schema.get("const") {
        return assert_eq!(value, only, "{place}");
    }
    match value {
        Value::Array(items) => {
            for item in items {
                assert_described(document, &schema["items"], item, place);
            }
        }
        Value::Object(fields) => {
            let Some(properties) = schema["properties"].as_object() else { return };
            for (name, field) in fields {
                let known = properties.get(name).unwrap_or_else(|| panic!("{place}.{name} is not described"));
                assert_described(document, known, field, &format!("{place}.{name}"));
            }
            for name in schema["required"].as_array().unwrap() {
                assert!(fields.contains_key(name.as_str().unwrap()), "{place} has no {name}");
            }
        }
        Value::Null => {
            let kinds = schema["type"].as_array().or(schema["enum"].as_array()).unwrap();
            assert!(kinds.contains(&json!("null")) || kinds.contains(&Value::Null), "{place} is null");
        }
        _ => {}
    }
}

#[tokio::test]
async fn answers_are_those_of_the_description() {
    let server = Server::start(ServeConfig::default()).await;
    let encode: EncodeChat = Box::new(|_| Ok(vec![97, 98]));
    let template = ChatTemplate::new("ab".to_owned(), TemplateTokens::default(), encode).unwrap();
    server.state.set_chat_template(template);
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let completion = json!({
        "prompt": "ab", "max_tokens": 2, "echo": true, "logprobs": 1, "prompt_logprobs": 2, "return_route": true, "return_token_ids": true,
    });
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": true, "return_route": true, "return_token_ids": true,
    });
    let asked = [
        ("/v1/completions", Some(completion)),
        ("/v1/chat/completions", Some(chat)),
        ("/v1/route", Some(json!({"prompt": "a"}))),
        ("/v1/models", None),
        ("/tokenize", Some(json!({"prompt": "a", "return_token_strs": true}))),
        ("/detokenize", Some(json!({"tokens": [97]}))),
        ("/tokenizer_info", None),
        ("/info", None),
        ("/health", None),
    ];
    for (path, body) in asked {
        let (method, reply) = match &body {
            Some(body) => ("post", server.post(path, body).await),
            None => ("get", server.get(path).await),
        };
        assert_eq!(reply.status, 200, "{path}");
        let operation = &document["paths"][path][method];
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path} is not described");
        assert_described(&document, schema, &reply.json(), path);
        let refused = server.send("DELETE", path, "", b"").await;
        let schema = &operation["responses"]["default"]["content"]["application/json"]["schema"];
        assert_described(&document, schema, &refused.json(), path);
    }
    // Every described address exists.
    for path in document["paths"].as_object().unwrap().keys() {
        let status = server.send("OPTIONS", &path.replace("{name}", "tiny"), "", b"").await.status;
        assert_eq!(status, 405, "{path}");
    }
}

#[tokio::test]
async fn the_page_shows_every_address_and_field_and_loads_nothing() {
    let server = Server::start(ServeConfig::default()).await;
    let document = server.get("/openapi.json").await.json();
    let reply = server.get("/docs").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(reply.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let page = String::from_utf8(reply.body).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let method = operations.as_object().unwrap().keys().next().unwrap().to_uppercase();
        assert!(page.contains(&format!("<h2><code>{method} {path}</code></h2>")), "{path}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas.iter().filter(|(name, _)| name.ends_with("Request")) {
        for field in schema["properties"].as_object().unwrap().keys() {
            assert!(page.contains(&format!("<tr><td><code>{field}</code>")), "{name}.{field}");
        }
    }
    for part in [
        "<code>prompt</code> (required)<td>string or list of string or list of integer, 0 or more or list of list of",
        "<code>n</code><td>integer, 1 to 128<td>Choices of each prompt.",
        "<code>suffix</code><td>&quot;&quot; or false<td>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for foreign in ["<script", "http:", "https:", " src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}
