//! `dipaco serve` with real clients: the openai package, and bytes that no client library sends.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use dipaco_tests::http::{connect, exchange, get, post, request};
use dipaco_tests::process::{Process, Signal};
use dipaco_tests::python::python;
use dipaco_tests::run::trained;
use serde_json::{Value, json};

fn floats(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

#[test]
fn the_openai_client_gets_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m['content'] }}{% endfor %}").unwrap();
    let server = trained().serve(&format!("--set serve.chat_template={}", template.display()));
    let base = format!("http://{}/v1", server.address);
    let Some(found) = python("openai", "openai_client.py", &[&base, "e2e", "e2e/path-2"]) else { return };

    assert_eq!(found["models"], json!(["e2e", "e2e/path-0", "e2e/path-1", "e2e/path-2", "e2e/path-3"]));
    assert_eq!(found["model"], "e2e");
    assert_eq!(found["usage"]["completion_tokens"], 12);
    assert_eq!(found["finish"], "length");
    assert_eq!(found["streamed"], found["text"], "a stream is the same text in pieces");
    assert_eq!(found["stream_finish"], "length");
    assert_eq!(found["stream_usage"]["total_tokens"], found["usage"]["total_tokens"]);

    let logprobs = &found["logprobs"];
    let count = found["scored_usage"]["total_tokens"].as_u64().unwrap() as usize;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), count, "{list}: the prompt and three tokens");
    }
    assert!(logprobs["token_logprobs"][0].is_null(), "nothing predicts the first token");
    let scores = floats(&logprobs["token_logprobs"]);
    assert!(scores.len() == count - 1 && scores.iter().all(|score| *score <= 0.0), "{logprobs}");
    let echoed = found["echoed"].as_str().unwrap();
    assert!(echoed.starts_with("fn main() {"), "{echoed}");
    let joined: String =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, echoed);

    assert_eq!(found["several"], json!([0, 1, 2, 3]));
    assert_eq!(found["repeats"], true, "the same seed gives the same text");
    assert_eq!(found["pinned"], json!({"model": "e2e/path-2", "path": "2"}));
    // The template joins the messages to the prompt of the completion.
    let chat = json!({
        "text": found["text"], "role": "assistant", "finish": "length", "tokens": 12, "alternatives": vec![2; 12],
    });
    assert_eq!(found["chat"], chat);
    assert_eq!(found["chat_stream"]["text"], found["text"], "a streamed chat is the same text in pieces");
    assert_eq!(found["chat_stream"]["tokens"], 12);
    assert!(found["chat_stream"]["pieces"].as_u64().unwrap() > 4, "{}", found["chat_stream"]);
    let stop = found["stop"]["stop"].as_str().unwrap();
    let cut = found["stop"]["text"].as_str().unwrap();
    assert_eq!(found["text"].as_str().unwrap().split(stop).next(), Some(cut));

    for (case, class, status, code) in [
        ("unknown_model", "NotFoundError", 404, "model_not_found"),
        ("unknown_path", "NotFoundError", 404, "model_not_found"),
        ("too_long", "BadRequestError", 400, "context_length_exceeded"),
        ("bad_temperature", "BadRequestError", 400, "invalid_value"),
        ("empty_prompt", "BadRequestError", 400, "empty_prompt"),
    ] {
        let error = &found[case];
        assert_eq!((&error["class"], &error["status"]), (&json!(class), &json!(status)), "{case}: {error}");
        assert_eq!(error["code"], code, "{case}: {error}");
    }
}

#[test]
fn the_server_describes_itself_in_openapi() {
    let server = trained().serve("");
    let base = format!("http://{}", server.address);
    let ask = json!({
        "prompt": "fn main() {", "max_tokens": 3, "echo": true, "logprobs": 2, "return_route": true, "stop": ["\n\n"],
        "logit_bias": {"5": -1.5}, "stream": false, "seed": -1, "return_token_ids": true,
    });
    let Some(found) = python("openapi_spec_validator", "openapi.py", &[&base, &ask.to_string()]) else {
        return;
    };
    assert!(found["paths"].as_array().unwrap().contains(&json!("/v1/completions")), "{found}");
    for what in ["request", "answer", "models"] {
        assert_eq!(found[what], json!([]), "{what} does not fit the description");
    }
    // Three wrong fields, and no prompt.
    assert_eq!(found["wrong"], 4, "{found}");
}

#[test]
fn bad_requests_get_an_error_that_names_the_problem() {
    let server = trained().serve("--set serve.body_limit=2000");
    let send = |body: &[u8]| exchange(&server.address, &request("POST", "/v1/completions", body));
    for (body, says) in [
        (&b"{\"prompt\": \"x\""[..], "JSON"),
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[1]", "object"),
        (b"{\"model\": \"e2e\"}", "prompt"),
        (b"{\"prompt\": {\"a\": 1}}", "prompt"),
        (b"{\"prompt\": [1, -1]}", "prompt"),
        (b"{\"prompt\": [100000]}", "100000"),
        (b"{\"prompt\": \"x\", \"max_tokens\": \"many\"}", "max_tokens"),
        (b"{\"prompt\": \"x\", \"max_tokens\": 1000000}", "max_tokens"),
    ] {
        let error = send(body).error(400);
        let message = error.to_string();
        assert!(message.contains(says), "{:?}: {message}", String::from_utf8_lossy(body));
    }
    let nested = [vec![b'['; 1900], vec![b']'; 60]].concat();
    let _ = send(&nested).error(400);
    let large = json!({"prompt": "x".repeat(4000)}).to_string();
    let error = send(large.as_bytes()).error(413);
    assert!(error["message"].as_str().unwrap().contains("2000"), "{error}");
    let _ = exchange(&server.address, &request("GET", "/v1/completions", b"")).error(405);
    let _ = get(&server.address, "/v1/nothing").error(404);
    // Bytes that are not HTTP end their own connection only.
    let mut stream = connect(&server.address);
    stream.write_all(b"\x16\x03\x01\x02\x00garbage\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(get(&server.address, "/health").status, 200);
}

#[test]
fn a_body_that_claims_to_be_huge_is_refused_without_being_read() {
    let server = trained().serve("");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
                content-length: 1000000000000\r\n\r\n";
    let _ = exchange(&server.address, head.as_bytes()).error(413);
}

#[test]
fn a_client_that_goes_away_frees_its_place() {
    // There is one place: the server answers the second request only when the first has left.
    let server = trained().serve("--set serve.slots=1");
    let ask =
        json!({"prompt": "a", "max_tokens": 60, "ignore_eos": true, "stream": true, "n": 128}).to_string();
    let mut stream = connect(&server.address);
    stream.write_all(&request("POST", "/v1/completions", ask.as_bytes())).unwrap();
    let mut first = [0; 512];
    assert!(stream.read(&mut first).unwrap() > 0, "the stream has begun");
    drop(stream);
    let next = post(&server.address, "/v1/completions", &json!({"prompt": "b", "max_tokens": 1}));
    assert_eq!(next.status, 200, "{next:?}");
    let mut server = server;
    let address = server.address.clone();
    server.process.until("the abandoned request is counted", || {
        let metrics = get(&address, "/metrics").body;
        metrics.lines().any(|line| line.contains("abort") && !line.ends_with(" 0"))
    });
}

#[test]
fn a_stopped_server_finishes_what_runs_and_exits_with_0() {
    let server = trained().serve("");
    let ask =
        json!({"prompt": "a", "max_tokens": 60, "ignore_eos": true, "stream": true, "n": 16}).to_string();
    let mut stream = connect(&server.address);
    stream.write_all(&request("POST", "/v1/completions", ask.as_bytes())).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    server.process.signal(Signal::TERM);
    let rest = answer_after(&first, stream);
    assert!(rest.contains("data: [DONE]"), "the stream ends in order: …{rest}");
    let _ = server.process.finish().succeeded();
}

#[test]
fn a_run_with_a_chat_template_answers_chats() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m['content'].strip() }}{% endfor %}").unwrap();
    let set = format!("--set serve.chat_template={}", template.display());
    let server = trained().serve(&set);
    let ask = |path: &str, field: &str, value: Value| {
        let mut body = json!({"temperature": 0, "max_tokens": 8, "path": 1});
        body[field] = value;
        post(&server.address, path, &body).json()
    };
    let messages = json!([{"role": "user", "content": " fn main() { "}]);
    let chat = ask("/v1/chat/completions", "messages", messages);
    let plain = ask("/v1/completions", "prompt", json!("fn main() {"));
    assert_eq!(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"], "{chat}");
    assert_eq!(chat["usage"], plain["usage"]);
    std::fs::write(&template, "{% for %}").unwrap();
    let failed = trained()
        .dipaco(&format!("serve --address 127.0.0.1:0 {set}"))
        .failed(1, &["chat template", "Jinja", "serve.chat_template"]);
    assert!(!failed.stderr.contains("loading e2e"), "it loads nothing before: {}", failed.stderr);
}

fn answer_after(first: &[u8], mut stream: std::net::TcpStream) -> String {
    let mut bytes = first.to_vec();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_stopped_server_does_not_wait_for_a_client_that_does_not_read() {
    let server = trained().serve("--set serve.drain_timeout=0.2");
    let ask =
        json!({"prompt": "a", "max_tokens": 60, "ignore_eos": true, "stream": true, "n": 128}).to_string();
    let mut stream = connect(&server.address);
    stream.write_all(&request("POST", "/v1/completions", ask.as_bytes())).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    let began = Instant::now();
    server.process.signal(Signal::TERM);
    let _ = server.process.finish().succeeded();
    // Many times the drain timeout and the two seconds after it.
    assert!(began.elapsed() < Duration::from_secs(25));
}

#[test]
fn the_log_names_fields_that_the_server_does_not_know() {
    let mut server = trained().serve("");
    let mut ask = json!({"prompt": "a", "max_tokens": 1, "request_id": "first"});
    let _ = post(&server.address, "/v1/completions", &ask).json();
    let line = server.process.line_with("id=\"first\"");
    assert!(line.contains("INFO") && !line.contains("unknown_fields"), "{line}");
    ask["request_id"] = json!("second");
    ask["do_sample"] = json!(true);
    ask["a\nb"] = json!(null);
    ask["c\nd"] = json!(1);
    assert_eq!(post(&server.address, "/v1/completions", &ask).status, 200);
    let line = server.process.line_with("id=\"second\"");
    assert!(line.contains(r#"unknown_fields=["c\nd", "do_sample"]"#), "{line}");
}

#[test]
fn metrics_move_to_an_address_of_their_own() {
    let mut server = trained().serve("--set serve.metrics_address=127.0.0.1:0");
    let line = server.process.line_with("/metrics");
    let metrics = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics").to_owned();
    assert!(get(&metrics, "/metrics").body.contains("dipaco_build_info{"), "{metrics}");
    let _ = get(&server.address, "/metrics").error(404);
    let _ = get(&metrics, "/v1/models").error(404);
    server.process.signal(Signal::TERM);
    let _ = server.process.finish().succeeded();
}

#[test]
fn keys_of_the_environment_count_beside_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "filed\n").unwrap();
    let with = |variable: &str, words: &str| {
        let mut command = trained().command(&format!("serve --address 127.0.0.1:0 {words}"));
        command.env("DIPACO_API_KEYS", variable);
        Process::start(command)
    };
    let mut server = with("inherited, other", &format!("--set serve.api_keys={}", keys.display()));
    let line = server.line_with("http://");
    let address = line.split("http://").nth(1).unwrap().trim();
    let statuses = ["filed", "inherited", "other", "inherited,"].map(|key| status_with(address, key));
    assert_eq!(statuses, [200, 200, 200, 401]);
    let _ = get(address, "/v1/models").error(401);
    server.signal(Signal::TERM);
    let log = server.finish().succeeded().stderr;
    assert!(!log.contains("inherited") && !log.contains("filed"), "{log}");

    // An empty variable is a mistake, not an open server.
    let _ = with(" ", "").finish().failed(1, &["DIPACO_API_KEYS", "no key"]);
}

/// The status of `GET /v1/models` with an API key.
fn status_with(address: &str, key: &str) -> u16 {
    let mut with_key = request("GET", "/v1/models", b"");
    let at = with_key.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
    with_key.splice(at..at, format!("authorization: Bearer {key}\r\n").into_bytes());
    exchange(address, &with_key).status
}

#[test]
fn a_server_that_everybody_can_reach_without_a_key_says_so() {
    const OPEN: &str = "everybody who reaches";
    let log = |words: &str, keys: Option<&str>| {
        let mut command = trained().command(&format!("serve {words}"));
        command.envs(keys.map(|keys| ("DIPACO_API_KEYS", keys)));
        let mut process = Process::start(command);
        process.line_with("serving");
        process.signal(Signal::TERM);
        process.finish().succeeded().stderr
    };
    let open = log("--address 0.0.0.0:0", None);
    let line = open.lines().find(|line| line.contains(OPEN)).unwrap_or_else(|| panic!("no warning: {open}"));
    assert!(line.contains("WARN") && line.contains("0.0.0.0:0") && line.contains("serve.api_keys"), "{line}");
    let metrics = log("--address 127.0.0.1:0 --set serve.metrics_address=0.0.0.0:0", None);
    assert!(metrics.contains("read its metrics") && !metrics.contains("use this server"), "{metrics}");
    for (words, keys) in [("--address 127.0.0.1:0", None), ("--address 0.0.0.0:0", Some("secret"))] {
        let log = log(words, keys);
        assert!(!log.contains(OPEN), "{words} {keys:?}: {log}");
    }
}

#[test]
fn requests_need_a_key_if_keys_are_configured() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# of the tests\nsecret\n").unwrap();
    let server = trained().serve(&format!("--set serve.api_keys={}", keys.display()));
    assert_eq!(get(&server.address, "/health").status, 200);
    let _ = get(&server.address, "/v1/models").error(401);
    let with = |key: &str| status_with(&server.address, key);
    assert_eq!((with("secret"), with("new")), (200, 401));

    // The server reads a changed file again, with and without a signal.
    let mut server = server;
    let address = server.address.clone();
    std::fs::write(&keys, "new\n").unwrap();
    server.process.signal(Signal::HUP);
    server.process.until("the new key counts", || status_with(&address, "new") == 200);
    assert_eq!(status_with(&address, "secret"), 401);
    std::fs::write(&keys, "newer\n").unwrap();
    server.process.until("the newest key counts", || status_with(&address, "newer") == 200);
    assert_eq!(status_with(&address, "new"), 401);
}
