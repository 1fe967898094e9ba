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
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    refused.push(server.get(&format!("/{}", "x".repeat(70))).await.error());
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
    assert_eq!((of("overloaded").await, of("refused").await, of("error").await), (2.0, 11.0, 1.0));
    server.state.add_keys(&dipaco_server::ApiKeys::from_text("secret"));
    refused.push(ask("/v1/completions", JSON, "{}".to_owned()).await);
    assert_eq!(server.get("/health").await.status, 200);

    let statuses: Vec<u16> = refused.iter().map(|error| error.0).collect();
    assert_eq!(statuses, [400, 404, 400, 413, 415, 400, 400, 400, 404, 404, 404, 429, 429, 401]);
    let lines = log.lines("a request was refused");
    let found: Vec<_> = lines.iter().map(|line| (&line["status"], &line["code"], &line["param"])).collect();
    let statuses = statuses.iter().map(|&status| json!(status)).collect::<Vec<_>>();
    let expected: Vec<_> =
        refused.iter().zip(&statuses).map(|((_, _, _, param, code), status)| (status, code, param)).collect();
    assert_eq!(found, expected);
    // The label of unknown paths does not tell them apart.
    let paths: Vec<_> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
    assert_eq!(paths, ["/nothing".to_owned(), format!("/{}…", "x".repeat(63))]);
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

#[tokio::test]
async fn the_line_of_many_choices_is_short() {
    let (log, _guard) = Log::listen();
    let server = Server::start(ServeConfig::default()).await;
    // The fake model routes by the first byte, and `z` ends the text at once.
    let prompts: Vec<&str> = ["a", "b", "z"].into_iter().cycle().take(18).collect();
    for stream in [false, true] {
        let body = json!({"prompt": prompts, "n": 3, "max_tokens": 2, "temperature": 0, "stream": stream});
        assert_eq!(server.complete(body).await.status, 200);
    }
    let few = server.complete(json!({"prompt": ["b", "a"], "max_tokens": 1, "temperature": 0})).await;
    let lines = log.lines("completion");
    let of = |line: &serde_json::Value| (line["paths"].clone(), line["finish_reasons"].clone());
    let most = format!("{}1,…", "1,2,2,".repeat(5));
    let long = (json!(most), json!("length=36 stop=18"));
    let short = (json!(few.header("x-dipaco-path").unwrap()), json!("length=2"));
    assert_eq!(lines.iter().map(of).collect::<Vec<_>>(), [long.clone(), long, short]);
}

#[tokio::test]
async fn people_see_the_id_of_a_completion_once() {
    let (log, _guard) = Log::listen_as_people();
    let server = Server::start(ServeConfig::default()).await;
    for stream in [false, true] {
        let body = json!({"prompt": "a", "max_tokens": 1, "stream": stream, "request_id": "mine"});
        assert_eq!(server.complete(body).await.status, 200);
    }
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("completion id=")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    for line in lines {
        assert!(line.contains("request: completion id=\"mine\""), "{line}");
        assert_eq!(line.matches(" id=").count(), 1, "{line}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_has_the_status_of_the_metric() {
    let (log, _guard) = Log::listen();
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let begin = async |id: &str, stream: bool| {
        let ask = json!({"prompt": "a", "max_tokens": 2, "path": 0, "stream": stream, "request_id": id});
        server.begin("POST", "/v1/completions", JSON, ask.to_string().as_bytes()).await
    };
    let stays = begin("stays", false).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    for (id, stream) in [("whole", false), ("stream", true)] {
        let mut leaves = begin(id, stream).await;
        load.wait_for(|load| load.waiting == 1).await.unwrap();
        if stream {
            // The path is known, so the answer begins.
            head(&mut leaves).await;
        }
        drop(leaves);
        load.wait_for(|load| load.waiting == 0).await.unwrap();
    }
    server.model.gate.open();
    assert_eq!(reply(stays).await.status, 200);
    let lines = log.lines("completion");
    let found: Vec<_> = lines.iter().map(|line| (&line["id"], &line["outcome"], &line["status"])).collect();
    let expected = [
        (json!("whole"), json!("abort"), json!(499)),
        (json!("stream"), json!("abort"), json!(200)),
        (json!("stays"), json!("done"), json!(200)),
    ];
    assert_eq!(found, expected.each_ref().map(|(id, outcome, status)| (id, outcome, status)));
    assert_eq!((answers(&server, 499).await, answers(&server, 200).await), (1.0, 2.0));
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_is_no_refusal() {
    let (log, _guard) = Log::listen();
    let server = Server::start(ServeConfig::default()).await;
    let send = async |body: &str| {
        let mut stream = server.open().await;
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}");
        stream.write_all((head + body).as_bytes()).await.unwrap();
        stream
    };
    for body in ["content-length: 500\r\n\r\n{\"prompt\":", "transfer-encoding: chunked\r\n\r\n5\r\n{\"pro"] {
        let mut leaves = send(body).await;
        leaves.shutdown().await.unwrap();
        // The server ends the connection when it has counted the request, with an answer or without.
        let _ = leaves.read_to_end(&mut Vec::new()).await;
    }
    assert!(log.lines("a request was refused").is_empty());
    assert_eq!(answers(&server, 499).await, 2.0);
    // A chunk without a length is the client's mistake.
    let malformed = reply(send("transfer-encoding: chunked\r\n\r\nx\r\n").await).await;
    assert_eq!((malformed.status, malformed.error().4), (400, json!("broken_body")));
    let lines = log.lines("a request was refused");
    assert_eq!((lines.len(), &lines[0]["code"]), (1, &json!("broken_body")));
    let refused = "dipaco_request_failure_total{model_name=\"tiny\",reason=\"refused\"}";
    assert_eq!((server.metric(refused).await, answers(&server, 400).await), (1.0, 1.0));
}

/// The number of completions with this status.
async fn answers(server: &Server, status: u16) -> f64 {
    let labels = "model_name=\"tiny\",method=\"POST\",handler=\"/v1/completions\"";
    server.metric(&format!("dipaco_http_requests_total{{{labels},status=\"{status}\"}}")).await
}

/// Serves chats whose prompt is the text of all messages.
fn with_template(server: &Server) {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
    let encode: EncodeChat = Box::new(|text| Ok(text.bytes().map(u32::from).collect()));
    server
        .state
        .set_chat_template(ChatTemplate::new(template, TemplateTokens::of_end("<|end|>"), encode).unwrap());
}
