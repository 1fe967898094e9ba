//! The time of a request bounds the work before the engine, too.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use client::{JSON, Server, chunk, head, reply};
use dipaco_server::{ChatTemplate, EncodeChat, ServeConfig, TemplateTokens};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver};

/// Chats of a server whose tokenizer waits for the first channel, and reports its begin to the second.
fn with_chats(server: &Server) -> (Sender<()>, Receiver<()>) {
    let (go, held) = channel::<()>();
    let (begins, begun) = mpsc::channel(8);
    let held = Mutex::new(held);
    let encode: EncodeChat = Box::new(move |text| {
        begins.try_send(())?;
        held.lock().unwrap().recv()?;
        Ok(text.bytes().map(u32::from).collect())
    });
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
    server
        .state
        .set_chat_template(ChatTemplate::new(template, TemplateTokens::of_end("<|end|>"), encode).unwrap());
    (go, begun)
}

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1})
}

#[tokio::test]
async fn a_request_that_waits_for_a_worker_ends_at_its_deadline() {
    // One worker tokenizes.
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    let (go, mut begun) = with_chats(&server);
    let first = server.begin("POST", "/v1/chat/completions", JSON, chat().to_string().as_bytes()).await;
    begun.recv().await.unwrap();
    let headers = format!("{JSON}x-dipaco-timeout: 0.1\r\n");
    for (address, body) in [
        ("/v1/chat/completions", chat()),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/route", json!({"prompt": "a"})),
        ("/tokenize", json!({"prompt": "a"})),
        ("/detokenize", json!({"tokens": [97]})),
    ] {
        let (status, message, _, _, code) =
            server.send("POST", address, &headers, body.to_string().as_bytes()).await.error();
        assert_eq!((status, code), (504, json!("deadline_exceeded")), "{address}");
        assert!(message.contains("0.1 s"), "{address}: {message}");
    }
    go.send(()).unwrap();
    assert_eq!(reply(first).await.status, 200);
    assert_eq!(
        server.post("/tokenize", &json!({"prompt": "a"})).await.status,
        200,
        "the worker is free again"
    );
}

#[tokio::test]
async fn an_answer_that_is_late_names_the_time_of_the_request_and_counts_all_its_sequences() {
    let server = Server::start(ServeConfig { slots: 2, ..ServeConfig::default() }).await;
    let mut load = server.state.engine().watch_load();
    let headers = format!("{JSON}x-dipaco-timeout: 1.2344\r\n");
    for (stream, status) in [(false, 504), (true, 200)] {
        server.model.gate.shut();
        let body = json!({"prompt": "a", "n": 4, "max_tokens": 300, "ignore_eos": true, "path": 0, "stream": stream});
        let late = server.send("POST", "/v1/completions", &headers, body.to_string().as_bytes()).await;
        let text = String::from_utf8(late.body).unwrap();
        assert_eq!(late.status, status, "{text}");
        assert!(text.contains("within its deadline of 1.234 s\""), "{text}");
        server.model.gate.open();
        load.wait_for(|load| load.running + load.waiting == 0).await.unwrap();
    }
    let counts =
        ["failure_total{model_name=\"tiny\",reason", "success_total{model_name=\"tiny\",finished_reason"];
    let [late, left] = [(counts[0], "deadline"), (counts[1], "abort")]
        .map(|(count, reason)| format!("dipaco_request_{count}=\"{reason}\"}}"));
    assert_eq!((server.metric(&late).await, server.metric(&left).await), (8.0, 0.0));
}

#[tokio::test]
async fn a_chat_that_is_refused_is_not_rendered() {
    let config = ServeConfig { slots: 1, max_choices: 8, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let (_go, mut begun) = with_chats(&server);
    let refused = async |field: &str, value: Value| {
        let mut body = chat();
        body[field] = value;
        server.post("/v1/chat/completions", &body).await.status
    };
    assert_eq!(refused("model", json!("other")).await, 404);
    assert_eq!(refused("path", json!(9)).await, 400);
    assert_eq!(refused("n", json!(100)).await, 400);
    assert_eq!(refused("temperature", json!("hot")).await, 400);
    let headers = format!("{JSON}x-dipaco-timeout: soon\r\n");
    let soon = server.send("POST", "/v1/chat/completions", &headers, chat().to_string().as_bytes()).await;
    assert_eq!(soon.status, 400);
    assert!(begun.try_recv().is_err(), "a refused chat was rendered");
}

#[tokio::test]
async fn a_request_that_no_context_holds_is_400_on_a_busy_server_too() {
    // A silent stream has a comment after longer than the first measurement of the rate takes.
    let config = ServeConfig { slots: 1, step_tokens: 400, keep_alive: 0.3, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut load = server.state.engine().watch_load();
    let begin = async |prompt: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 5, "path": 0, "stream": true}).to_string();
        server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await
    };
    server.model.gate.shut();
    let mut first = begin(&"a".repeat(390)).await;
    head(&mut first).await;
    assert_eq!(chunk(&mut first).await.unwrap(), b": keep-alive\n\n");
    server.model.gate.open();
    while chunk(&mut first).await.is_some() {}
    load.wait_for(|load| load.running == 0).await.unwrap();
    server.model.gate.shut();
    let second = begin("a").await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    let headers = format!("{JSON}x-dipaco-timeout: 20\r\n");
    let body = json!({"prompt": "a", "max_tokens": 900_000, "path": 0}).to_string();
    let refused = server.send("POST", "/v1/completions", &headers, body.as_bytes()).await;
    let (status, _, _, param, code) = refused.error();
    assert_eq!((status, param, code), (400, json!("max_tokens"), json!("context_length_exceeded")));
    server.model.gate.open();
    drop(second);
}
