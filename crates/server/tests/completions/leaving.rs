//! Clients that leave before their answer, with bytes behind their request.

use std::time::Duration;

use dipaco_server::ServeConfig;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::client::{JSON, Server};

/// Another request on the same connection.
const NEXT: &str = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn a_client_that_leaves_is_noticed_behind_further_bytes() {
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    let mut load = server.state.engine().watch_load();
    server.model.gate.shut();
    let begin = async |stream: bool| {
        let body = json!({"prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": stream, "path": 0});
        server.begin("POST", "/v1/completions", JSON, body.to_string().as_bytes()).await
    };
    let first = begin(false).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    // A client that ends its sending side only counts as gone, whether there are further bytes or not.
    for (bytes, closes) in [("\r\n", true), (NEXT, true), ("\r\n", false), ("", false)] {
        for stream in [false, true] {
            let mut second = begin(stream).await;
            second.write_all(bytes.as_bytes()).await.unwrap();
            load.wait_for(|load| load.waiting == 1).await.unwrap();
            // The server reads the first of these bytes with the request, and then no more.
            second.write_all(bytes.as_bytes()).await.unwrap();
            let mut kept = (!closes).then_some(second);
            if let Some(second) = &mut kept {
                second.shutdown().await.unwrap();
            }
            let left = tokio::time::timeout(Duration::from_secs(60), load.wait_for(|load| load.waiting == 0));
            left.await.expect("a sequence waits for a client that has gone").unwrap();
            drop(kept);
        }
    }
    let aborted = "dipaco_request_success_total{model_name=\"tiny\",finished_reason=\"abort\"}";
    assert_eq!(server.metric(aborted).await, 8.0);
    server.model.gate.open();
    drop(first);
}
