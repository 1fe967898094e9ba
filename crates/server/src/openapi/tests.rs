#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::fields::{chat, completion, detokenize, route, tokenize};
use super::{Field, document};
use crate::completions::read_fields;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::tokenize::{DetokenizeRequest, TokenizeRequest};

fn names(fields: &[Field]) -> BTreeSet<String> {
    fields.iter().map(|field| field.name.to_owned()).collect()
}

/// Reads a body. Returns the names of the fields that were looked for.
fn looked_for(
    body: Value,
    read: impl FnOnce(&mut Fields) -> Result<(), ApiError>,
) -> Result<BTreeSet<String>, ApiError> {
    let mut fields = Fields::new("body", body)?;
    read(&mut fields)?;
    assert!(fields.rest().is_empty(), "these fields are not read: {:?}", fields.rest());
    Ok(fields.asked())
}

#[test]
fn the_fields_are_exactly_those_that_the_server_reads() {
    let text = json!({"prompt": "a", "stream": true, "stream_options": {}});
    let read = |fields: &mut Fields| read_fields(fields, false);
    assert_eq!(looked_for(text, read).unwrap(), names(&completion()));
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = json!({"messages": messages, "logprobs": true, "top_logprobs": 1, "max_completion_tokens": 5});
    let read = |fields: &mut Fields| read_fields(fields, true);
    assert_eq!(looked_for(body, read).unwrap(), names(&chat()));
    let read = |fields: &mut Fields| crate::route::read(fields).map(drop);
    assert_eq!(looked_for(json!({"prompt": "a"}), read).unwrap(), names(&route()));
    let read = |fields: &mut Fields| TokenizeRequest::read(fields).map(drop);
    assert_eq!(looked_for(json!({"prompt": "a"}), read).unwrap(), names(&tokenize()));
    let read = |fields: &mut Fields| DetokenizeRequest::read(fields).map(drop);
    assert_eq!(looked_for(json!({"tokens": [1]}), read).unwrap(), names(&detokenize()));
}

/// A value that a schema allows.
fn example(schema: &Value) -> Value {
    if let Some(first) = schema["anyOf"].as_array().and_then(|forms| forms.first()) {
        return example(first);
    }
    if let Some(allowed) = schema["enum"].as_array() {
        return allowed[1].clone();
    }
    let kind = schema["type"].as_array().map_or(&schema["type"], |kinds| &kinds[0]);
    match kind.as_str().unwrap() {
        "string" => json!("a"),
        "boolean" => json!(true),
        "integer" => {
            schema.get("minimum").filter(|least| least.as_i64() > Some(0)).cloned().unwrap_or(json!(1))
        }
        "number" => schema["maximum"].clone(),
        "array" => match schema.get("items") {
            Some(items) => json!([example(items)]),
            None => json!([]),
        },
        "object" => match schema["properties"].as_object() {
            Some(properties) if properties.contains_key("role") => json!({"role": "user", "content": "a"}),
            Some(properties) if properties.contains_key("type") => json!({"type": "text"}),
            _ => json!({}),
        },
        "null" => Value::Null,
        other => panic!("a schema of type {other}"),
    }
}

/// The schema of each type that a schema allows.
fn kinds(schema: &Value) -> Vec<Value> {
    let Some(kinds) = schema["type"].as_array() else { return vec![schema.clone()] };
    let of = |kind: &Value| {
        let mut one = schema.clone();
        one["type"] = kind.clone();
        one
    };
    kinds.iter().map(of).collect()
}

#[test]
fn every_field_takes_an_example_of_each_type_and_refuses_another_one() {
    for (fields, is_chat) in [(completion(), false), (chat(), true)] {
        let read = |fields: &mut Fields| read_fields(fields, is_chat);
        let least = |name: &str| {
            let mut body = if is_chat {
                json!({"messages": [{"role": "user", "content": "a"}]})
            } else {
                json!({"prompt": "a"})
            };
            match name {
                "stream_options" => body["stream"] = true.into(),
                "top_logprobs" => body["logprobs"] = true.into(),
                _ => {}
            }
            body
        };
        for field in fields {
            for schema in kinds(&field.schema) {
                let mut body = least(field.name);
                body[field.name] = example(&schema);
                looked_for(body, read).unwrap_or_else(|error| panic!("{} {schema}: {error:?}", field.name));
            }
            let mut body = least(field.name);
            body[field.name] = json!([{"wrong": [true]}]);
            let refused = looked_for(body, read).unwrap_err();
            assert_eq!(refused.status, 400, "{}", field.name);
            let named = refused.param.unwrap();
            let stands_for = [("max_completion_tokens", "max_tokens"), ("top_logprobs", "logprobs")];
            assert!(
                named == field.name || stands_for.contains(&(field.name, &*named)),
                "{named} {}",
                field.name
            );
        }
    }
}

/// Fields that clients of OpenAI's API and of vLLM send.
#[test]
fn the_fields_of_other_servers_are_there() {
    let own = names(&completion());
    for name in [
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "best_of",
        "stream",
        "stream_options",
        "logprobs",
        "echo",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "suffix",
        "top_k",
        "min_p",
        "repetition_penalty",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "min_tokens",
        "skip_special_tokens",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "prompt_logprobs",
        "return_tokens_as_token_ids",
        "return_token_ids",
        "request_id",
        "user",
        "path",
        "route_every",
        "return_route",
        "priority",
    ] {
        assert!(own.contains(name), "{name} is not described");
    }
}

#[test]
fn every_reference_has_its_schema() {
    let document = document("0.0.0", true);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    let mut found = 0;
    for rest in text.split("#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} has no schema");
        found += 1;
    }
    assert!(found > 30, "{found} references");
}
