//! `serve.memory`: more paths than memory.
#![allow(clippy::unwrap_used)]

use std::fs;

use dipaco_tests::http::{get, post};
use dipaco_tests::run::{Server, trained};
use serde_json::{Value, json};

/// The answers of all paths, four times each in mixed order, asked at once.
fn answers(server: &Server) -> Vec<(u16, Value)> {
    let address = server.address.as_str();
    let ask = &|number: u64| {
        let model = format!("e2e/path-{}", number % 4);
        let ask =
            json!({"model": model, "prompt": "fn main() {", "max_tokens": 12, "seed": number, "logprobs": 2});
        let answer = post(address, "/v1/completions", &ask);
        (answer.status, answer.json()["choices"].clone())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|number| scope.spawn(move || ask(number))).collect();
        all.into_iter().map(|answer| answer.join().unwrap()).collect()
    })
}

#[test]
fn all_paths_answer_under_a_limit_of_one_path() {
    let run = trained();
    let server = run.serve("--set serve.preload=none");
    let info = get(&server.address, "/info").json();
    let path = info["weight_bytes"].as_u64().unwrap();
    assert_eq!((&info["modules_loaded"], &info["weight_bytes_limit"]), (&json!(2), &Value::Null));
    assert_eq!(get(&server.address, "/ready").status, 200);
    let expected = answers(&server);
    assert!(expected.iter().all(|answer| answer.0 == 200), "{expected:?}");
    assert_eq!(get(&server.address, "/info").json()["modules_loaded"], 4);

    for format in ["", " --set serve.format=q8_0"] {
        let server = run.serve(&format!("--set serve.memory={path}{format}"));
        let found = answers(&server);
        assert!(found.iter().all(|answer| answer.0 == 200), "{found:?}");
        let info = get(&server.address, "/info").json();
        assert!(info["weight_bytes"].as_u64().unwrap() <= path, "{info}");
        if format.is_empty() {
            assert_eq!(found, expected, "the limit changes an answer");
            let metrics = get(&server.address, "/metrics").body;
            let evictions =
                metrics.lines().find(|line| line.starts_with("dipaco_module_evictions_total")).unwrap();
            assert!(!evictions.ends_with(" 0"), "{evictions}");
        }
    }

    let limit = path - 1;
    let (path, limit) = (path.to_string(), limit.to_string());
    let _ =
        run.dipaco(&format!("serve --set serve.memory={limit}")).failed(1, &[&path, &limit, "serve.memory"]);
}

#[test]
fn a_server_that_does_not_fit_says_what_it_needs() {
    let run = trained();
    // A petabyte of keys and values.
    let words = format!("serve --address 127.0.0.1:0 --set serve.kv_bytes={}", 1_u64 << 50);
    let parts = ["keys and values 1.1 PB", "modules", "available here", "serve.check_memory"];
    let _ = run.dipaco(&words).failed(2, &parts);
}

#[test]
fn a_damaged_module_is_named_and_the_other_paths_answer() {
    let run = trained().copy();
    let status = run.status();
    let modules = status["training"]["modules"].as_array().unwrap();
    let module = modules.iter().find(|module| module["module"] == json!({"level": 1, "index": 1})).unwrap();
    let name = module["fragments"][0]["weights"]["name"].as_str().unwrap();
    let file = run.file("store").join(name);
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&file, damaged).unwrap();

    let mut server = run.serve("--set serve.preload=none");
    let statuses = |server: &Server| answers(server).iter().map(|answer| answer.0).collect::<Vec<_>>();
    let expected: Vec<u16> = (0..16).map(|number| if number % 2 == 0 { 200 } else { 500 }).collect();
    assert_eq!(statuses(&server), expected);
    let _ = server.process.line_with(name);
    fs::write(&file, whole).unwrap();
    assert_eq!(statuses(&server), [200; 16]);
}
