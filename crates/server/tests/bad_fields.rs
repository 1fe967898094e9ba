//! Every field of every request, with values of a wrong type or range and in wrong combinations: an error in OpenAI's format
//! that names the field, and no other effect.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;

use client::{JSON, Server};
use dipaco_server::{ChatTemplate, EncodeChat, ServeConfig, TemplateTokens};
use serde_json::{Value, json};

/// A request of each kind that is accepted.
fn good() -> [(&'static str, Value); 5] {
    let hello = json!([{"role": "user", "content": "ab"}]);
    [
        ("/v1/completions", json!({"prompt": "ab", "max_tokens": 2, "seed": 1})),
        ("/v1/chat/completions", json!({"messages": hello, "max_tokens": 2, "seed": 1})),
        ("/v1/route", json!({"prompt": "ab"})),
        ("/tokenize", json!({"prompt": "ab"})),
        ("/detokenize", json!({"tokens": [97, 98]})),
    ]
}

async fn server() -> Server {
    let server = Server::start(ServeConfig { max_choices: 8, ..ServeConfig::default() }).await;
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
    let encode: EncodeChat = Box::new(|text| Ok(text.bytes().map(u32::from).collect()));
    server
        .state
        .set_chat_template(ChatTemplate::new(template, TemplateTokens::of_end("<|end|>"), encode).unwrap());
    server
}

/// What a server has done, without the counts of HTTP requests and of refusals.
async fn done(server: &Server) -> (Vec<String>, dipaco_infer::Load) {
    let metrics = String::from_utf8(server.get("/metrics").await.body).unwrap();
    let lines = metrics
        .lines()
        .filter(|line| !line.contains("_http_") && !line.contains("reason=\"refused\""))
        .map(str::to_owned)
        .collect();
    (lines, server.state.engine().load())
}

/// A bound of a schema on a number of items, properties or characters.
fn bound(schema: &Value, name: &str) -> Option<usize> {
    schema[name].as_u64().map(|bound| bound as usize)
}

/// True if a value fits a schema of `/openapi.json`.
fn fits(schema: &Value, value: &Value) -> bool {
    if let Some(forms) = schema["anyOf"].as_array() {
        return forms.iter().any(|form| fits(form, value));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    if let Some(only) = schema.get("const") {
        return value == only;
    }
    let whole = || value.is_i64() || value.is_u64();
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => whole(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    };
    let kind = &schema["type"];
    let number = value.as_f64().unwrap_or(0.0);
    let at_most = |name: &str, length: usize| bound(schema, name).is_none_or(|most| length <= most);
    let parts = match value {
        Value::Array(items) => {
            at_most("maxItems", items.len())
                && bound(schema, "minItems").is_none_or(|least| items.len() >= least)
                && items.iter().all(|item| fits(&schema["items"], item))
        }
        Value::Object(fields) => {
            let field_fits = |(name, field): (&String, &Value)| {
                let described = [&schema["properties"][name], &schema["additionalProperties"]];
                let described = described.into_iter().find(|schema| schema.is_object());
                described.is_none_or(|schema| fits(schema, field))
            };
            at_most("maxProperties", fields.len()) && fields.iter().all(field_fits)
        }
        Value::String(text) => at_most("maxLength", text.chars().count()),
        _ => true,
    };
    let typed = match kind {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    };
    typed
        && schema["minimum"].as_f64().is_none_or(|least| number >= least)
        && schema["maximum"].as_f64().is_none_or(|most| number <= most)
        && parts
}

/// Values of all types, and numbers around the bounds of a schema.
fn values(schema: &Value) -> Vec<Value> {
    let mut values = vec![
        json!("x"),
        json!(true),
        json!(1.5),
        json!(-7),
        json!(5_000_000_000_u64),
        json!(1e300),
        json!([{}]),
        json!([-1]),
        json!([1.5]),
        json!([["x"]]),
        json!({"1": "x"}),
        json!({"type": 1, "include_usage": 1}),
    ];
    for (name, step) in [("minimum", -1.0), ("maximum", 1.0)] {
        values.extend(schema[name].as_f64().map(|bound| json!(bound + step)));
    }
    values.extend(too_long(schema));
    values
}

/// Values of one item, property or character more than a schema or one of its forms allows.
fn too_long(schema: &Value) -> Vec<Value> {
    let forms = schema["anyOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
    let of_form = |form: &Value| {
        let more = |name: &str| bound(form, name).map(|most| most + 1);
        let item = match form["items"]["type"].as_str() {
            Some("integer") => json!(1),
            Some("object") => json!({"role": "user", "content": "a"}),
            _ => json!("x"),
        };
        let list = more("maxItems").map(|length| json!(vec![item; length]));
        let object = |length: usize| (0..length).map(|id| (id.to_string(), json!(1))).collect();
        let object = more("maxProperties").map(|length| Value::Object(object(length)));
        let text = more("maxLength").map(|length| json!("x".repeat(length)));
        [list, object, text].into_iter().flatten().collect::<Vec<_>>()
    };
    forms.iter().flat_map(of_form).collect()
}

#[tokio::test]
async fn a_wrong_value_of_any_field_is_named_and_changes_nothing() {
    let server = server().await;
    let document = server.get("/openapi.json").await.json();
    let answers = async || {
        let mut answers = Vec::new();
        for (route, body) in good() {
            let reply = server.post(route, &body).await;
            assert_eq!(reply.status, 200, "{route}");
            answers.push(reply.json().get("choices").cloned());
        }
        answers
    };
    let expected = answers().await;
    let before = done(&server).await;
    for (route, good) in good() {
        let body = &document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let schema = document.pointer(body["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
        for (field, schema) in schema["properties"].as_object().unwrap() {
            let wrong: Vec<_> = values(schema).into_iter().filter(|value| !fits(schema, value)).collect();
            assert!(!wrong.is_empty(), "{route} {field}: no wrong value is tried");
            for value in wrong {
                let mut body = good.clone();
                body[field] = value.clone();
                let (status, message, kind, param, _) = server.post(route, &body).await.error();
                let found = (status, kind.as_str(), param.as_str());
                let expected = (400, "invalid_request_error", Some(field.as_str()));
                assert_eq!(found, expected, "{route} {field} {value}: {message}");
            }
        }
        for name in schema["required"].as_array().unwrap() {
            let mut body = good.clone();
            body.as_object_mut().unwrap().remove(name.as_str().unwrap());
            assert_eq!(server.post(route, &body).await.error().3, *name, "{route}");
        }
    }
    assert_eq!(done(&server).await, before);
    assert_eq!(answers().await, expected);
}

/// The limits of lists, objects and texts are in the description, so the test above tries values beyond them.
#[tokio::test]
async fn the_limits_of_entries_are_described() {
    let server = server().await;
    let document = server.get("/openapi.json").await.json();
    for (request, field, bounds) in [
        ("CompletionRequest", "logit_bias", json!({"maxProperties": 1024})),
        ("CompletionRequest", "stop_token_ids", json!({"maxItems": 1024})),
        ("CompletionRequest", "stop", json!({"maxLength": 1024, "maxItems": 64})),
        ("CompletionRequest", "request_id", json!({"maxLength": 128})),
        ("CompletionRequest", "max_tokens", json!({"maximum": 16_777_215})),
        ("ChatRequest", "messages", json!({"maxItems": 4096})),
        ("ChatRequest", "max_completion_tokens", json!({"maximum": 16_777_215})),
    ] {
        let schema = &document["components"]["schemas"][request]["properties"][field];
        let forms = schema["anyOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
        for (name, bound) in bounds.as_object().unwrap() {
            assert!(forms.iter().any(|form| form[name] == *bound), "{request} {field} {name}: {schema}");
        }
    }
}

#[tokio::test]
async fn wrong_combinations_and_headers_are_named_and_change_nothing() {
    let server = server().await;
    let before = done(&server).await;
    let (ids, long) = (vec![97; 401], "a".repeat(401));
    for (status, param, route, headers, fields) in [
        (400, "prompt", "/v1/completions", "", json!({"prompt": []})),
        (400, "prompt", "/v1/completions", "", json!({"prompt": ["a", ""]})),
        (400, "n", "/v1/completions", "", json!({"prompt": ["a"], "n": 9})),
        (400, "prompt", "/v1/completions", "", json!({"prompt": vec!["a"; 9]})),
        (400, "prompt", "/v1/completions", "", json!({"prompt": [257]})),
        (400, "prompt", "/v1/completions", "", json!({"prompt": ids})),
        (400, "prompt", "/v1/completions", "", json!({"prompt": long})),
        (400, "n", "/v1/completions", "", json!({"prompt": ["a", "b", "c"], "n": 3})),
        (400, "max_tokens", "/v1/completions", "", json!({"max_tokens": 399})),
        (400, "max_tokens", "/v1/chat/completions", "", json!({"max_tokens": 399})),
        (400, "stream_options", "/v1/completions", "", json!({"stream_options": {}})),
        (
            400,
            "stream_options",
            "/v1/completions",
            "",
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
        ),
        (400, "top_logprobs", "/v1/chat/completions", "", json!({"top_logprobs": 1})),
        (400, "prompt_logprobs", "/v1/completions", "", json!({"stream": true, "prompt_logprobs": 0})),
        (400, "prompt_logprobs", "/v1/chat/completions", "", json!({"prompt_logprobs": 1})),
        (400, "logit_bias", "/v1/completions", "", json!({"logit_bias": {"257": 1}})),
        (400, "logit_bias", "/v1/completions", "", json!({"logit_bias": {"97": 101}})),
        (400, "stop_token_ids", "/v1/completions", "", json!({"stop_token_ids": [257]})),
        (400, "stop", "/v1/completions", "", json!({"stop": vec!["x"; 65]})),
        (400, "stop", "/v1/completions", "", json!({"stop": "x".repeat(1025)})),
        (400, "request_id", "/v1/completions", "", json!({"request_id": "x".repeat(129)})),
        (400, "truncate_prompt_tokens", "/v1/completions", "", json!({"truncate_prompt_tokens": 0})),
        (400, "route_every", "/v1/completions", "", json!({"route_every": 16})),
        (400, "path", "/v1/completions", "", json!({"path": 4})),
        (400, "path", "/v1/completions", "", json!({"path": 1, "model": "tiny/path-2"})),
        (400, "path", "/v1/completions", "x-dipaco-path: 2\r\n", json!({"path": 1})),
        (400, "path", "/v1/completions", "x-dipaco-path: 4\r\n", json!({})),
        (400, "x-dipaco-path", "/v1/completions", "x-dipaco-path: -1\r\n", json!({})),
        (400, "x-dipaco-path", "/v1/completions", "x-dipaco-path: \u{e9}\r\n", json!({})),
        (400, "x-dipaco-timeout", "/v1/completions", "x-dipaco-timeout: soon\r\n", json!({})),
        (400, "x-dipaco-timeout", "/v1/completions", "x-dipaco-timeout: -1\r\n", json!({})),
        (400, "x-dipaco-timeout", "/v1/completions", "x-dipaco-timeout: 1e400\r\n", json!({})),
        (404, "model", "/v1/completions", "", json!({"model": "other"})),
        (404, "model", "/v1/chat/completions", "", json!({"model": "tiny/path-4"})),
        (404, "model", "/v1/route", "", json!({"model": "other"})),
        (404, "model", "/tokenize", "", json!({"model": "other"})),
        (404, "model", "/detokenize", "", json!({"model": "other"})),
        (400, "prompt", "/v1/route", "", json!({"prompt": [257]})),
        (400, "tokens", "/detokenize", "", json!({"tokens": [257]})),
    ] {
        let mut body = good().into_iter().find(|(name, _)| *name == route).unwrap().1;
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let headers = format!("{JSON}{headers}");
        let reply = server.send("POST", route, &headers, body.to_string().as_bytes()).await;
        let (found, message, kind, named, _) = reply.error();
        assert_eq!((found, kind.as_str()), (status, "invalid_request_error"), "{route} {fields}: {message}");
        assert_eq!(named, param, "{route} {headers:?} {fields}: {message}");
    }
    assert_eq!(done(&server).await, before);
}
