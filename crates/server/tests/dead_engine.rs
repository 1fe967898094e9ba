//! A server whose engine ends by a bug.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;

use client::Server;
use dipaco_server::{ServeConfig, ServerError, serve_metrics};
use serde_json::json;

#[tokio::test]
async fn a_server_without_its_engine_says_so_and_ends_with_an_error() {
    let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let config = ServeConfig { slots: 1, metrics_address: Some(address), ..ServeConfig::default() };
    let mut server = Server::start(config).await;
    // This listener stays when the server has ended.
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let beside = listener.local_addr().unwrap();
    let metrics = tokio::spawn(serve_metrics(listener, server.state.clone()));
    server.model.broken.set("dipaco-engine");
    let answer = server.complete(json!({"prompt": "a", "max_tokens": 2, "path": 0})).await;
    let (status, message, _, _, code) = answer.error();
    assert_eq!((status, code), (503, json!("engine_failed")), "{message}");
    let ended = (&mut server.task).await.unwrap();
    assert!(matches!(ended, Err(ServerError::Engine { .. })), "{ended:?}");
    server.address = beside;
    let (status, message, _, _, code) = server.get("/health").await.error();
    assert_eq!((status, code), (503, json!("engine_failed")));
    assert!(message.contains("dipaco-engine"), "{message}");
    let failures = async || {
        let line =
            |reason: &str| format!("dipaco_request_failure_total{{model_name=\"tiny\",reason=\"{reason}\"}}");
        [server.metric(&line("error")).await, server.metric(&line("shutdown")).await]
    };
    let [errors, shutdowns] = failures().await;
    assert_eq!(server.get("/v1/models").await.status, 503);
    assert_eq!(failures().await, [errors + 1.0, shutdowns], "nobody shut the server down");
    metrics.abort();
}
