//! `serve.format`: what weights of fewer bits cost in perplexity and save in memory.
#![allow(clippy::unwrap_used)]

use dipaco_shards::TokenSet;
use dipaco_tests::http::{get, post};
use dipaco_tests::run::{Run, trained};
use serde_json::json;

/// Texts of each perplexity, and their tokens.
const TEXTS: u64 = 24;
const TOKENS: u64 = 60;

/// What a server says about the text: the log-probability of each token, and the memory of its weights.
fn measured(run: &Run, format: &str, kv: &str) -> (Vec<f64>, u64) {
    let server = run.serve(&format!("--set serve.format={format} --set serve.kv_type={kv}"));
    let file = TokenSet::open(run.file("data/train.json")).unwrap();
    let text = |number: u64| {
        let start = number * (file.tokens() - TOKENS) / TEXTS;
        file.ids(start..start + TOKENS).collect()
    };
    let prompts: Vec<Vec<u32>> = (0..TEXTS).map(text).collect();
    let ask = json!({"prompt": prompts, "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = post(&server.address, "/v1/completions", &ask).json();
    let choices = answer["choices"].as_array().unwrap();
    let scores: Vec<f64> = choices
        .iter()
        .flat_map(|choice| choice["logprobs"]["token_logprobs"].as_array().unwrap()[1..].iter())
        .map(|score| score.as_f64().unwrap())
        .collect();
    assert_eq!(scores.len() as u64, TEXTS * (TOKENS - 1));
    let info = get(&server.address, "/info").json();
    assert_eq!(info["format"], format);
    let bytes = info["weight_bytes"].as_u64().unwrap();
    let metrics = get(&server.address, "/metrics").body;
    assert!(metrics.contains(&format!("dipaco_weight_bytes{{model_name=\"e2e\"}} {bytes}\n")), "{metrics}");
    (scores, bytes)
}

/// The mean negative log-probability of a token.
fn loss(scores: &[f64]) -> f64 {
    -scores.iter().sum::<f64>() / scores.len() as f64
}

#[test]
fn weights_of_fewer_bits_cost_little_perplexity() {
    let run = trained();
    let (exact, whole) = measured(run, "f32", "f32");
    let exact = loss(&exact);
    assert!(exact < 0.9 * 384f64.ln(), "the model has learnt nothing: {exact}");
    for (format, bound, memory) in [("bf16", 0.001, 0.52), ("q8_0", 0.001, 0.29), ("q4_0", 0.03, 0.25)] {
        let (scores, bytes) = measured(run, format, "bf16");
        let loss = loss(&scores);
        let rise = (loss - exact).exp() - 1.0;
        println!("{format}: perplexity {:+.4} %, memory {:.3}", 100.0 * rise, bytes as f64 / whole as f64);
        assert!(rise < bound, "{format}: perplexity rises by {:.3} %", 100.0 * rise);
        assert!(loss != exact, "{format} is not another format");
        assert!((bytes as f64) < memory * whole as f64, "{format}: {bytes} of {whole} bytes");
    }
}

#[test]
fn keys_and_values_of_half_the_bits_hardly_change_log_probabilities() {
    let run = trained();
    let (exact, _) = measured(run, "f32", "f32");
    let (rounded, _) = measured(run, "f32", "bf16");
    let differences: Vec<f64> = exact.iter().zip(&rounded).map(|(one, other)| (one - other).abs()).collect();
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let most = differences.iter().fold(0.0, |most: f64, &difference| most.max(difference));
    let rise = (loss(&rounded) - loss(&exact)).exp() - 1.0;
    println!(
        "bf16: log-probabilities differ by {mean:.2e}, at most {most:.2e}, perplexity {:+.5} %",
        100.0 * rise
    );
    assert!(mean > 0.0, "nothing was rounded");
    assert!(mean < 1e-3 && most < 1e-2 && rise.abs() < 1e-4, "{mean} {most} {rise}");
}

#[test]
fn a_format_that_is_unknown_or_does_not_fit_is_refused() {
    let run = trained();
    let _ = run.dipaco("serve --set serve.format=q5_0").failed(2, &["serve.format", "q4_0"]);
    let copy = run.copy();
    let _ = copy.dipaco("serve --set serve.step_tokens=0").failed(2, &["serve.step_tokens", "1 to 65536"]);
}
