//! Damaged bodies of requests.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;

use client::{JSON, Server};
use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::rand::seq::IndexedRandom;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_server::ServeConfig;
use serde_json::{Value, json};

const ROUTES: [&str; 4] = ["/v1/completions", "/tokenize", "/detokenize", "/v1/route"];

/// A body that all routes accept, with some of the fields of a completion.
fn valid(rng: &mut CaseRng) -> Vec<u8> {
    let mut body = json!({"prompt": "abc", "tokens": [97, 98], "max_tokens": 3});
    let fields = [
        ("prompt", json!("é x")),
        ("model", json!("tiny")),
        ("temperature", json!(0.5)),
        ("top_p", json!(0.9)),
        ("top_k", json!(5)),
        ("n", json!(2)),
        ("logprobs", json!(3)),
        ("echo", json!(true)),
        ("stop", json!(["x", "yz"])),
        ("stop_token_ids", json!([100])),
        ("seed", json!(7)),
        ("logit_bias", json!({"97": 1.5, "100": -2})),
        ("path", json!(1)),
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
        ("min_tokens", json!(1)),
        ("return_route", json!(true)),
        ("return_token_strs", json!(true)),
        ("other", json!([[1], {"a": [null, "é\n"]}])),
    ];
    for _ in 0..rng.random_range(0..8) {
        let (name, value) = fields.choose(rng).unwrap();
        body[*name] = value.clone();
    }
    // `stream_options` is refused without `stream`.
    if body.get("stream_options").is_some() {
        body["stream"] = Value::Bool(true);
    }
    body.to_string().into_bytes()
}

#[test]
fn damaged_bodies_are_refused_or_answered() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = ServeConfig { slots: 2, ..ServeConfig::default() };
    let server = runtime.block_on(Server::start(config));
    let mut turn = 0;
    Campaign::new("json-body").cases(1000).play(valid, |bytes| {
        // The stand-in for a model fails at these characters on purpose.
        let bytes: Vec<u8> =
            bytes.iter().map(|byte| if b"!#$".contains(byte) { b'_' } else { *byte }).collect();
        turn += 1;
        let route = ROUTES[turn % ROUTES.len()];
        let reply = runtime.block_on(server.send("POST", route, JSON, &bytes));
        match reply.status {
            200 => Reached::Accepted,
            status @ 400..500 => {
                let (_, message, _, _, code) = reply.error();
                assert!(status != 404 || code == "model_not_found", "{message}");
                if code == "invalid_json" { Reached::Outside } else { Reached::Inside }
            }
            status => panic!("{route} answers {status}: {}", String::from_utf8_lossy(&reply.body)),
        }
    });
    // All slots are free again, and the server still answers.
    let after =
        runtime.block_on(server.complete(json!({"prompt": "abc", "max_tokens": 2, "temperature": 0})));
    assert_eq!(after.status, 200);
    assert_eq!(after.json()["choices"][0]["text"].as_str().unwrap().len(), 2);
}
