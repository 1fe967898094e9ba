//! The lines of requests in the log.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;
#[path = "support/log.rs"]
mod log;

use std::time::Instant;

use client::{JSON, Server, head, reply};
use dipaco_server::{ChatTemplate, EncodeChat, ServeConfig, TemplateTokens};
use log::Log;
use serde_json::json;
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn the_log_has_the_time_in_the_queue_and_not_the_time_until_the_path_is_known() {
    let (log, _guard) = Log::listen();
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let begin = async |id: &str| {
        let ask = json!({"prompt": "a", "max_tokens": 2, "path": 0, "stream": true, "request_id": id});
        server.begin("POST", "/v1/completions", JSON, ask.to_string().as_bytes()).await
    };
    let begins = Instant::now();
    let mut first = begin("first").await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    let until_running = begins.elapsed();
    let mut second = begin("second").await;
    load.wait_for(|load| load.waiting == 1).await.unwrap();
    let waits = Instant::now();
    // The head comes when the path is known. The place is still taken.
    head(&mut second).await;
    // The second waits longer than the first can have waited.
    while waits.elapsed() <= until_running {
        assert_eq!(server.get("/health").await.status, 200);
    }
    let held = waits.elapsed().as_secs_f64();
    server.model.gate.open();
    for stream in [&mut first, &mut second] {
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }
    let lines = log.lines("completion");
    let of =
        |id: &str| lines.iter().find(|line| line["id"] == id).unwrap()["queued_seconds"].as_f64().unwrap();
    let queued = ["first", "second"].map(of);
    assert!(lines.len() == 2 && queued[1] >= held && queued[1] > queued[0], "{queued:?}, held {held}");
    let metric = server.metric("dipaco_request_queue_time_seconds_sum{model_name=\"tiny\"}").await;
    assert!((metric - queued.iter().sum::<f64>()).abs() < 1e-6, "{metric} {queued:?}");
}

#[tokio::test]
async fn the_id_of_a_body_is_in_the_head_the_body_and_the_log_whatever_the_answer() {
    let (log, _guard) = Log::listen();
    let config = ServeConfig { slots: 1, queued_requests: 0, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let headers = format!("{JSON}x-request-id: of-the-head\r\n");
    let ask = async |id: &str, fields: serde_json::Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 2, "path": 0, "request_id": id});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.send("POST", "/v1/completions", &headers, body.to_string().as_bytes()).await
    };
    let whole = ask("whole", json!({})).await;
    assert_eq!((whole.status, &whole.json()["id"]), (200, &json!("cmpl-whole")));
    let stream = ask("stream", json!({"stream": true})).await;
    assert!(stream.events()[0].contains("\"id\":\"cmpl-stream\""), "{:?}", stream.events());
    let bad = ask("bad", json!({"temperature": "hot"})).await;
    let failed = ask("failed", json!({"prompt": "a!"})).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let running = server.begin("POST", "/v1/completions", JSON, br#"{"prompt": "a", "max_tokens": 1}"#).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    let full = ask("full", json!({})).await;
    server.model.gate.open();
    assert_eq!(reply(running).await.status, 200);
    for (answer, status, id) in [
        (whole, 200, "whole"),
        (stream, 200, "stream"),
        (bad, 400, "bad"),
        (failed, 500, "failed"),
        (full, 429, "full"),
    ] {
        assert_eq!((answer.status, answer.header("x-request-id")), (status, Some(id)));
        let of = |message| log.lines(message).into_iter().filter(|line| line["id"] == id).collect::<Vec<_>>();
        let lines = [of("completion"), of("a request was refused")].concat();
        assert!(lines.len() == 1 && lines[0]["status"] == status, "{id}: {lines:?}");
    }
}

#[tokio::test]
async fn every_refused_request_has_one_line_and_counts_once() {
    let (log, _guard) = Log::listen();
    let config = ServeConfig { slots: 1, queued_requests: 0, body_limit: 100, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let ask = async |address: &str, headers: &str, body: String| {
        server.send("POST", address, headers, body.as_bytes()).await.error()
    };
    let hello = json!([{"role": "user", "content": "a"}]);
    let mut refused = Vec::new();
    for (address, headers, body) in [
        ("/v1/completions", JSON, json!({"prompt": "a", "n": "many"}).to_string()),
        ("/v1/completions", JSON, json!({"prompt": "a", "model": "other"}).to_string()),
        ("/v1/completions", JSON, "{".to_owned()),
        ("/v1/completions", JSON, "x".repeat(101)),
        ("/v1/completions", "", "{}".to_owned()),
        ("/v1/chat/completions", JSON, json!({"messages": hello}).to_string()),
        ("/v1/route", JSON, json!({"prompt": ""}).to_string()),
        ("/tokenize", JSON, json!({"prompt": 1}).to_string()),
        ("/nothing", JSON, "{}".to_owned()),
    ] {
        refused.push(ask(address, headers, body).await);
    }
    refused.push(server.get("/v1/models/%FF").await.error());
    with_template(&server);
    server.model.gate.shut();
    let mut load = server.state.engine().watch_load();
    let running = server.begin("POST", "/v1/completions", JSON, br#"{"prompt": "a", "max_tokens": 1}"#).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    refused.push(ask("/v1/completions", JSON, json!({"prompt": "a"}).to_string()).await);
    refused.push(ask("/v1/chat/completions", JSON, json!({"messages": hello}).to_string()).await);
    server.model.gate.open();
    assert_eq!(reply(running).await.status, 200);
    assert_eq!(server.complete(json!({"prompt": "a!", "path": 0})).await.status, 500);
    let of = async |reason: &str| {
        let line = format!("dipaco_request_failure_total{{model_name=\"tiny\",reason=\"{reason}\"}}");
        server.metric(&line).await
    };
    assert_eq!((of("overloaded").await, of("refused").await, of("error").await), (2.0, 10.0, 1.0));
    server.state.add_keys(&dipaco_server::ApiKeys::from_text("secret"));
    refused.push(ask("/v1/completions", JSON, "{}".to_owned()).await);
    assert_eq!(server.get("/health").await.status, 200);

    let statuses: Vec<u16> = refused.iter().map(|error| error.0).collect();
    assert_eq!(statuses, [400, 404, 400, 413, 415, 400, 400, 400, 404, 404, 429, 429, 401]);
    let lines = log.lines("a request was refused");
    let found: Vec<_> = lines.iter().map(|line| (&line["status"], &line["code"], &line["param"])).collect();
    let statuses = statuses.iter().map(|&status| json!(status)).collect::<Vec<_>>();
    let expected: Vec<_> =
        refused.iter().zip(&statuses).map(|((_, _, _, param, code), status)| (status, code, param)).collect();
    assert_eq!(found, expected);
    assert_eq!(log.lines("completion").len(), 2, "the one that ran and the one that failed");
}

#[tokio::test]
async fn the_reason_of_a_failure_is_in_the_log_with_the_id_of_the_answer() {
    let (log, _guard) = Log::listen();
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    let encode: EncodeChat = Box::new(|_| panic!("the tokenizer was asked to panic"));
    let template = ChatTemplate::new("a".to_owned(), TemplateTokens::of_end("<|end|>"), encode).unwrap();
    server.state.set_chat_template(template);
    let headers = format!("{JSON}x-request-id: of-the-head\r\n");
    let ask = async |address: &str, body: serde_json::Value| {
        server.send("POST", address, &headers, body.to_string().as_bytes()).await
    };
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let failed = ask("/tokenize", chat).await;
    assert_eq!((failed.status, failed.header("x-request-id")), (500, Some("of-the-head")));
    assert_eq!(log.ids("a request panicked outside of the engine"), ["of-the-head"]);
    let own = json!({"prompt": "a!", "path": 0, "request_id": "whole"});
    assert_eq!(ask("/v1/completions", own).await.status, 500);
    // The path is known, so the head comes before the failure.
    let own = json!({"prompt": "a!", "path": 0, "request_id": "stream", "stream": true});
    assert_eq!(ask("/v1/completions", own).await.status, 200);
    assert_eq!(log.ids("a request failed"), ["whole", "stream"]);
    let lines = log.lines("a request ended with an error");
    assert_eq!((lines.len(), &lines[0]["status"], &lines[0]["id"]), (1, &json!(500), &json!("of-the-head")));
    assert!(log.lines("a request was refused").is_empty(), "a failure is no refusal");
    let refused = "dipaco_request_failure_total{model_name=\"tiny\",reason=\"refused\"}";
    assert_eq!(server.metric(refused).await, 0.0);
}

/// Serves chats whose prompt is the text of all messages.
fn with_template(server: &Server) {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
    let encode: EncodeChat = Box::new(|text| Ok(text.bytes().map(u32::from).collect()));
    server
        .state
        .set_chat_template(ChatTemplate::new(template, TemplateTokens::of_end("<|end|>"), encode).unwrap());
}
