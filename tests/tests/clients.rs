//! `dipaco serve` with programs that people have: lm-evaluation-harness, LangChain and curl.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use dipaco_tests::fixtures::root;
use dipaco_tests::process::{clean, output};
use dipaco_tests::python::python;
use dipaco_tests::run::trained;
use serde_json::{Value, json};

/// Asserts that two values are equal, numbers up to a relative difference of 1e-5.
fn assert_close(served: &Value, expected: &Value, place: &str) {
    match (served, expected) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{place}: served {a}, in process {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{place}");
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                assert_close(a, b, &format!("{place}[{index}]"));
            }
        }
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{place}: {a:?} {b:?}");
            for (name, a) in a {
                assert_close(a, &b[name], &format!("{place}.{name}"));
            }
        }
        (a, b) => assert_eq!(a, b, "{place}"),
    }
}

#[test]
fn lm_evaluation_harness_scores_as_in_process() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let export = folder.path().join("path-2");
    let _ = run.dipaco(&format!("export --path 2 --out {}", export.display())).succeeded();
    // The path in transformers does not round keys and values.
    let server = run.serve("--set serve.kv_type=f32");
    let base = format!("http://{}", server.address);
    let tasks = root().join("tests/fixtures/lm-eval");
    let scores = |kind, settings: Value| {
        python("lm_eval", "lm_eval_scores.py", &[tasks.to_str().unwrap(), kind, &settings.to_string()])
    };
    let served = json!({
        "model": "e2e/path-2", "base_url": format!("{base}/v1/completions"), "max_length": 64, "num_concurrent": 4,
        "batch_size": 4, "max_retries": 1,
    });
    // The client of a server keeps two tokens of a window: for the continuation and for the beginning.
    let process = json!({"pretrained": export, "max_length": 62, "device": "cpu", "dtype": "float32"});
    let (Some(served), Some(expected)) = (scores("local-completions", served), scores("hf", process)) else {
        return;
    };
    assert_close(&served, &expected, "");
    assert_eq!(served["samples"]["choice"].as_array().unwrap().len(), 24);
    assert_eq!(served["samples"]["text"].as_array().unwrap().len(), 5);
    let accuracy = served["metrics"]["choice"]["acc,none"].as_f64().unwrap();
    assert!(accuracy > 0.25, "four choices by chance: {accuracy}");
}

#[test]
fn langchain_gets_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m['content'] }}{% endfor %}").unwrap();
    let server = trained().serve(&format!("--set serve.chat_template={}", template.display()));
    let base = format!("http://{}/v1", server.address);
    let Some(found) = python("langchain_openai", "langchain_client.py", &[&base, "e2e"]) else { return };

    let joined = |name: &str| -> String {
        let pieces = found[name].as_array().unwrap();
        assert!(pieces.len() > 4, "{name} comes in pieces: {pieces:?}");
        pieces.iter().map(|piece| piece.as_str().unwrap()).collect()
    };
    let text = found["text"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!((joined("text_pieces").as_str(), found["both"][0].as_str()), (text, Some(text)));
    assert_eq!(found["usage"]["completion_tokens"], 24);
    // The template joins the messages to the prompt of the completion.
    assert_eq!((found["chat"].as_str(), joined("chat_pieces").as_str()), (Some(text), text));
    assert_eq!(
        (&found["chat_usage"]["output_tokens"], &found["chat_finish"]),
        (&json!(12), &json!("length"))
    );
}

#[test]
fn curl_shows_a_stream() {
    let server = trained().serve("");
    let ask = json!({"prompt": "fn main() {", "max_tokens": 12, "temperature": 0, "stream": true});
    let url = format!("http://{}/v1/completions", server.address);
    let words = ["--silent", "--show-error", "--no-buffer", "--include", "--max-time", "60", &url];
    let body = ["-H", "content-type: application/json", "-d", &ask.to_string()];
    let shown = output(clean(Command::new("curl"), words.iter().chain(&body))).succeeded().stdout;
    let (head, body) = shown.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    let events: Vec<&str> =
        body.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let (end, chunks) = events.split_last().unwrap();
    assert_eq!(*end, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    assert_eq!(chunks.len(), 12, "a chunk for each token: {body}");
    assert_eq!(chunks[11]["choices"][0]["finish_reason"], "length");
}
