//! `dipaco bench serve` against the real server.
#![allow(clippy::unwrap_used)]

use dipaco_tests::grafana::{exported, metrics_of_row};
use dipaco_tests::process::dipaco;
use dipaco_tests::run::trained;
use serde_json::{Value, json};

fn bench(address: &str, words: &str) -> Value {
    dipaco(&format!("bench serve --url http://{address} --json {words}")).succeeded().json()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_closed_loop_measures_every_request() {
    let server = trained().serve("");
    let words = "--clients 3 --requests 12 --max-tokens 8 --prompt-tokens 4..12 --vocabulary 384 --paths 4 \
                 --first-token 60 --per-token 60";
    let found = bench(&server.address, words);
    assert_eq!(
        (&found["completed"], &found["refused"], &found["failures"]),
        (&json!(12), &json!(0), &json!({}))
    );
    assert_eq!((&found["clients"], &found["generated_tokens"]), (&json!(3), &json!(96)));
    let prompts = number(&found["prompt_tokens"]);
    assert!((48.0..=144.0).contains(&prompts), "{prompts}");
    for latency in ["first_token_ms", "request_ms", "per_token_ms"] {
        let [p50, p90, p99, most] = ["p50", "p90", "p99", "most"].map(|part| number(&found[latency][part]));
        assert!(0.0 < p50 && p50 <= p90 && p90 <= p99 && p99 <= most, "{latency}: {found}");
    }
    assert!(number(&found["first_token_ms"]["most"]) <= number(&found["request_ms"]["most"]));
    let rate = number(&found["generated_tokens"]) / number(&found["seconds"]);
    assert!((number(&found["tokens_per_s"]) / rate - 1.0).abs() < 1e-6);
    assert_eq!(found["goodput"]["share"], 1.0);
    // The system counts in hundredths of a second, and so short a test may use less. Other threads start within a hundredth.
    let own = number(&found["own_processor_seconds"]);
    assert!(own <= number(&found["seconds"]) * number(&found["cores"]) + 0.05, "{own}");
    // The server has seen the paths that the requests named, the warm-up included.
    let metrics = dipaco_tests::http::get(&server.address, "/metrics").body;
    let (asked, exported) = (metrics_of_row("Serving"), exported(&metrics));
    let unknown: Vec<_> = asked.difference(&exported).collect();
    assert!(unknown.is_empty(), "deploy/grafana asks for {unknown:?}");
    let routed = metrics.lines().filter(|line| line.starts_with("dipaco_routed_requests_total"));
    let counts: Vec<f64> = routed.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(counts.len() > 1 && counts.iter().sum::<f64>() == 14.0, "{counts:?}");
}

#[test]
fn an_open_loop_counts_refusals_with_their_latency() {
    let server = trained().serve("--set serve.slots=1 --set serve.queued_requests=0");
    let words = "--rate 2000 --requests 60 --warm-up 0 --max-tokens 40 --prompt-tokens 8 --vocabulary 384";
    let found = bench(&server.address, words);
    let (completed, refused) = (number(&found["completed"]), number(&found["refused"]));
    assert_eq!(completed + refused, 60.0, "{found}");
    assert!(completed >= 1.0 && refused >= 1.0, "{found}");
    assert_eq!(found["rate"], 2000.0);
    assert!(number(&found["refusal_ms"]["p99"]) > 0.0);
    let share = completed / 60.0;
    assert!((number(&found["goodput"]["share"]) - share).abs() < 1e-9, "no bounds: every answer is good");
}

#[test]
fn prompts_come_from_a_file_and_mistakes_are_named() {
    let server = trained().serve("");
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.txt");
    std::fs::write(&prompts, "fn main() {\n\nlet x = 1;\n").unwrap();
    let url = format!("--url http://{}", server.address);
    let file = format!("--prompts {}", prompts.display());
    let table =
        dipaco(&format!("bench serve {url} {file} --requests 3 --warm-up 0 --max-tokens 4")).succeeded();
    let _ = table.says("first token").says("3 completed, 0 refused, 0 failed").says("processor time");
    std::fs::write(&prompts, "\n").unwrap();
    let _ = dipaco(&format!("bench serve {url} {file}")).failed(2, &["holds no prompt"]);
    // A server that refuses every request has no latencies.
    let _ = dipaco(&format!("bench serve {url} --vocabulary 999999 --requests 4"))
        .failed(1, &["answered no request", "status 400"]);
    // Four of nine paths are there: the others fail with the reason that the server gives, and so does the command.
    let some = "--vocabulary 384 --prompt-tokens 4 --requests 24 --warm-up 0 --max-tokens 4 --paths 9";
    let _ = dipaco(&format!("bench serve {url} {some}"))
        .failed(1, &["were refused as invalid: status 400 (path_not_found)"])
        .says("failed: status 400 (path_not_found)");
    let _ = dipaco("bench serve --url https://127.0.0.1").failed(1, &["http://HOST:PORT"]);
    let closed = "bench serve --url http://127.0.0.1:1 --requests 2";
    let _ = dipaco(closed).failed(1, &["answered no request", "onnect"]);
}
