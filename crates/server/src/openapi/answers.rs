//! The schemas of all answers.

use serde_json::{Map, Value, json};

/// The schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let named = completions().into_iter().chain(others());
    named.map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// An object with these properties, of which those named in `optional` may be absent.
fn object(properties: Value, optional: &[&str]) -> Value {
    let names = properties.as_object().into_iter().flatten().map(|(name, _)| name.clone());
    let required: Vec<String> = names.filter(|name| !optional.contains(&name.as_str())).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn integers() -> Value {
    list(json!({"type": "integer"}))
}

fn string() -> Value {
    json!({"type": "string"})
}

fn integer() -> Value {
    json!({"type": "integer"})
}

fn nullable(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn completions() -> Vec<(&'static str, Value)> {
    let whole = |object: &str, choice: &str| {
        self::object(
            json!({
                "id": string(), "object": {"const": object}, "created": integer(), "model": string(),
                "system_fingerprint": string(), "choices": list(reference(choice)), "usage": reference("Usage"),
            }),
            &["usage"],
        )
    };
    let stop_reason = json!({"type": ["string", "integer", "null"]});
    let finish_reason = json!({"enum": ["stop", "length", null]});
    let choice = json!({
        "index": integer(), "text": string(), "logprobs": nullable(reference("LogProbs")),
        "finish_reason": finish_reason, "stop_reason": stop_reason,
        "prompt_logprobs": list(json!({"type": ["object", "null"], "additionalProperties": reference("PromptLogProb")})),
        "prompt_token_ids": integers(), "token_ids": integers(), "dipaco": reference("ChosenRoute"),
    });
    let speech = object(json!({"role": {"const": "assistant"}, "content": string()}), &["role"]);
    let chat_choice = json!({
        "index": integer(), "message": speech, "delta": speech, "logprobs": {"type": ["object", "null"]},
        "finish_reason": finish_reason, "stop_reason": stop_reason,
        "prompt_token_ids": integers(), "token_ids": integers(), "dipaco": reference("ChosenRoute"),
    });
    let numbers = list(json!({"type": ["number", "null"]}));
    let tops = list(json!({"type": ["object", "null"], "additionalProperties": {"type": "number"}}));
    let log_probs = json!({"tokens": list(string()), "token_logprobs": numbers, "top_logprobs": tops, "text_offset": integers()});
    let prompt_token = json!({"logprob": {"type": "number"}, "rank": integer(), "decoded_token": string()});
    let details = object(json!({"cached_tokens": integer()}), &[]);
    let usage = json!({
        "prompt_tokens": integer(), "completion_tokens": integer(), "total_tokens": integer(),
        "prompt_tokens_details": details,
    });
    let route = json!({"path": integer(), "modules": integers(), "seed": integer(), "rerouted": integer()});
    vec![
        ("Completion", whole("text_completion", "Choice")),
        ("ChatCompletion", whole("chat.completion", "ChatChoice")),
        ("Choice", object(choice, &["prompt_logprobs", "prompt_token_ids", "token_ids", "dipaco"])),
        ("ChatChoice", object(chat_choice, &["message", "delta", "prompt_token_ids", "token_ids", "dipaco"])),
        ("LogProbs", object(log_probs, &[])),
        ("PromptLogProb", object(prompt_token, &[])),
        ("Usage", object(usage, &[])),
        ("ChosenRoute", object(route, &[])),
    ]
}

fn info() -> Value {
    let limits = json!({
        "slots": integer(), "queued_requests": integer(), "queued_tokens": integer(), "choices": integer(),
        "answer_tokens": integer(), "body_bytes": integer(), "request_seconds": {"type": "number"},
    });
    let info = json!({
        "model": string(), "version": string(), "git": string(), "system_fingerprint": string(), "created": integer(),
        "max_model_len": integer(), "vocab_size": integer(), "paths": integer(), "modules_per_level": integers(),
        "route_prefix_tokens": integer(), "reroutes": {"type": "boolean"}, "route_every": integer(),
        "reroute_by": string(), "path_parameters": integer(), "total_parameters": integer(), "format": string(),
        "kv_type": string(), "weight_bytes": integer(), "weight_bytes_limit": {"type": ["integer", "null"]},
        "modules_loaded": integer(), "limits": object(limits, &[]),
    });
    object(info, &[])
}

fn others() -> Vec<(&'static str, Value)> {
    let error = object(
        json!({
            "message": string(), "type": string(), "param": {"type": ["string", "null"]},
            "code": {"type": ["string", "null"]},
        }),
        &[],
    );
    let number = json!({"type": ["number", "null"]});
    let level = object(
        json!({"level": integer(), "module": integer(), "id": string(), "distance": number, "margin": number}),
        &[],
    );
    let path = json!({
        "path": integer(), "model": string(), "distance": number, "measure": {"enum": ["euclidean", "negative_log_probability", null]},
        "levels": list(level), "distances": list(json!({"type": "number"})),
        "prefix_tokens": integer(), "prefix": integers(), "prefix_text": string(),
    });
    let meta = json!({
        "n_vocab": integer(), "n_ctx_train": integer(), "n_embd": integer(), "n_params": integer(), "size": integer(),
    });
    let model = json!({
        "id": string(), "object": {"const": "model"}, "created": integer(), "owned_by": string(), "root": string(),
        "parent": {"type": ["string", "null"]}, "max_model_len": integer(), "meta": object(meta, &[]),
        "dipaco": {"type": "object"},
    });
    let tokenized = json!({
        "count": integer(), "max_model_len": integer(), "tokens": integers(), "token_strs": nullable(list(string())),
    });
    vec![
        ("Error", object(json!({"error": error}), &[])),
        ("ChosenPath", object(path, &[])),
        ("Model", object(model, &["dipaco"])),
        ("ModelList", object(json!({"object": {"const": "list"}, "data": list(reference("Model"))}), &[])),
        ("Tokenized", object(tokenized, &[])),
        ("Detokenized", object(json!({"prompt": string()}), &[])),
        ("TokenizerInfo", json!({"type": "object"})),
        ("Info", info()),
        ("Health", object(json!({"status": {"const": "ok"}}), &[])),
        ("Description", json!({"type": "object"})),
    ]
}
