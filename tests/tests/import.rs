//! A run that begins with a pretrained model.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use dipaco_tests::fixtures::{corpus, fixture, root};
use dipaco_tests::http::{get, post};
use dipaco_tests::process::{Output, Signal, command, dipaco, output};
use dipaco_tests::python::python;
use dipaco_tests::run::Run;
use serde_json::{Value, json};

/// A model that transformers saved: two blocks, grouped-query attention, tied embeddings, bf16 in two files.
fn model() -> PathBuf {
    root().join("crates/model/tests/fixtures/pretrained")
}

fn run() -> Run {
    let run = Run::new();
    fs::copy(fixture("imported.toml"), run.config()).unwrap();
    run
}

fn import(words: &str) -> String {
    format!("seed --import {} {words}", model().display())
}

fn json_file(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn an_imported_model_is_prepared_adapted_routed_trained_and_exported() {
    let run = run();
    let _ = run.dipaco(&import("")).succeeded().says("8,272 parameters");
    let config: toml::Table = fs::read_to_string(run.file("config.toml")).unwrap().parse().unwrap();
    let shape = ["hidden_size", "heads", "kv_heads", "vocab_size", "context"]
        .map(|key| config["model"][key].as_integer().unwrap());
    assert_eq!(shape, [16, 4, 2, 272, 64]);
    assert_eq!(config["prepare"]["end_of_text"].as_str(), Some("<|endoftext|>"));
    let seed = run.status()["seed"].clone();
    assert_eq!((&seed["step"], &seed["steps"]), (&json!(0), &json!(4)));
    assert_eq!(seed["weights"], seed["imported"]);

    let _ = run.prepare(corpus()).succeeded();
    let tokenizer = fs::read(model().join("tokenizer.json")).unwrap();
    assert_eq!(fs::read(run.file("data/tokenizer.json")).unwrap(), tokenizer);
    let _ = run.dipaco("route fit").failed(1, &["no finished seed"]);
    let _ = run.dipaco("seed").succeeded().says("4 steps");
    let adapted = run.status()["seed"].clone();
    assert_eq!((&adapted["step"], &adapted["imported"]), (&json!(4), &seed["imported"]));
    assert_ne!(adapted["weights"]["hash"], seed["weights"]["hash"]);
    let _ = run.dipaco("seed --restart").succeeded();
    assert_eq!(
        run.status()["seed"]["weights"]["hash"],
        adapted["weights"]["hash"],
        "it begins with the same weights"
    );
    let _ = run.dipaco(&import("")).succeeded().says("was there already");
    let _ = run.dipaco(&import("--restart")).succeeded().says("the seed is done: 4 steps");
    assert_eq!(run.status()["seed"]["weights"]["hash"], adapted["weights"]["hash"]);

    for step in ["route fit", "route assign", "train --workers 1"] {
        let _ = run.dipaco(step).succeeded();
    }
    let out = run.folder().join("path-1");
    let _ = run.dipaco(&format!("export --path 1 --out {}", out.display())).succeeded();
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        assert_eq!(fs::read(out.join(file)).unwrap(), fs::read(model().join(file)).unwrap(), "{file}");
    }
    let (ours, theirs) = (json_file(out.join("config.json")), json_file(model().join("config.json")));
    for key in [
        "model_type",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "tie_word_embeddings",
        "rms_norm_eps",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "max_position_embeddings",
    ] {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    assert_eq!(ours["rope_theta"], theirs["rope_parameters"]["rope_theta"]);
    the_gguf_file_has_tokens_template_and_sampling(&run);
    // The server reads the model's sampling settings.
    fs::write(run.file("imported/generation_config.json"), r#"{"eos_token_id": 0, "temperature": 9}"#)
        .unwrap();
    let refused = ["temperature is 9", "a number from 0 to 2", "serve.model_sampling = false"];
    let _ = run.dipaco("serve --address 127.0.0.1:0").failed(1, &refused);
    // A chat begins and ends with the model's own tokens.
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    fs::write(run.file("imported/chat_template.jinja"), template).unwrap();
    let server = run.serve("--set serve.model_sampling=false");
    assert_eq!(get(&server.address, "/health").status, 200);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let answer = post(&server.address, "/tokenize", &chat).json();
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!((tokens.len(), &tokens[0], &tokens[2]), (3, &json!(1), &json!(2)), "{answer}");
    drop(server);
    a_template_of_a_training_refuses_chats_only(&run);
    // What was exported can be imported.
    let again = self::run();
    let _ = again.dipaco(&format!("seed --import {}", out.display())).succeeded();
}

/// A model's template may have statements that only transformers knows. The run answers all but chats.
fn a_template_of_a_training_refuses_chats_only(run: &Run) {
    let file = run.file("imported/chat_template.jinja");
    fs::write(&file, "{% generation %}{{ messages }}{% endgeneration %}").unwrap();
    let server = run.serve("--set serve.model_sampling=false");
    let ask = |address: &str, body: Value| post(&server.address, address, &body);
    let chat = ask("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]}));
    let refused = chat.error(400);
    assert!(refused["message"].as_str().unwrap().contains("generation"), "{refused}");
    assert_eq!(ask("/v1/completions", json!({"prompt": "a", "max_tokens": 1})).status, 200);
    server.process.signal(Signal::TERM);
    let log = server.process.finish().succeeded().stderr;
    let warning = log.lines().find(|line| line.contains("chats are refused")).unwrap();
    for part in ["WARN", "chat_template.jinja", "generation", "serve.chat_template"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

/// A run that begins with an exported GGUF file has what the exported run got from its model.
fn the_gguf_file_has_tokens_template_and_sampling(run: &Run) {
    let file = run.folder().join("path-1.gguf");
    let _ = run.dipaco(&format!("export --path 1 --gguf {} --verify", file.display())).succeeded();
    let again = self::run();
    let _ = again.dipaco(&format!("seed --import {}", file.display())).succeeded();
    let imported = |name: &str| again.file("imported").join(name);
    for (name, keys) in [
        ("config.json", &["bos_token_id", "eos_token_id", "pad_token_id"][..]),
        ("generation_config.json", &["bos_token_id", "eos_token_id", "pad_token_id", "temperature"]),
        ("tokenizer_config.json", &["bos_token", "eos_token", "pad_token"]),
    ] {
        let (ours, theirs) = (json_file(imported(name)), json_file(model().join(name)));
        for key in keys {
            assert_eq!(ours[key], theirs[key], "{name}: {key}");
        }
    }
    let template = fs::read_to_string(model().join("chat_template.jinja")).unwrap();
    assert_eq!(fs::read_to_string(imported("chat_template.jinja")).unwrap(), template);

    let nothing = json!({"prompts": [], "texts": [], "tokens": 0}).to_string();
    let Some(found) = python("xllamacpp", "llama_cpp.py", &[file.to_str().unwrap(), &nothing]) else {
        return;
    };
    let found = &found["properties"];
    assert_eq!((&found["bos_token"], &found["eos_token"]), (&json!("<|im_start|>"), &json!("<|im_end|>")));
    assert_eq!(found["chat_template"], template);
    let temperature = found["sampling"]["temperature"].as_f64().unwrap();
    assert!((temperature - 0.7).abs() < 1e-6, "{found}");
}

#[test]
fn a_seed_without_steps_is_the_model_itself() {
    let run = run();
    let _ = run.dipaco(&import("--set seed_model.steps=0")).succeeded();
    let _ = run.dipaco(&import("--set seed_model.steps=0")).succeeded();
    let _ = run.prepare(corpus()).succeeded();
    let _ = run.dipaco("seed").succeeded().says("0 steps");
    let _ = run.dipaco("route fit").succeeded();
    let seed = run.status()["seed"].clone();
    assert_eq!(seed["weights"], seed["imported"]);
}

#[test]
fn a_run_with_a_relative_name_goes_on_elsewhere() {
    let run = run();
    let within = |folder: &Path, words: &str| {
        let mut command = command(words.split_whitespace());
        command.current_dir(folder);
        output(command)
    };
    let words = format!("--run first --config {}", run.config().display());
    let _ = within(run.folder(), &import(&words)).succeeded();
    fs::rename(run.folder().join("first"), run.directory()).unwrap();
    // The commands of a run name its whole path, in another folder.
    let _ = run.prepare(corpus()).succeeded();
    let text = corpus()[0].display().to_string();
    let _ = within(run.folder(), &format!("prepare --run run {text}")).succeeded().says("nothing to do");
}

#[test]
fn contradictions_name_both_values() {
    let run = run();
    let _ = run
        .dipaco(&import("--set model.hidden_size=32 --set model.kv_heads=4 --set model.context=65"))
        .failed(
            2,
            &[
                "model.hidden_size is 32, but the model in",
                "has 16",
                "model.kv_heads is 4, but the model in",
                "has 2",
                "model.context is 65, but the model in",
                "has 64",
            ],
        );
    assert!(!run.directory().exists(), "a refused import leaves nothing behind");
    let _ = run.dipaco(&import("--set model.context=32 --set model.rope_theta=5e4 --set seed_model.sequence_tokens=32 --set train.sequence_tokens=32 --set evaluation.prefix_tokens=16 --set routing.prefix_tokens=16")).succeeded();

    // Prepared with a tokenizer of its own, and then a model with another one.
    let other = self::run();
    let _ = other.prepare(corpus()).failed(2, &["topology"]);
}

#[test]
fn embeddings_are_untied_on_request() {
    let run = run();
    let text = fs::read_to_string(fixture("imported.toml")).unwrap();
    let text = text.replace("modules = 1\nembedding = true\nhead = true", "modules = 2\nhead = true");
    let text = text.replace("blocks = \"0\"", "blocks = \"0\"\nembedding = true");
    fs::write(run.config(), text).unwrap();
    let _ = run.dipaco(&import("")).failed(2, &["model.tie_embeddings: is true, but topology.levels"]);
    let _ = run.dipaco(&import("--set model.tie_embeddings=false")).succeeded().says("12,624 parameters");
}

#[test]
fn a_folder_without_a_model_is_refused() {
    let run = run();
    let folder = run.folder().join("empty");
    fs::create_dir(&folder).unwrap();
    let import = format!("seed --import {}", folder.display());
    let _ = run.dipaco(&import).failed(1, &["has no config.json"]);
    fs::copy(model().join("config.json"), folder.join("config.json")).unwrap();
    let _ = run.dipaco(&import).failed(1, &["has no tokenizer.json"]);
    fs::copy(model().join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let _ = run.dipaco(&import).failed(1, &["can't read", "model.safetensors"]);
    fs::write(folder.join("model.safetensors"), [0xff; 4096]).unwrap();
    let _ = run.dipaco(&import).failed(1, &["model.safetensors is not a valid safetensors file"]);
}

/// A quickstart in the directory of a run, which begins without a configuration file.
fn quickstart(run: &Run, words: &str) -> Output {
    dipaco(&format!("quickstart --run {} {words}", run.directory().display()))
}

#[test]
fn the_quickstart_goes_from_a_model_to_completions() {
    let run = Run::new();
    let settings = [
        "seed_model.steps=3",
        "train.rounds=1",
        "train.inner_steps=2",
        "prepare.text_document_bytes=1024",
        "prepare.validation_fraction=0.05",
        "routing.restarts=2",
    ]
    .map(|setting| format!(" --set {setting}"))
    .concat();
    let words = format!("--from {} --data {}{settings}", model().display(), corpus()[0].display());
    let mut first = quickstart(&run, &words).succeeded();
    for text in ["imported", "seed", "dense", "routed", "completion", "serve --run"] {
        first = first.says(text);
    }
    let config: toml::Table = fs::read_to_string(run.file("config.toml")).unwrap().parse().unwrap();
    let levels = config["topology"]["levels"].as_array().unwrap();
    let modules: Vec<_> = levels.iter().map(|level| level["modules"].as_integer().unwrap()).collect();
    assert_eq!(modules, [2, 2, 1]);
    assert_eq!(config["model"]["context"].as_integer(), Some(64), "the model's own context is the longest");
    let tokenizer = fs::read(model().join("tokenizer.json")).unwrap();
    assert_eq!(fs::read(run.file("data/tokenizer.json")).unwrap(), tokenizer);

    // A repeated call finds all work done. Without space for its events it says the results all the same.
    let manifest = run.status();
    let (events, kept) = (run.file("metrics.jsonl"), run.folder().join("kept.jsonl"));
    fs::rename(&events, &kept).unwrap();
    std::os::unix::fs::symlink("/dev/full", &events).unwrap();
    let again = quickstart(&run, &words).succeeded().says("routed").says("completion");
    let said = "the results are not in the run's event file";
    assert!(again.stderr.contains(said) && again.stderr.contains("metrics.jsonl"), "{}", again.stderr);
    fs::rename(&kept, &events).unwrap();
    assert_eq!(run.status(), manifest);
}

#[test]
fn a_quickstart_from_nothing_creates_nothing() {
    let run = Run::new();
    let _ = quickstart(&run, "--from smolm2").failed(2, &["there is no smolm2", "smollm2 for SmolLM2-135M"]);
    let broken = run.folder().join("model.gguf");
    fs::write(&broken, b"GGUF\x03\0\0\0").unwrap();
    let from = format!("--from {}", broken.display());
    let _ =
        quickstart(&run, &from).failed(1, &["model.gguf is not a valid GGUF file", "the file ends before"]);
    let refused = format!("--from {} --set train.rounds=0", model().display());
    let _ = quickstart(&run, &refused).failed(2, &["train.rounds"]);
    let weightless = run.folder().join("weightless");
    fs::create_dir(&weightless).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(model().join(file), weightless.join(file)).unwrap();
    }
    let empty = run.folder().join("empty");
    fs::create_dir(&empty).unwrap();
    for (model, text, says) in
        [(weightless, corpus()[0].clone(), "model.safetensors"), (model(), empty, "no file to read")]
    {
        let words = format!("--from {} --data {}", model.display(), text.display());
        let _ = quickstart(&run, &words).failed(1, &[says]);
    }
    assert!(!run.directory().exists(), "{}", run.directory().display());
}

#[test]
fn a_check_names_the_blocks_of_a_level_as_ranges() {
    let file = root().join("configs/smollm2-2x2.toml");
    let check = dipaco(&format!("config check --config {}", file.display())).succeeded();
    let _ = check.says("modules of level 0: blocks 0..15").says("modules of level 2: embedding, head");
}
