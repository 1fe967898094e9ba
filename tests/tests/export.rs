//! Files for other programs: an exported path in transformers, token files in h5py.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use dipaco_model::{
    Dtype, ModelConfig, PackedModule, Positions, StepSequence, Stepper, WeightFormat, import_llama,
};
use dipaco_shards::{TokenSet, Tokenizer};
use dipaco_tests::fixtures::{TINY, root};
use dipaco_tests::http::post;
use dipaco_tests::process::{output, short_of_space};
use dipaco_tests::python::python;
use dipaco_tests::run::{Run, trained};
use dipaco_topology::{Topology, TopologyConfig};
use serde_json::{Value, json};

const TEXT: &str = "fn main() { println!(\"Grüße, 世界\"); }";

/// Logits of every position (T × V) by this project's own decoder.
fn logits(checkpoint: &Path, tokens: &[u32]) -> Vec<f32> {
    let config: toml::Table = TINY.parse().unwrap();
    let config: ModelConfig = config["model"].clone().try_into().unwrap();
    let config = config.with_vocabulary(384).unwrap();
    let weights = import_llama(&config, &fs::read(checkpoint.join("model.safetensors")).unwrap()).unwrap();
    let dense = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks).unwrap();
    let modules = [Arc::new(PackedModule::new(&config, &dense, 0, &weights, WeightFormat::F32).unwrap())];
    let stepper = Stepper::new(&config, &dense).unwrap();
    let pages: Vec<u32> = (0u32..).take(config.context).collect();
    let mut kv = stepper.pages(pages.len(), Dtype::F32);
    let sequence =
        StepSequence { modules: &modules, tokens, start: 0, stage: 0, pages: &pages, logits: Positions::All };
    stepper.step(&[sequence], &mut kv).unwrap().swap_remove(0)
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// The README of path 2 has the hashes of the weights of its modules, and no others.
fn the_card_names_the_weights(card: &str, status: &Value) {
    let modules = status["training"]["modules"].as_array().unwrap();
    let paths = status["training"]["paths"].as_array().unwrap();
    assert!(card.contains(&format!("One of the {} paths", paths.len())), "{card}");
    let named = |module: &Value| {
        let mut hashes =
            module["fragments"].as_array().unwrap().iter().map(|f| f["weights"]["hash"].as_str().unwrap());
        hashes.all(|hash| card.contains(hash))
    };
    // Path 2 of a 2 × 2 grid: module 1 of the first level and module 0 of the second.
    let found: Vec<_> =
        modules.iter().filter(|module| named(module)).map(|module| module["module"].to_string()).collect();
    assert_eq!(found.len(), 2, "{found:?}: {card}");
}

#[test]
fn transformers_gives_the_same_logits_as_the_decoder_and_as_the_server() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("path-2");
    let verified = run.dipaco(&format!("export --path 2 --out {} --verify", out.display())).succeeded();
    let _ = verified.says("at most 0.00e0").says("64 of 64");
    let tokenizer = Tokenizer::from_file(&out.join("tokenizer.json"), None).unwrap();
    let tokens = tokenizer.encode(TEXT).unwrap();
    assert!(tokens.len() > 16, "{tokens:?}");
    the_card_names_the_weights(&fs::read_to_string(out.join("README.md")).unwrap(), &run.status());

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

    // Transformers does not round keys and values.
    let server = run.serve("--set serve.kv_type=f32");
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

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let named =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    fs::read_dir(folder).unwrap().map(|entry| named(entry.unwrap())).collect()
}

#[test]
fn an_export_writes_over_a_file_only_by_force() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let (out, gguf) = (folder.path().join("out"), folder.path().join("out.gguf"));
    let export = |words: &str| run.dipaco(&format!("export --path 2 --out {} {words}", out.display()));
    let _ = export("").succeeded();
    let written = files(&out);
    let _ = export("").failed(2, &["config.json is there already", "--force"]);
    let read_besides = ["model.safetensors.index.json", "chat_template.jinja"];
    for name in written.keys().map(String::as_str).chain(read_besides) {
        fs::remove_dir_all(&out).unwrap();
        fs::create_dir(&out).unwrap();
        fs::write(out.join(name), "mine").unwrap();
        let _ = export("").failed(2, &[&format!("{name} is there already"), "--force"]);
        assert_eq!(files(&out), BTreeMap::from([(name.to_owned(), b"mine".to_vec())]));
    }
    // Neither is written if one of them is there.
    fs::remove_dir_all(&out).unwrap();
    fs::write(&gguf, "mine").unwrap();
    let _ = export(&format!("--gguf {}", gguf.display())).failed(2, &["out.gguf is there already"]);
    assert!(!out.exists() && fs::read(&gguf).unwrap() == b"mine");
    let _ = export(&format!("--force --gguf {}", gguf.display())).succeeded();
    assert!(files(&out) == written && fs::read(&gguf).unwrap() != b"mine");
}

#[test]
fn a_forced_export_leaves_no_file_of_the_checkpoint_before() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let (out, fresh) = (folder.path().join("out"), folder.path().join("fresh"));
    let export = |out: &Path, words: &str| format!("export --path 2 {words} --out {}", out.display());
    let _ = run.dipaco(&export(&fresh, "")).succeeded();
    // Weights in two files with an index, and a chat template.
    let model = files(&root().join("crates/model/tests/fixtures/pretrained"));
    let of_others = ["config-older.json", "expected.json"];
    assert!(model.contains_key("model.safetensors.index.json") && model.contains_key("chat_template.jinja"));
    fs::create_dir(&out).unwrap();
    for (name, bytes) in &model {
        fs::write(out.join(name), bytes).unwrap();
    }
    let _ = run.dipaco(&export(&out, "--force --verify")).succeeded().says("64 of 64");
    let mut expected = files(&fresh);
    expected.extend(of_others.map(|name| (name.to_owned(), model[name].clone())));
    assert!(files(&out) == expected, "{:?}", files(&out).keys());

    // A broken export leaves nothing that a reader takes for a model.
    let broken = output(short_of_space(&run.command(&export(&out, "--force")), 100));
    let _ = broken.failed(1, &["model.safetensors", "too large"]);
    let import = format!("seed --import {}", out.display());
    let _ = Run::new().dipaco(&import).failed(1, &["out has no config.json"]);
    let _ = run.dipaco(&export(&out, "--force")).succeeded();
    assert!(files(&out) == expected, "{:?}", files(&out).keys());
}

#[test]
fn scripts_read_what_was_written() {
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let (out, gguf) = (folder.path().join("out"), folder.path().join("out.gguf"));
    let words = format!("--out {} --gguf {} --format q8_0 --json", out.display(), gguf.display());
    let verified = run.dipaco(&format!("export --path 2 --verify {words}")).succeeded().json();
    let expected = |model: &str| {
        json!([
            {"model": model, "kind": "checkpoint", "files": out.display().to_string(), "format": "f32"},
            {"model": model, "kind": "gguf", "files": gguf.display().to_string(), "format": "q8_0"},
        ])
    };
    let mut without = verified.clone();
    let logits: Vec<Value> = without
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .map(|entry| entry.as_object_mut().unwrap().remove("logits").unwrap())
        .collect();
    assert_eq!(without, expected("path-2"), "{verified}");
    assert_eq!(logits[0]["largest_difference"], 0.0);
    assert_eq!((&logits[0]["tokens"], &logits[0]["same_tokens"]), (&json!(64), &json!(64)));
    assert!(logits[1]["largest_difference"].as_f64().unwrap() > 0.0, "{verified}");
    assert!(logits[1]["largest_logit"].as_f64().unwrap() > 0.01, "{verified}");
    let seed = run.dipaco(&format!("export --seed --force {words}")).succeeded().json();
    assert_eq!(seed, expected("seed"));
}

#[test]
fn h5py_reads_what_prepare_wrote() {
    let run = trained();
    for file in ["data/pieces/00000-train.h5", "routing/train/path-001/00000.h5"] {
        let file = run.file(file);
        let Some(found) = python("h5py", "token_file.py", &[file.to_str().unwrap()]) else { return };
        let own = TokenSet::open(&file).unwrap();
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

/// Greedy continuations of `prompts` on path 2 by this project's server.
fn served(address: &str, prompts: &[Vec<u32>], tokens: usize) -> Vec<Value> {
    let ask = json!({
        "model": "e2e/path-2", "prompt": prompts, "max_tokens": tokens, "temperature": 0, "logprobs": 0,
        "return_tokens_as_token_ids": true,
    });
    let answer = post(address, "/v1/completions", &ask).json();
    let choices = answer["choices"].as_array().unwrap();
    let id = |token: &Value| -> u32 {
        token.as_str().unwrap().strip_prefix("token_id:").unwrap().parse().unwrap()
    };
    let ids = |choice: &Value| choice["logprobs"]["tokens"].as_array().unwrap().iter().map(id).collect();
    choices.iter().map(ids).collect()
}

#[test]
fn llama_cpp_gives_the_same_tokens_for_the_same_text() {
    const TOKENS: usize = 24;
    let run = trained();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("path-2.gguf");
    let export = |words: &str| run.dipaco(&format!("export --path 2 --gguf {} {words}", file.display()));
    let _ = export("--verify").succeeded().says("at most 0.00e0").says("64 of 64");
    let _ = export("").failed(2, &["is there already", "--force"]);

    let tokenizer =
        Tokenizer::from_bytes(&fs::read(run.file("data/tokenizer.json")).unwrap(), None, "run").unwrap();
    let texts = [
        TEXT,
        "It's 1234567 o'clock,  isn't it?\n\n\tnext   line \r\n",
        "  leading and trailing  ",
        "x²½Ⅷ٣ naïve ЁЖ 日本語\u{3000}テキスト 🎉👩‍👩‍👧 \u{a0}\u{2028}end",
        "snake_case CamelCase <|endoftext|> <a href=\"b\">'ll 'LL",
    ];
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
    let prompts: Vec<Vec<u32>> = ids.iter().map(|ids| ids[..ids.len().min(20)].to_vec()).collect();
    let task = json!({"prompts": prompts, "texts": texts, "tokens": TOKENS}).to_string();
    let file_name = file.to_str().unwrap();
    let Some(exact) = python("xllamacpp", "llama_cpp.py", &[file_name, &task]) else { return };
    assert_eq!(exact["texts"], json!(ids), "the same ids for the same text");
    // The same tokens, whatever the two programs round: llama.cpp's client of this test keeps keys and values in f32 too.
    let server = run.serve("--set serve.kv_type=f32");
    assert_eq!(exact["completions"], json!(served(&server.address, &prompts, TOKENS)));

    for format in ["bf16", "q8_0", "q4_0"] {
        let server = run.serve(&format!("--set serve.format={format} --set serve.kv_type=f32"));
        let own = served(&server.address, &prompts, TOKENS);
        let verified = export(&format!("--format {format} --force --verify")).succeeded().says("at most");
        assert!(!verified.stdout.contains("at most 0.00e0"), "{format}: {}", verified.stdout);
        let Some(found) = python("xllamacpp", "llama_cpp.py", &[file_name, &task]) else { return };
        let lengths = |found: &Value| -> Vec<usize> {
            found["completions"].as_array().unwrap().iter().map(|c| c.as_array().unwrap().len()).collect()
        };
        assert!(lengths(&found).iter().all(|length| *length > 0), "{format}: {found}");
        // llama.cpp rounds activations too, in ways of its own, so a tie may go the other way. The first tokens must not.
        let same = |index: usize| found["completions"][index][0] == own[index][0];
        assert!((0..texts.len()).filter(|index| same(*index)).count() >= 4, "{format}: {found} and {own:?}");
    }
}
