//! Guarantees of `/v1/completions` for clients, over real sockets.
#![allow(clippy::unwrap_used)]

#[path = "completions/chat.rs"]
mod chat;
#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;
#[path = "completions/leaving.rs"]
mod leaving;
#[path = "completions/prompt_log_probs.rs"]
mod prompt_log_probs;
#[path = "completions/shares.rs"]
mod shares;
#[path = "completions/streams.rs"]
mod streams;

use client::{JSON, Server, head, reply};
use dipaco_server::ServeConfig;
use serde_json::{Value, json};

async fn server() -> Server {
    Server::start(ServeConfig { slots: 2, ..ServeConfig::default() }).await
}

#[tokio::test]
async fn a_completion_has_the_fields_of_openai() {
    let server = server().await;
    let reply = server
        .complete(json!({"model": "tiny/path-0", "prompt": "a", "max_tokens": 3, "temperature": 0}))
        .await;
    assert_eq!((reply.status, reply.header("x-dipaco-path")), (200, Some("0")));
    let mut body = reply.json();
    assert!(
        body["id"].as_str().unwrap().starts_with("cmpl-")
            && body["created"].as_u64().unwrap() > 1_600_000_000
    );
    body["id"] = Value::Null;
    body["created"] = Value::Null;
    let expected = json!({
        "id": null, "object": "text_completion", "created": null, "model": "tiny/path-0", "system_fingerprint": "fp_test",
        "choices": [{"index": 0, "text": "bcd", "logprobs": null, "finish_reason": "length", "stop_reason": null}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}},
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn all_prompt_forms_and_choices_come_in_order_with_their_paths() {
    let server = server().await;
    let texts = |reply: &client::Reply| -> Vec<(u64, String)> {
        let choice = |c: &Value| (c["index"].as_u64().unwrap(), c["text"].as_str().unwrap().to_owned());
        reply.json()["choices"].as_array().unwrap().iter().map(choice).collect()
    };
    // The fake model routes by the byte: `a` is 97 and goes to path 1, `b` to path 2 and so on.
    let base = json!({"max_tokens": 2, "temperature": 0});
    for (prompt, expected, paths) in [
        (json!("a"), vec!["ce"], "1"),
        (json!(["a", "b"]), vec!["ce", "eh"], "1,2"),
        (json!([97, 98]), vec!["df"], "1"),
        (json!([[97], [98], [99]]), vec!["ce", "eh", "gk"], "1,2,3"),
    ] {
        let mut body = base.clone();
        body["prompt"] = prompt;
        let reply = server.complete(body).await;
        let expected: Vec<_> = (0u64..).zip(expected.into_iter().map(ToOwned::to_owned)).collect();
        assert_eq!((texts(&reply), reply.header("x-dipaco-path")), (expected, Some(paths)));
    }
    let body = json!({"prompt": ["a", "b"], "n": 2, "max_tokens": 2, "temperature": 0, "return_route": true, "seed": 9});
    let reply = server.complete(body).await;
    let choices = reply.json()["choices"].clone();
    let all: Vec<_> = choices
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["text"].as_str(), c["dipaco"]["path"].as_u64()))
        .collect();
    assert_eq!(
        all,
        [(Some("ce"), Some(1)), (Some("ce"), Some(1)), (Some("eh"), Some(2)), (Some("eh"), Some(2))]
    );
    assert_eq!(choices[2]["dipaco"], json!({"path": 2, "modules": [1, 0], "seed": 9, "rerouted": 0}));
    assert_eq!(reply.json()["usage"]["completion_tokens"], 8);
    assert_eq!(reply.json()["usage"]["prompt_tokens"], 2);
}

#[tokio::test]
async fn a_path_can_be_pinned_in_three_ways_that_must_agree() {
    let server = server().await;
    let text = |reply: client::Reply| reply.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let base = json!({"prompt": "a", "max_tokens": 1, "temperature": 0});
    let with = |key: &str, value: Value| {
        let mut body = base.clone();
        body[key] = value;
        body
    };
    assert_eq!(text(server.complete(with("model", json!("tiny"))).await), "c");
    assert_eq!(text(server.complete(with("model", json!("tiny/path-003"))).await), "e");
    assert_eq!(text(server.complete(with("path", json!(3))).await), "e");
    let headers = format!("{JSON}x-dipaco-path: 3\r\n");
    let reply = server.send("POST", "/v1/completions", &headers, base.to_string().as_bytes()).await;
    assert_eq!(text(reply), "e");
    let mut both = with("path", json!(3));
    both["model"] = json!("tiny/path-2");
    assert_eq!(server.complete(both).await.error().0, 400);
    let (status, message, kind, param, _) = server.complete(with("path", json!(4))).await.error();
    assert_eq!((status, kind.as_str(), param), (400, "invalid_request_error", json!("path")));
    assert!(message.contains("paths 0 to 3"), "{message}");
}

/// Evaluates a choice like lm-evaluation-harness: sums the log-probabilities after the context without the last entry, and
/// compares each with the largest of its position.
fn harness(choice: &Value, context: usize) -> (f64, bool) {
    let log_probs = &choice["logprobs"];
    let tokens = log_probs["token_logprobs"].as_array().unwrap();
    let tops = log_probs["top_logprobs"].as_array().unwrap();
    let own: Vec<f64> = tokens[context..tokens.len() - 1].iter().map(|v| v.as_f64().unwrap()).collect();
    let greedy = own.iter().zip(&tops[context..tops.len() - 1]).all(|(own, top)| {
        *own == top.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).fold(f64::MIN, f64::max)
    });
    (own.iter().sum(), greedy)
}

#[tokio::test]
async fn the_harness_reads_the_right_sums() {
    let server = server().await;
    // After `x`, `y`, `z` the generated token is the end-of-text token, which must have an entry too.
    let prompts = [vec![97u32, 98, 99, 100], vec![120, 121, 122], vec![97, 98, 120, 99, 100, 101]];
    let body = json!({
        "model": "tiny/path-0", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true,
    });
    let reply = server.complete(body).await;
    let answer = reply.json();
    for ((prompt, choice), greedy) in
        prompts.iter().zip(answer["choices"].as_array().unwrap()).zip([true, true, false])
    {
        for array in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(choice["logprobs"][array].as_array().unwrap().len(), prompt.len() + 1, "{array}");
        }
        assert!(
            choice["logprobs"]["token_logprobs"][0].is_null()
                && choice["logprobs"]["top_logprobs"][0].is_null()
        );
        let expected: f64 = (1..prompt.len())
            .map(|i| dipaco_infer::score(&fake::logits(prompt[i - 1], i - 1, 0), prompt[i], 0).unwrap())
            .map(|scored| f64::from(scored.log_prob.unwrap()))
            .sum();
        let (sum, is_greedy) = harness(choice, 1);
        // The exact value of the f32, not its shortest decimal.
        let second = choice["logprobs"]["token_logprobs"][1].as_f64().unwrap();
        assert_eq!(second, f64::from(second as f32));
        assert!((sum - expected).abs() < 1e-5, "{sum} {expected}");
        assert_eq!(is_greedy, greedy);
    }
    let end = &answer["choices"][1];
    assert_eq!((&end["text"], &end["finish_reason"]), (&json!("xyz"), &json!("stop")));
    assert_eq!(end["logprobs"]["tokens"], json!(["x", "y", "z", "<|end|>"]));
    assert_eq!(end["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
}

#[tokio::test]
async fn a_prompt_can_be_scored_without_generating() {
    let server = server().await;
    let body = json!({"prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 5, "return_tokens_as_token_ids": true});
    let choice = server.complete(body).await.json()["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abc"), &json!("length")));
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), 3);
    let top = choice["logprobs"]["top_logprobs"][2].as_object().unwrap();
    assert!((5..=6).contains(&top.len()));
    assert_eq!(top["token_id:99"], choice["logprobs"]["token_logprobs"][2]);
    let choice = server
        .complete(json!({"prompt": "aé", "max_tokens": 2, "echo": true, "temperature": 0, "path": 0}))
        .await;
    assert!(choice.json()["choices"][0]["text"].as_str().unwrap().starts_with("aé"));
}

#[tokio::test]
async fn more_prompts_than_slots_wait_their_turn() {
    let server = server().await;
    let prompts: Vec<Vec<u32>> = (0..256).map(|i| vec![97 + i % 20; 1 + i as usize % 7]).collect();
    let body =
        json!({"prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true, "path": 1});
    let answer = server.complete(body).await.json();
    for (i, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["index"], i);
        assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), prompts[i].len() + 1);
    }
}

#[tokio::test]
async fn the_seed_that_was_drawn_gives_the_same_text_again() {
    let server = server().await;
    let body = json!({"prompt": "hello", "max_tokens": 30, "ignore_eos": true, "temperature": 2});
    let first = server.complete(body.clone()).await;
    let mut again = body;
    again["seed"] = first.header("x-dipaco-seed").unwrap().parse::<u64>().unwrap().into();
    assert_eq!(server.complete(again).await.json()["choices"], first.json()["choices"]);
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot() {
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    let mut load = server.state.engine().watch_load();
    for (n, stream) in [(1.0, true), (2.0, false)] {
        server.model.gate.shut();
        let body = json!({"prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": stream, "path": 0})
            .to_string();
        let mut connection = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
        load.wait_for(|load| load.running == 1).await.unwrap();
        if stream {
            // The head arrives before the first token, because the path is known by then.
            assert!(head(&mut connection).await.starts_with("HTTP/1.1 200"));
        }
        // A second request waits. When its client goes, it must leave the queue although the slot is still busy.
        let second = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
        load.wait_for(|load| load.waiting == 1).await.unwrap();
        drop(second);
        load.wait_for(|load| load.waiting == 0).await.unwrap();
        drop(connection);
        // A third request gets the slot only if the first request gave it back.
        let third = json!({"prompt": "a", "max_tokens": 1, "temperature": 0, "path": 0}).to_string();
        let third = server.begin("POST", "/v1/completions", JSON, third.as_bytes()).await;
        load.wait_for(|load| load.waiting == 1).await.unwrap();
        server.model.gate.open();
        assert_eq!(reply(third).await.json()["choices"][0]["text"], "b");
        let aborted = "dipaco_request_success_total{model_name=\"tiny\",finished_reason=\"abort\"}";
        assert_eq!(server.metric(aborted).await, 2.0 * n);
    }
}

#[tokio::test]
async fn overload_is_429_with_a_time_to_come_back() {
    let config = ServeConfig { slots: 1, queued_requests: 1, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let first = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    let second = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    load.wait_for(|load| load.waiting == 1).await.unwrap();
    let refused = server.complete(json!({"prompt": "a"})).await;
    let (status, _, kind, _, code) = refused.error();
    assert_eq!((status, kind.as_str(), code), (429, "rate_limit_error", json!("queue_full")));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    server.model.gate.open();
    assert_eq!((reply(first).await.status, reply(second).await.status), (200, 200));
    assert_eq!(
        server.metric("dipaco_request_failure_total{model_name=\"tiny\",reason=\"overloaded\"}").await,
        1.0
    );
}

#[tokio::test]
async fn equal_prompts_without_a_seed_get_different_texts() {
    let server = server().await;
    let body = json!({
        "prompt": vec!["hello"; 8], "max_tokens": 30, "ignore_eos": true, "temperature": 2, "return_route": true,
    });
    let texts = |reply: &client::Reply| -> Vec<String> {
        let choices = reply.json()["choices"].as_array().unwrap().clone();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let first = server.complete(body.clone()).await;
    let distinct: std::collections::BTreeSet<_> = texts(&first).into_iter().collect();
    assert_eq!(distinct.len(), 8, "{distinct:?}");
    assert_eq!(first.header("x-dipaco-seed"), None, "there are eight seeds");
    // Each choice names its seed, and the seed gives its text again.
    let third = first.json()["choices"][3].clone();
    let again = json!({
        "prompt": "hello", "max_tokens": 30, "ignore_eos": true, "temperature": 2, "seed": third["dipaco"]["seed"],
    });
    assert_eq!(texts(&server.complete(again).await)[0], third["text"]);
    let mut seeded = body;
    seeded["seed"] = json!(5);
    let equal: std::collections::BTreeSet<_> = texts(&server.complete(seeded).await).into_iter().collect();
    assert_eq!(equal.len(), 1, "a given seed counts for every prompt");
}

#[tokio::test]
async fn token_ids_and_truncated_prompts_come_as_asked() {
    let server = server().await;
    let body = json!({
        "prompt": "abc", "max_tokens": 2, "temperature": 0, "path": 0, "return_token_ids": true, "request_id": "mine",
        "truncate_prompt_tokens": 2, "add_special_tokens": true, "skip_special_tokens": false,
    });
    let answer = server.complete(body).await.json();
    assert_eq!(answer["id"], "cmpl-mine");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["prompt_token_ids"], &choice["token_ids"]), (&json!([98, 99]), &json!([100, 101])));
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    let long = json!({"prompt": "a".repeat(1000), "max_tokens": 10, "truncate_prompt_tokens": -1});
    assert_eq!(server.complete(long).await.json()["usage"]["prompt_tokens"], 390);
}

#[tokio::test]
async fn log_probabilities_come_likeliest_first() {
    let server = server().await;
    let body = json!({"prompt": "a", "max_tokens": 1, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": true});
    let text = String::from_utf8(server.complete(body).await.body).unwrap();
    // A map of JSON has no order for most readers, but people and some clients see the text.
    let (_, top) = text.split_once("\"top_logprobs\":[{").unwrap();
    let values: Vec<f64> = top
        .split('}')
        .next()
        .unwrap()
        .split(',')
        .map(|entry| entry.rsplit(':').next().unwrap().parse().unwrap())
        .collect();
    assert!(values.len() == 5 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
}

#[tokio::test]
async fn an_answer_that_takes_too_much_memory_is_refused() {
    let server = Server::start(ServeConfig { max_answer_tokens: 100, ..ServeConfig::default() }).await;
    let status = async |body: Value| server.complete(body).await.status;
    assert_eq!(status(json!({"prompt": "a", "max_tokens": 100})).await, 200);
    let (status_of, message, _, param, code) =
        server.complete(json!({"prompt": "a", "max_tokens": 101})).await.error();
    assert_eq!((status_of, param, code), (400, json!("max_tokens"), json!("request_too_large")));
    assert!(message.contains("101 tokens"), "{message}");
    assert_eq!(status(json!({"prompt": "a", "n": 3, "max_tokens": 34})).await, 400);
    // 10 tokens of the prompt count 9 times each: the token, its log-probability and 7 others'.
    assert_eq!(status(json!({"prompt": "aaaaaaaaaa", "max_tokens": 10, "prompt_logprobs": 7})).await, 200);
    assert_eq!(status(json!({"prompt": "aaaaaaaaaa", "max_tokens": 11, "prompt_logprobs": 7})).await, 400);
    assert_eq!(
        status(json!({"prompt": "aaaaaaaaaa", "max_tokens": 1, "echo": true, "logprobs": 8})).await,
        400
    );
    assert_eq!(
        status(json!({"prompt": "aaaaaaaaaa", "max_tokens": 1, "echo": true, "logprobs": 1})).await,
        200
    );
}

#[tokio::test]
async fn a_full_queue_refuses_before_it_tokenizes() {
    let config = ServeConfig { slots: 1, queued_requests: 1, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let first = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    let second = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    load.wait_for(|load| load.waiting == 1).await.unwrap();
    // This text is too long. That is known once it is tokenized, so another answer would mean that it was.
    let refused = server.complete(json!({"prompt": "a".repeat(500)})).await;
    assert_eq!((refused.error().0, refused.header("retry-after")), (429, Some("1")));
    server.model.gate.open();
    assert_eq!((reply(first).await.status, reply(second).await.status), (200, 200));
    assert_eq!(server.complete(json!({"prompt": "a".repeat(500)})).await.error().0, 400);
}

#[tokio::test]
async fn more_choices_than_places_are_refused_with_their_settings() {
    let config = ServeConfig { slots: 1, queued_requests: 3, ..ServeConfig::default() };
    let server = Server::start(config).await;
    for (body, field) in [(json!({"prompt": "a", "n": 5}), "n"), (json!({"prompt": vec!["a"; 5]}), "prompt")]
    {
        let (status, message, _, param, code) = server.complete(body).await.error();
        assert_eq!((status, param, code), (400, json!(field), json!("request_too_large")));
        assert!(message.contains("limit of 4 choices of a request (serve.slots + serve."), "{message}");
    }
    assert_eq!(server.complete(json!({"prompt": "a", "n": 4, "max_tokens": 1})).await.status, 200);
}

#[tokio::test]
async fn failures_of_the_model_are_500_or_an_event_and_the_server_goes_on() {
    let server = server().await;
    for prompt in ["a!", "a#"] {
        let (status, _, kind, ..) = server.complete(json!({"prompt": prompt})).await.error();
        assert_eq!((status, kind.as_str()), (500, "server_error"));
    }
    let events = server.complete(json!({"prompt": "a!", "stream": true})).await.events();
    assert_eq!(events.len(), 2);
    let error: Value = serde_json::from_str(&events[0]).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        !message.contains("fake device") && message.contains("log"),
        "the reason is for the log only: {message}"
    );
    assert_eq!(events[1], "[DONE]");
    let headers = format!("{JSON}x-dipaco-timeout: 0\r\n");
    let late = server.send("POST", "/v1/completions", &headers, br#"{"prompt": "a"}"#).await;
    assert_eq!(late.error().0, 504);
    assert_eq!(server.complete(json!({"prompt": "a"})).await.status, 200);
}
