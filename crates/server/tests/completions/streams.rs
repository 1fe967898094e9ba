//! Guarantees of streamed answers.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dipaco_infer::{BoxError, TextCodec, TextStream, TokenizerInfo};
use dipaco_server::ServeConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::TcpStream;

use super::client::{JSON, Server, chunk, head};
use super::fake::Bytes;
use super::server;

/// A stream of one token.
const SHORT: &str = r#"{"prompt": "a", "max_tokens": 1, "stream": true}"#;

/// A server whose only slot a stream has that stands still at the shut gate, and the stream.
async fn with_its_slot_taken(keep_alive: f64) -> (Server, BufReader<TcpStream>) {
    let config = ServeConfig { slots: 1, keep_alive, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let first = server.begin("POST", "/v1/completions", JSON, SHORT.as_bytes()).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    (server, first)
}

#[tokio::test]
async fn a_stream_has_the_content_of_the_whole_answer() {
    let server = server().await;
    for extra in
        [json!({}), json!({"echo": true}), json!({"echo": true, "logprobs": 2}), json!({"stop": ["fg"]})]
    {
        let mut body = json!({"prompt": ["ab", "c"], "n": 2, "max_tokens": 6, "seed": 4, "path": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let whole = server.complete(body.clone()).await.json();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let reply = server.complete(body).await;
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        assert_eq!(
            (reply.header("cache-control"), reply.header("x-accel-buffering")),
            (Some("no-cache"), Some("no"))
        );
        assert_eq!(reply.header("x-dipaco-path"), Some("0,0"));
        let mut events = reply.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let mut events: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).unwrap()).collect();
        let usage = events.pop().unwrap();
        assert_eq!((&usage["usage"], &usage["choices"]), (&whole["usage"], &json!([])));
        for choice in whole["choices"].as_array().unwrap() {
            let own: Vec<&Value> =
                events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == choice["index"]).collect();
            let text: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
            assert_eq!(choice["text"], text);
            let (last, rest) = own.split_last().unwrap();
            assert_eq!(
                (&last["finish_reason"], &last["stop_reason"]),
                (&choice["finish_reason"], &choice["stop_reason"])
            );
            assert!(rest.iter().all(|c| c["finish_reason"].is_null()));
            for array in ["tokens", "token_logprobs", "text_offset"] {
                let all: Vec<&Value> =
                    own.iter().filter_map(|c| c["logprobs"][array].as_array()).flatten().collect();
                let expected: Vec<&Value> =
                    choice["logprobs"][array].as_array().into_iter().flatten().collect();
                assert_eq!(all, expected, "{array}");
            }
        }
    }
}

#[tokio::test]
async fn a_character_that_begins_in_the_prompt_comes_whole() {
    let server = server().await;
    let text = async |extra: Value| {
        let mut body = json!({"prompt": [97, 0xC3], "path": 0, "temperature": 0, "logit_bias": {"169": 100}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.complete(body).await.json()["choices"][0].clone()
    };
    assert_eq!(text(json!({"max_tokens": 1})).await["text"], "é");
    for extra in [json!({}), json!({"logprobs": 1})] {
        let mut ask = json!({"max_tokens": 1, "echo": true});
        ask.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let choice = text(ask).await;
        assert_eq!(choice["text"], "aé");
        if let Some(offsets) = choice["logprobs"]["text_offset"].as_array() {
            assert_eq!(offsets, &[0, 1, 1]);
        }
    }
    assert_eq!(text(json!({"max_tokens": 0, "echo": true})).await["text"], "a\u{FFFD}");
}

#[tokio::test]
async fn the_head_of_a_stream_names_the_path_of_each_prompt() {
    let server = server().await;
    // The fake model routes by the first byte.
    for (prompt, paths) in
        [(json!("a"), "1"), (json!(["c", "a", "b", "a", "d"]), "3,1,2,1,0"), (json!([[98], [97]]), "2,1")]
    {
        let body = json!({"prompt": prompt, "n": 2, "max_tokens": 2, "temperature": 0, "stream": true});
        assert_eq!(server.complete(body).await.header("x-dipaco-path"), Some(paths));
    }
    // A pinned path is known, however long the queue is.
    let (server, first) = with_its_slot_taken(0.001).await;
    let pinned = json!({"prompt": ["a", "b"], "path": 3, "max_tokens": 1, "stream": true}).to_string();
    let mut second = server.begin("POST", "/v1/completions", JSON, pinned.as_bytes()).await;
    let begin = head(&mut second).await;
    assert!(begin.contains("x-dipaco-path: 3,3\r\n"), "{begin}");
    server.model.gate.open();
    drop((first, second));
}

#[tokio::test]
async fn a_stream_has_one_chunk_per_token() {
    let server = server().await;
    for (extra, reason) in
        [(json!({"max_tokens": 5}), "length"), (json!({"max_tokens": 90, "prompt": "w"}), "stop")]
    {
        let mut body =
            json!({"prompt": "a", "temperature": 0, "path": 0, "stream": true, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let events = server.complete(body).await.events();
        let events: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let usage = &events.last().unwrap()["usage"];
        let pieces: Vec<&Value> =
            events.iter().filter(|event| event["choices"][0]["token_ids"].is_array()).collect();
        assert_eq!(usage["completion_tokens"], pieces.len());
        assert_eq!(pieces.last().unwrap()["choices"][0]["finish_reason"], reason);
        for (count, piece) in (1..).zip(&pieces) {
            assert_eq!(piece["usage"]["completion_tokens"], json!(count), "the usage so far");
            assert_eq!(piece["choices"][0]["token_ids"].as_array().unwrap().len(), 1);
        }
    }
}

#[tokio::test]
async fn chunks_before_the_usage_say_that_it_is_not_there_yet() {
    let server = server().await;
    let body = json!({"prompt": "a", "max_tokens": 2, "stream": true});
    let events = server.complete(body.clone()).await.events();
    assert!(events[0].starts_with('{') && !events[0].contains("usage"), "{}", events[0]);
    let mut asked = body;
    asked["stream_options"] = json!({"include_usage": true});
    let events = server.complete(asked).await.events();
    assert!(events[0].contains("\"usage\":null"), "{}", events[0]);
}

#[tokio::test]
async fn a_silent_stream_is_kept_open_by_comments() {
    let server = Server::start(ServeConfig { slots: 1, keep_alive: 0.001, ..ServeConfig::default() }).await;
    server.model.gate.shut();
    let body = json!({"prompt": "a", "max_tokens": 1, "stream": true}).to_string();
    let mut connection = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    head(&mut connection).await;
    assert_eq!(chunk(&mut connection).await.unwrap(), b": keep-alive\n\n");
    server.model.gate.open();
    let mut all = Vec::new();
    while let Some(chunk) = chunk(&mut connection).await {
        all.extend(chunk);
    }
    assert!(all.ends_with(b"data: [DONE]\n\n"));
}

/// Tokens that complete no character before the text ends. Each of them waits for the channel.
struct Hidden(Arc<Mutex<Receiver<()>>>);

impl TextStream for Hidden {
    fn push(&mut self, _: u32) -> Result<String, BoxError> {
        self.0.lock().unwrap().recv()?;
        Ok(String::new())
    }

    fn finish(&mut self) -> String {
        "end".to_owned()
    }
}

impl TextCodec for Hidden {
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError> {
        Bytes.encode(text)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError> {
        Bytes.decode(tokens)
    }

    fn token_text(&self, token: u32) -> String {
        Bytes.token_text(token)
    }

    fn stream(&self, _: &[u32]) -> Box<dyn TextStream> {
        Box::new(Self(Arc::clone(&self.0)))
    }

    fn end_of_text(&self) -> u32 {
        Bytes.end_of_text()
    }

    fn vocab_size(&self) -> usize {
        Bytes.vocab_size()
    }

    fn info(&self) -> TokenizerInfo {
        Bytes.info()
    }
}

#[tokio::test]
async fn tokens_that_show_no_text_do_not_put_off_the_comment() {
    let (go, held) = channel::<()>();
    let config = ServeConfig { slots: 1, keep_alive: 0.2, ..ServeConfig::default() };
    let server = Server::with_codec(config, Arc::new(Hidden(Arc::new(Mutex::new(held))))).await;
    let body = json!({"prompt": "a", "max_tokens": 20, "ignore_eos": true, "stream": true, "path": 0});
    let mut stream = server.begin("POST", "/v1/completions", JSON, body.to_string().as_bytes()).await;
    head(&mut stream).await;
    let mut first = std::pin::pin!(chunk(&mut stream));
    let mut released = Instant::now();
    // A token comes four times within `keep_alive`, and all tokens take five times as long.
    let first = loop {
        tokio::select! {
            biased;
            read = &mut first => break read,
            _ = server.get("/health") => {}
        }
        if released.elapsed() >= Duration::from_millis(50) {
            go.send(()).unwrap();
            released = Instant::now();
        }
    };
    assert_eq!(first.unwrap(), b": keep-alive\n\n");
}

#[tokio::test]
async fn a_client_that_does_not_read_its_stream_loses_it() {
    // There is room for one connection, so the next one is served when the first has ended.
    let config = ServeConfig { read_timeout: 0.2, max_connections: 1, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut load = server.state.engine().watch_load();
    // More than the buffers on the way hold.
    let body = json!({
        "prompt": "a", "n": 64, "max_tokens": 390, "ignore_eos": true, "logprobs": 5, "path": 0, "stream": true,
    });
    let body = body.to_string();
    let mut connection = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    let next = tokio::time::timeout(Duration::from_secs(60), server.get("/health")).await;
    assert_eq!(next.expect("the connection is kept").status, 200);
    load.wait_for(|load| (load.running, load.waiting, load.used_pages) == (0, 0, 0)).await.unwrap();
    let mut all = Vec::new();
    let _ = connection.read_to_end(&mut all).await;
    let all = String::from_utf8_lossy(&all);
    assert!(all.contains("data: {") && !all.contains("[DONE]"), "the stream came whole");
}

#[tokio::test]
async fn a_stream_begins_before_it_has_a_slot() {
    let (server, first) = with_its_slot_taken(0.01).await;
    let mut second = server.begin("POST", "/v1/completions", JSON, SHORT.as_bytes()).await;
    let begin = head(&mut second).await;
    assert!(begin.starts_with("HTTP/1.1 200"), "{begin}");
    assert_eq!(chunk(&mut second).await.unwrap(), b": keep-alive\n\n");
    server.model.gate.open();
    drop(first);
    let mut all = Vec::new();
    while let Some(chunk) = chunk(&mut second).await {
        all.extend(chunk);
    }
    assert!(all.ends_with(b"data: [DONE]\n\n"));
}
