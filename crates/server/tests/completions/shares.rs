//! Shares of API keys in the queue.

use std::time::Duration;

use dipaco_server::{ApiKeys, ServeConfig};
use serde_json::json;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::client::{JSON, Server, head};

/// A server with one place, for two keys.
async fn server(queued_requests: usize) -> Server {
    let server = Server::start(ServeConfig { slots: 1, queued_requests, ..ServeConfig::default() }).await;
    server.state.add_keys(&ApiKeys::from_text("busy\nother"));
    server
}

/// Asks for a stream. Returns its connection, which holds the place of an admitted sequence, and the status.
async fn ask(server: &Server, key: &str, prompt: &str) -> (BufReader<TcpStream>, String) {
    let headers = format!("{JSON}authorization: Bearer {key}\r\n");
    let body = json!({"prompt": prompt, "max_tokens": 1, "path": 0, "stream": true}).to_string();
    let mut connection = server.begin("POST", "/v1/completions", &headers, body.as_bytes()).await;
    // The head of a stream comes when the sequence is admitted and its path is known.
    let head = head(&mut connection).await;
    (connection, head.split(' ').nth(1).unwrap().to_owned())
}

#[tokio::test]
async fn a_key_that_fills_the_queue_leaves_other_keys_their_shares() {
    let server = server(4).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let mut connections = Vec::new();
    let mut status = async |key: &str| {
        let (connection, status) = ask(&server, key, "a").await;
        connections.push(connection);
        status
    };
    assert_eq!(status("busy").await, "200");
    load.wait_for(|load| load.running == 1).await.unwrap();
    for expected in ["200", "200", "200", "200", "429"] {
        assert_eq!(status("busy").await, expected);
    }
    for expected in ["200", "200", "429"] {
        assert_eq!(status("other").await, expected, "each key has two of the four places");
    }
    assert_eq!(status("busy").await, "429");
    server.model.gate.open();
}

#[tokio::test]
async fn a_key_that_has_its_share_is_refused_before_its_prompt_is_tokenized() {
    let server = server(2).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let mut connections = Vec::new();
    let mut status = async |key: &str, prompt: &str| {
        let (connection, status) = ask(&server, key, prompt).await;
        connections.push(connection);
        status
    };
    assert_eq!(status("busy", "a").await, "200");
    load.wait_for(|load| load.running == 1).await.unwrap();
    for key in ["busy", "busy", "other"] {
        assert_eq!(status(key, "a").await, "200", "each key has one of the two places");
    }
    // This text is too long. That is known once it is tokenized, so another answer would mean that it was.
    assert_eq!(status("other", "a".repeat(500).as_str()).await, "429");
    server.model.gate.open();
}

#[tokio::test]
async fn requests_that_wait_leave_the_memory_of_their_bodies_to_others() {
    let config = ServeConfig { slots: 1, body_limit: 200, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let body = json!({"prompt": "a", "max_tokens": 1, "path": 0}).to_string();
    let largest = format!("{body:<200}");
    let mut connections = Vec::new();
    for _ in 0..16 {
        connections.push(server.begin("POST", "/v1/completions", JSON, largest.as_bytes()).await);
    }
    load.wait_for(|load| (load.running, load.waiting) == (1, 15)).await.unwrap();
    assert_eq!(server.post("/tokenize", &json!({"prompt": "a"})).await.status, 200);
    server.model.gate.open();
}

#[tokio::test]
async fn unfinished_bodies_of_one_key_leave_room_for_those_of_another() {
    let config = ServeConfig { body_limit: 200, read_timeout: 600.0, ..ServeConfig::default() };
    let server = Server::start(config).await;
    server.state.add_keys(&ApiKeys::from_text("busy\nother"));
    let mut uploads = Vec::new();
    // The memory has room for 16 of these, and one key may hold half of it. A body that meets a question below may
    // find less.
    for _ in 0..32 {
        let mut upload = server.open().await;
        let head = format!(
            "POST /tokenize HTTP/1.1\r\nhost: x\r\n{JSON}authorization: Bearer busy\r\ncontent-length: 200\r\n\r\n"
        );
        upload.write_all((head + &" ".repeat(199)).as_bytes()).await.unwrap();
        uploads.push(upload);
    }
    let body = format!("{:<100}", json!({"prompt": "a"}).to_string());
    let ask = async |key: &str| {
        let headers = format!("{JSON}authorization: Bearer {key}\r\n");
        server.send("POST", "/tokenize", &headers, body.as_bytes()).await.status
    };
    // This key finds no more room when its bodies have arrived.
    let filled = async { while ask("busy").await == 200 {} };
    tokio::time::timeout(Duration::from_secs(60), filled).await.expect("one key may fill half of the memory");
    assert_eq!((ask("other").await, ask("busy").await), (200, 429));
}
