//! Files for other programs: an exported path in transformers, token files in h5py.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, Path, import_llama};
use dipaco_shards::{TokenFile, Tokenizer};
use dipaco_tests::fixtures::TINY;
use dipaco_tests::http::post;
use dipaco_tests::python::python;
use dipaco_tests::run::trained;
use dipaco_topology::{Topology, TopologyConfig};
use serde_json::{Value, json};

const TEXT: &str = "fn main() { println!(\"Grüße, 世界\"); }";

/// Logits of every position (T × V) by this project's own decoder.
fn logits(checkpoint: &std::path::Path, tokens: &[u32]) -> Vec<f32> {
    let config: toml::Table = TINY.parse().unwrap();
    let config: ModelConfig = config["model"].clone().try_into().unwrap();
    let config = config.with_vocabulary(384).unwrap();
    let weights = import_llama(&config, &fs::read(checkpoint.join("model.safetensors")).unwrap()).unwrap();
    let dense = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks).unwrap();
    let module = Arc::new(Module::load(&weights, &Device::Cpu).unwrap());
    let path = Path::compose(&config, &dense, &[module]).unwrap();
    path.decode(tokens, &mut path.new_cache(), true).unwrap()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn transformers_gives_the_same_logits_as_the_decoder_and_as_the_server() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("path-2");
    let _ = run.dipaco(&format!("export --path 2 --out {}", out.display())).succeeded();
    let tokenizer = Tokenizer::from_file(&out.join("tokenizer.json"), None).unwrap();
    let tokens = tokenizer.encode(TEXT).unwrap();
    assert!(tokens.len() > 16, "{tokens:?}");

    let ids = json!(tokens).to_string();
    let Some(theirs) = python("transformers", "llama.py", &[out.to_str().unwrap(), &ids, TEXT]) else {
        return;
    };
    assert_eq!(theirs["class"], "LlamaForCausalLM");
    assert_eq!((&theirs["missing"], &theirs["unexpected"]), (&json!([]), &json!([])));
    assert_eq!(theirs["ids"], json!(tokens), "the same ids for the same text");
    assert_eq!(theirs["text"], TEXT);
    assert_eq!(theirs["eos"], tokenizer.end_of_text());

    let own = logits(&out, &tokens);
    let rows: Vec<Vec<f64>> = theirs["logits"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(own.len(), rows.len() * 384);
    let largest = own.iter().zip(rows.iter().flatten()).map(|(own, theirs)| (f64::from(*own) - theirs).abs());
    let largest = largest.fold(0.0, f64::max);
    assert!(largest < 1e-4, "logits differ by {largest}");
    let spread = rows[0].iter().fold(0.0_f64, |most, logit| most.max(logit.abs()));
    assert!(spread > 0.01, "the model has learnt nothing: its largest logit is {spread}");

    let server = run.serve("");
    let ask = json!({"model": "e2e/path-2", "prompt": tokens, "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = post(&server.address, "/v1/completions", &ask).json();
    let scores = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(scores.len(), tokens.len());
    for ((score, token), row) in scores[1..].iter().zip(&tokens[1..]).zip(&rows) {
        let normaliser = row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let expected = row[*token as usize] - normaliser;
        let score = score.as_f64().unwrap();
        assert!((score - expected).abs() < 1e-4, "token {token}: served {score}, transformers {expected}");
    }
}

#[test]
fn h5py_reads_what_prepare_wrote() {
    let run = trained();
    for file in ["data/train.h5", "routing/train/path-001.h5"] {
        let file = run.file(file);
        let Some(found) = python("h5py", "token_file.py", &[file.to_str().unwrap()]) else { return };
        let own = TokenFile::open(&file).unwrap();
        assert_eq!(found["names"], json!(["documents", "tokens"]));
        assert_eq!(found["tokens"]["dtype"], "<u2");
        assert_eq!(found["tokens"]["count"], own.tokens());
        assert_eq!(found["tokens"]["last"], own.end_of_text(), "a document ends with its end-of-text token");
        assert_eq!(found["documents"]["dtype"], "<u8");
        assert_eq!(found["documents"]["count"], own.documents() + 1);
        assert_eq!(found["documents"]["last"], own.tokens());
        assert_eq!(found["first"], json!(own.document(0).to_vec()));
        let attributes = &found["attributes"];
        assert_eq!(attributes["format"], "dipaco-tokens");
        assert_eq!(attributes["content_hash"], own.content_hash());
        assert_eq!(attributes["tokenizer_hash"], own.tokenizer_hash());
        assert_eq!(attributes["vocab_size"], 384);
    }
}
