//! Everything except completions: errors, models, tokenizer, keys, metrics, and shutdown.
#![allow(clippy::unwrap_used)]

#[path = "support/client.rs"]
mod client;
#[path = "../../infer/tests/support/fake.rs"]
mod fake;

use std::sync::atomic::Ordering;
use std::time::Duration;

use client::{JSON, Server, chunk, head, reply};
use dipaco_server::{ServeConfig, ServerError};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

async fn server() -> Server {
    Server::start(ServeConfig { slots: 2, ..ServeConfig::default() }).await
}

#[tokio::test]
async fn every_error_has_the_format_of_openai() {
    let server =
        Server::start(ServeConfig { body_limit: 3000, max_choices: 8, ..ServeConfig::default() }).await;
    let post = async |body: &str| server.send("POST", "/v1/completions", JSON, body.as_bytes()).await.error();

    let (status, message, kind, _, code) = post("{\"prompt\": \"a\",\n \"n\": }").await;
    assert_eq!((status, kind.as_str(), code), (400, "invalid_request_error", json!("invalid_json")));
    assert!(message.contains("line 2 column 7"), "{message}");
    assert_eq!(post("").await.0, 400);
    assert_eq!(post("[1]").await.0, 400);
    assert_eq!(post("{\"prompt\": \"\u{1}").await.0, 400);
    assert_eq!(server.send("POST", "/v1/completions", JSON, b"{\"prompt\": \"\xff\"}").await.error().0, 400);
    assert_eq!(post(&"[".repeat(2000)).await.0, 400);

    let (status, message, _, param, code) = post(r#"{"prompt": "abc", "max_tokens": 398}"#).await;
    assert_eq!((status, param, code), (400, json!("max_tokens"), json!("context_length_exceeded")));
    assert!(message.contains("max_model_len is 400") && message.contains("3 tokens"), "{message}");
    let long = format!(r#"{{"prompt": "{}"}}"#, "a".repeat(400));
    assert_eq!(post(&long).await.3, json!("prompt"));
    assert_eq!(post(r#"{"prompt": [257]}"#).await.3, json!("prompt"));
    assert_eq!(post(r#"{"prompt": "a", "n": 9}"#).await.3, json!("n"));
    let (status, message, _, param, code) = post(r#"{"prompt": "a", "model": "gpt-4"}"#).await;
    assert_eq!((status, param, code), (404, json!("model"), json!("model_not_found")));
    assert!(message.contains("`tiny`"), "{message}");
    for model in ["tiny/path-4", "tiny/path-", "tiny/path-+1", "tinypath-1", ""] {
        assert_eq!(post(&json!({"prompt": "a", "model": model}).to_string()).await.0, 404, "{model}");
    }

    let big = format!(r#"{{"prompt": "{}"}}"#, "a".repeat(2_000_000));
    let (status, message, _, _, code) = post(&big).await;
    assert_eq!((status, code), (413, json!("body_too_large")));
    assert!(message.contains("3000 bytes"), "{message}");
    let (status, message, ..) = server.send("POST", "/v1/completions", "", b"{}").await.error();
    assert!(status == 415 && message.starts_with("the request has no content type: send JSON"), "{message}");
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    assert_eq!(server.send("POST", "/v1/completions", form, b"{}").await.error().0, 415);
    assert_eq!(server.get("/v1/nothing").await.error().0, 404);
    assert_eq!(server.get("/v1/completions").await.error().0, 405);
    let (status, message, ..) = server.post("/v1/chat/completions", &json!({"messages": []})).await.error();
    assert_eq!(status, 400);
    assert!(message.contains("no chat template"));
}

#[tokio::test]
async fn a_body_that_never_comes_is_408_and_garbage_does_no_harm() {
    let server = Server::start(ServeConfig { read_timeout: 0.05, ..ServeConfig::default() }).await;
    let mut stream = server.open().await;
    let request = format!(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}content-length: 9\r\n\r\n{{"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(reply(stream).await.error().0, 408);
    let mut stream = server.open().await;
    stream.write_all(b"\x16\x03\x01garbage\r\n\r\n").await.unwrap();
    assert_eq!(reply(stream).await.status, 400);
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
}

#[tokio::test]
async fn a_head_that_never_ends_loses_its_connection() {
    // There is room for one connection, so the next one is served when the first has ended.
    let config = ServeConfig { read_timeout: 0.2, max_connections: 1, ..ServeConfig::default() };
    let server = Server::start(config).await;
    let mut slow = server.open().await;
    slow.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(60), server.get("/health")).await;
    assert_eq!(next.expect("the connection is kept").status, 200);
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_connection() {
    let server = Server::start(ServeConfig { read_timeout: 0.2, ..ServeConfig::default() }).await;
    let mut stream = server.open().await;
    // Pipelined requests whose answers fill all buffers on the way. The server then takes no further request, and ends
    // the connection instead of waiting for its reader.
    let requests = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
    while stream.write_all(requests.as_bytes()).await.is_ok() {}
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
}

#[tokio::test]
async fn a_body_of_very_many_values_is_413() {
    let server = server().await;
    let body = format!("{{\"prompt\": [{}[1]]}}", "[1],".repeat(100_000));
    let answer = server.send("POST", "/v1/completions", JSON, body.as_bytes()).await;
    assert_eq!((answer.status, answer.error().4), (413, json!("body_too_large")));
}

#[tokio::test]
async fn the_run_and_its_paths_are_models() {
    let server = server().await;
    let list = server.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["tiny", "tiny/path-0", "tiny/path-1", "tiny/path-2", "tiny/path-3"]);
    let one = server.get("/v1/models/tiny/path-2").await.json();
    assert_eq!(one, list["data"][3]);
    assert_eq!((&one["parent"], &one["max_model_len"]), (&json!("tiny"), &json!(400)));
    assert_eq!(one["dipaco"]["modules"], json!(["0/1", "1/0"]));
    let meta = |parameters: u64, bytes: u64| json!({"n_vocab": 257, "n_ctx_train": 400, "n_embd": 8, "n_params": parameters, "size": bytes});
    assert_eq!((&one["meta"], &list["data"][0]["meta"]), (&meta(10, 20), &meta(40, 80)));
    assert_eq!(server.get("/v1/models/tiny%2Fpath-2").await.json(), one);
    for unknown in ["other", "tiny/path-4", "%FF", "tiny/path-%FF"] {
        let (status, message, _, param, code) = server.get(&format!("/v1/models/{unknown}")).await.error();
        assert_eq!((status, param, code), (404, json!("model"), json!("model_not_found")), "{unknown}");
        assert!(message.contains(&format!("`{unknown}`")), "{message}");
    }
    assert_eq!(server.get("/info").await.json()["paths"], 4);
}

#[tokio::test]
async fn a_route_is_explained() {
    let server = server().await;
    let route = server.post("/v1/route", &json!({"prompt": "bcdefgh"})).await.json();
    let expected = json!({
        "path": 2, "model": "tiny/path-2", "distance": 0.25, "measure": "euclidean",
        "distances": [2.25, 3.25, 0.25, 1.25], "prefix_tokens": 4,
        "prefix": [98, 99, 100, 101], "prefix_text": "bcde",
        // Paths 0 and 1 have another module of level 0, paths 1 and 3 of level 1.
        "levels": [
            {"level": 0, "module": 1, "id": "0/1", "distance": 0.125, "margin": 2.0},
            {"level": 1, "module": 0, "id": "1/0", "distance": null, "margin": 1.0},
        ],
    });
    assert_eq!(route, expected);
    assert_eq!(server.post("/v1/route", &json!({"prompt": [98]})).await.json()["path"], 2);
    for bad in [json!({}), json!({"prompt": ""}), json!({"prompt": [999]}), json!({"prompt": {}})] {
        assert_eq!(server.post("/v1/route", &bad).await.error().3, "prompt");
    }
}

#[tokio::test]
async fn a_route_is_asked_of_the_router_of_requests_and_remembered_with_theirs() {
    let server = server().await;
    for _ in 0..3 {
        assert_eq!(server.post("/v1/route", &json!({"prompt": "bcdefgh"})).await.json()["path"], 2);
        // The router reads four tokens.
        let same = server.complete(json!({"prompt": "bcde and more", "max_tokens": 1})).await;
        assert_eq!((same.status, same.header("x-dipaco-path")), (200, Some("2")));
    }
    assert_eq!(server.model.routed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_harness_can_use_the_servers_tokenizer() {
    let server = server().await;
    let info = server.get("/tokenizer_info").await.json();
    assert_eq!((&info["eos_token"], &info["bos_token"]), (&json!("<|end|>"), &Value::Null));
    let tokenize = async |text: &str| {
        let body = json!({"prompt": text, "add_special_tokens": false, "return_token_strs": true});
        server.post("/tokenize", &body).await.json()
    };
    let tokens = tokenize("hé").await;
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!([104, 195, 169]), &json!(3)));
    assert_eq!(tokens["token_strs"].as_array().unwrap().len(), 3);
    assert_eq!(tokenize("<|end|>").await["tokens"], json!([256]));
    assert_eq!(tokenize("<|end|>!").await["count"], 8);
    let text = server.post("/detokenize", &json!({"tokens": [104, 195, 169]})).await.json();
    assert_eq!(text, json!({"prompt": "hé"}));
    // The server's own check: a tokenizer may pass over ids that it does not know.
    let (status, message, _, param, _) = server.post("/detokenize", &json!({"tokens": [257]})).await.error();
    assert_eq!((status, param), (400, json!("tokens")));
    assert!(message.contains("ids are below 257"), "{message}");
    assert_eq!(server.post("/detokenize", &json!({"tokens": [256]})).await.json()["prompt"], "");
    assert_eq!(server.post("/tokenize", &json!({"prompt": 1})).await.error().3, "prompt");
}

#[tokio::test]
async fn an_answer_of_too_many_tokens_is_refused() {
    let server = Server::start(ServeConfig { max_answer_tokens: 10, ..ServeConfig::default() }).await;
    assert_eq!(server.get("/info").await.json()["limits"]["answer_tokens"], 10);
    let ask = async |length: usize, texts: bool| {
        let body = json!({"prompt": "a".repeat(length), "return_token_strs": texts});
        server.post("/tokenize", &body).await
    };
    assert_eq!((ask(10, false).await.status, ask(5, true).await.status), (200, 200));
    for (length, texts) in [(11, false), (6, true)] {
        let (status, message, _, param, code) = ask(length, texts).await.error();
        assert_eq!((status, param, code), (400, json!("prompt"), json!("request_too_large")), "{message}");
    }
    let detokenize =
        async |length: usize| server.post("/detokenize", &json!({"tokens": vec![97; length]})).await;
    assert_eq!(detokenize(10).await.status, 200);
    let (status, message, _, param, code) = detokenize(11).await.error();
    assert_eq!((status, param, code), (400, json!("tokens"), json!("request_too_large")), "{message}");
}

#[tokio::test]
async fn a_refusal_arrives_whatever_the_client_still_sends() {
    let server = server().await;
    server.state.add_keys(&dipaco_server::ApiKeys::from_text("secret"));
    let long = vec![b' '; 10_000_000];
    let key = "authorization: Bearer secret\r\n";
    for (path, headers, status) in [
        ("/v1/completions", JSON.to_owned(), 401),
        ("/nothing", format!("{JSON}{key}"), 404),
        ("/v1/models", format!("{JSON}{key}"), 405),
        ("/v1/completions", key.to_owned(), 415),
        ("/v1/completions", format!("{JSON}{key}"), 413),
    ] {
        assert_eq!(server.send("POST", path, &headers, &long).await.error().0, status, "{path}");
    }
}

#[tokio::test]
async fn keys_protect_everything_but_health() {
    let file = std::env::temp_dir().join(format!("dipaco-server-keys-{}", std::process::id()));
    std::fs::write(&file, "# test\nsecret\n").unwrap();
    let server = Server::start(ServeConfig { api_keys: Some(file.clone()), ..ServeConfig::default() }).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(server.get("/health").await.status, 200);
    for path in ["/metrics", "/info", "/v1/models", "/tokenizer_info", "/nothing"] {
        let reply = server.get(path).await;
        assert_eq!((reply.error().0, reply.header("www-authenticate")), (401, Some("Bearer")), "{path}");
    }
    assert_eq!(server.post("/tokenize", &json!({"prompt": "a"})).await.error().0, 401);
    let allowed = server.send("GET", "/v1/models", "authorization: Bearer secret\r\n", b"").await;
    assert_eq!(allowed.status, 200);
}

#[tokio::test]
async fn metrics_can_have_a_listener_of_their_own() {
    let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let metrics_address = Some(address);
    let mut server = Server::start(ServeConfig { metrics_address, ..ServeConfig::default() }).await;
    assert_eq!(server.get("/metrics").await.error().0, 404);
    assert!(server.get("/openapi.json").await.json()["paths"]["/metrics"].is_null());
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    server.address = listener.local_addr().unwrap();
    let metrics = tokio::spawn(dipaco_server::serve_metrics(listener, server.state.clone()));
    let missed =
        "dipaco_http_requests_total{model_name=\"tiny\",method=\"GET\",handler=\"/metrics\",status=\"404\"}";
    assert_eq!(server.metric(missed).await, 1.0);
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.post("/metrics", &json!({})).await.error().0, 405);
    let (status, message, ..) = server.get("/v1/models").await.error();
    assert!(status == 404 && message.contains("/metrics"), "{message}");
    // The same keys count here.
    server.state.add_keys(&dipaco_server::ApiKeys::from_text("secret"));
    assert_eq!((server.get("/metrics").await.error().0, server.get("/health").await.status), (401, 200));
    let allowed = server.send("GET", "/metrics", "authorization: Bearer secret\r\n", b"").await;
    assert_eq!(allowed.status, 200);
    metrics.abort();
}

#[tokio::test]
async fn pages_of_allowed_origins_may_use_the_server() {
    let origins = vec!["https://chat.example.org".to_owned()];
    let server = Server::start(ServeConfig { allowed_origins: origins, ..ServeConfig::default() }).await;
    // OpenAI's client for JavaScript sends headers about itself.
    let asked = "authorization,content-type,x-stainless-os";
    let ask = async |server: &Server, origin: &str| {
        let headers = format!(
            "origin: {origin}\r\naccess-control-request-method: POST\r\naccess-control-request-headers: {asked}\r\n"
        );
        server.send("OPTIONS", "/v1/completions", &headers, b"").await
    };
    let own = ask(&server, "https://chat.example.org").await;
    assert_eq!(
        (own.status, own.header("access-control-allow-origin")),
        (200, Some("https://chat.example.org"))
    );
    assert_eq!(own.header("access-control-allow-headers"), Some(asked));
    assert_eq!(own.header("x-request-id").map(str::len), Some(32), "as every answer");
    assert_eq!(ask(&server, "https://other.example.org").await.header("access-control-allow-origin"), None);
    let answer = server.send("GET", "/v1/models", "origin: https://chat.example.org\r\n", b"").await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://chat.example.org"));
    let closed = Server::start(ServeConfig::default()).await;
    let refused = ask(&closed, "https://chat.example.org").await;
    assert_eq!(refused.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn while_the_run_is_loaded_every_request_is_503() {
    use tokio::io::AsyncReadExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let never = tokio_util::sync::CancellationToken::new();
    let probe = async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: my-id\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let progress = dipaco_server::LoadProgress::default();
    progress.expect(32);
    progress.loaded();
    let answer = dipaco_server::while_loading(&listener, probe, &progress, &never).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    for part in [
        "retry-after: 1",
        "x-request-id: my-id",
        "unavailable_error",
        "\"code\":\"loading\"",
        "1 of 32 modules",
        "0 s after",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["loading"], json!({"modules_loaded": 1, "modules": 32, "seconds": 0}));
    never.cancel();
    let ended =
        dipaco_server::while_loading(&listener, std::future::pending::<()>(), &progress, &never).await;
    assert_eq!(ended, None);
}

#[tokio::test]
async fn ids_are_echoed_and_metrics_count() {
    let server = server().await;
    let headers = format!("{JSON}x-request-id: my-id\r\nauthorization: Bearer \r\n");
    let body = br#"{"prompt": "a", "max_tokens": 3, "temperature": 0}"#;
    let reply = server.send("POST", "/v1/completions", &headers, body).await;
    assert_eq!((reply.header("x-request-id"), &reply.json()["id"]), (Some("my-id"), &json!("cmpl-my-id")));
    assert!(server.get("/health").await.header("x-request-id").unwrap().len() == 32);
    assert_eq!(server.get("/ping").await.json(), json!({"status": "ok"}));
    for (line, value) in [
        ("dipaco_generation_tokens_total{model_name=\"tiny\"}", 3.0),
        ("dipaco_request_success_total{model_name=\"tiny\",finished_reason=\"length\"}", 1.0),
        ("dipaco_routed_requests_total{model_name=\"tiny\",path=\"1\"}", 1.0),
        ("dipaco_num_requests_running{model_name=\"tiny\"}", 0.0),
        ("dipaco_time_to_first_token_seconds_count{model_name=\"tiny\"}", 1.0),
        ("dipaco_inter_token_latency_seconds_count{model_name=\"tiny\"}", 2.0),
        ("dipaco_request_params_n_sum{model_name=\"tiny\"}", 1.0),
        (
            "dipaco_build_info{model_name=\"tiny\",version=\"0.0.0\",git=\"c0ffee\",checkpoint=\"fp_test\"}",
            1.0,
        ),
        ("dipaco_request_prompt_tokens_bucket{model_name=\"tiny\",le=\"1\"}", 1.0),
        (
            "dipaco_http_requests_total{model_name=\"tiny\",method=\"POST\",handler=\"/v1/completions\",status=\"200\"}",
            1.0,
        ),
    ] {
        assert_eq!(server.metric(line).await, value, "{line}");
    }
}

#[tokio::test]
async fn the_queue_is_counted_by_path_and_the_pages_are_described() {
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    server.model.gate.shut();
    let body = json!({"prompt": "a", "path": 3, "max_tokens": 2}).to_string();
    let ask = || server.send("POST", "/v1/completions", JSON, body.as_bytes());
    let depth = async {
        let mut load = server.state.engine().watch_load();
        load.wait_for(|load| (load.running, load.waiting) == (1, 2)).await.unwrap();
        let depth = server.metric("dipaco_path_queue_depth{model_name=\"tiny\",path=\"3\"}").await;
        server.model.gate.open();
        depth
    };
    let (one, two, three, depth) = tokio::join!(ask(), ask(), ask(), depth);
    assert_eq!(([one.status, two.status, three.status], depth), ([200; 3], 2.0));
    let metrics = String::from_utf8(server.get("/metrics").await.body).unwrap();
    assert!(!metrics.contains("dipaco_path_queue_depth{"), "an empty queue: {metrics}");
    let pages = server.state.engine().load().pages;
    let line = format!("block_size=\"16\",cache_dtype=\"bf16\",num_blocks=\"{pages}\"}} 1");
    assert!(metrics.contains(&line), "{metrics}");
}

#[tokio::test]
async fn the_prefix_cache_and_the_steps_are_counted() {
    let server = server().await;
    let ask = |echo: bool, max_tokens: usize| {
        let (prompt, logprobs) = ("b".repeat(40), echo.then_some(0));
        json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "echo": echo, "logprobs": logprobs})
            .to_string()
    };
    // Two full pages of 16 tokens are found again. A prompt that is scored is not looked up.
    for body in [ask(false, 2), ask(false, 2), ask(true, 0)] {
        assert_eq!(server.send("POST", "/v1/completions", JSON, body.as_bytes()).await.status, 200);
    }
    for (name, value) in [
        ("prefix_cache_queries_total", 80.0),
        ("prefix_cache_hits_total", 32.0),
        ("iteration_tokens_sum", 41.0 + 9.0 + 40.0),
        ("kv_cache_usage_perc", 0.0),
        ("num_preemptions_total", 0.0),
        ("weight_bytes", 4096.0),
    ] {
        let line = format!("dipaco_{name}{{model_name=\"tiny\"}}");
        assert_eq!(server.metric(&line).await, value, "{line}");
    }
    assert!(server.metric("dipaco_http_request_duration_seconds_count{model_name=\"tiny\"}").await >= 3.0);
}

#[tokio::test]
async fn the_tokens_of_a_prompt_count_once_as_in_the_usage() {
    let server = server().await;
    // Equal prompts are two prompts, each with four choices.
    let body = json!({"prompt": ["abc", "abc"], "n": 4, "max_tokens": 2, "temperature": 0, "path": 0});
    let usage = server.complete(body).await.json()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(6), &json!(16)));
    for (name, field) in
        [("prompt_tokens_total", "prompt_tokens"), ("generation_tokens_total", "completion_tokens")]
    {
        let metric = server.metric(&format!("dipaco_{name}{{model_name=\"tiny\"}}")).await;
        assert_eq!(Some(metric), usage[field].as_f64(), "{name}");
    }
}

#[tokio::test]
async fn running_requests_finish_when_the_server_is_stopped() {
    let server = Server::start(ServeConfig { slots: 1, ..ServeConfig::default() }).await;
    server.model.gate.shut();
    let body =
        json!({"prompt": "a", "max_tokens": 3, "temperature": 0, "stream": true, "path": 0}).to_string();
    let mut running = server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await;
    head(&mut running).await;
    let idle = server.open().await;
    server.shutdown.cancel();
    let (status, _, kind, ..) = loop {
        // The server may accept the first connections before it sees the cancelled token.
        let health = server.get("/health").await;
        if health.status != 200 {
            break health.error();
        }
    };
    assert_eq!((status, kind.as_str()), (503, "unavailable_error"));
    let refused = server.complete(json!({"prompt": "a"})).await;
    assert_eq!((refused.error().0, refused.header("retry-after")), (503, Some("5")));
    for (reason, count) in [("shutdown", 1.0), ("refused", 0.0), ("overloaded", 0.0)] {
        let line = format!("dipaco_request_failure_total{{model_name=\"tiny\",reason=\"{reason}\"}}");
        assert_eq!(server.metric(&line).await, count, "{reason}");
    }
    server.model.gate.open();
    let mut text = String::new();
    while let Some(chunk) = chunk(&mut running).await {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("\"finish_reason\":\"length\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    server.task.await.unwrap().unwrap();
    drop(idle);
}

#[tokio::test]
async fn after_the_drain_timeout_streams_end_with_an_error() {
    let server = Server::start(ServeConfig { slots: 1, drain_timeout: 0.0, ..ServeConfig::default() }).await;
    server.model.gate.shut();
    let mut load = server.state.engine().watch_load();
    let begin = async |stream: bool| {
        let body = json!({"prompt": "a", "max_tokens": 300, "stream": stream}).to_string();
        server.begin("POST", "/v1/completions", JSON, body.as_bytes()).await
    };
    let mut running = begin(true).await;
    load.wait_for(|load| load.running == 1).await.unwrap();
    head(&mut running).await;
    let waiting = begin(false).await;
    load.wait_for(|load| load.waiting == 1).await.unwrap();
    server.shutdown.cancel();
    let mut text = String::new();
    while let Some(chunk) = chunk(&mut running).await {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("shutting down") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(reply(waiting).await.error().0, 503);
    server.task.await.unwrap().unwrap();
    server.model.gate.open();
}

#[tokio::test]
async fn a_server_that_cannot_work_does_not_start() {
    let start = |config: ServeConfig| {
        let run = dipaco_server::ServedRun {
            name: "tiny".into(),
            created: 0,
            version: String::new(),
            commit: String::new(),
            path_parameters: 0,
            total_parameters: 0,
            width: 0,
            path_bytes: 0,
            total_bytes: 0,
        };
        dipaco_server::ServerState::start(config, run, fake::Fake::new(8), std::sync::Arc::new(fake::Bytes))
            .err()
            .unwrap()
    };
    let error = start(ServeConfig { max_choices: 0, ..ServeConfig::default() });
    assert!(error.to_string().starts_with("serve.max_choices is 0"), "{error}");
    let file = std::env::temp_dir().join("dipaco-no-such-file");
    let error = start(ServeConfig { api_keys: Some(file), ..ServeConfig::default() });
    assert!(matches!(error, ServerError::KeyFile { .. }), "{error}");
}
