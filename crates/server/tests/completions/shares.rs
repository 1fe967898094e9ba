//! Shares of API keys in the queue.

use dipaco_server::{ApiKeys, ServeConfig};
use serde_json::json;

use super::client::{JSON, Server, head};

#[tokio::test]
async fn a_key_that_fills_the_queue_leaves_other_keys_their_shares() {
    let config = ServeConfig { slots: 1, queued_requests: 4, ..ServeConfig::default() };
    let server = Server::start(config).await;
    server.state.add_keys(&ApiKeys::from_text("busy\nother"));
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let body = json!({"prompt": "a", "max_tokens": 1, "path": 0, "stream": true}).to_string();
    // The head of a stream comes when the sequence is admitted and its path is known. The connections stay open.
    let mut connections = Vec::new();
    let mut status = async |key: &str| {
        let headers = format!("{JSON}authorization: Bearer {key}\r\n");
        let mut connection = server.begin("POST", "/v1/completions", &headers, body.as_bytes()).await;
        let head = head(&mut connection).await;
        connections.push(connection);
        head.split(' ').nth(1).unwrap().to_owned()
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
