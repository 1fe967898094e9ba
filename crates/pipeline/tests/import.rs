//! A pretrained model becomes a run's seed, tokenizer and settings.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dipaco_config::{RunConfig, Sources};
use dipaco_model::{GgufVocabulary, WeightFormat, export_gguf};
use dipaco_pipeline::export::Exported;
use dipaco_pipeline::import::{ImportedModel, PretrainedModel, import};
use dipaco_pipeline::seed::{SeedHow, seed};
use dipaco_pipeline::{
    PipelineError, PretrainedError, RunDirectory, Weights, prepare, prepared, save_config, vocabulary,
};
use dipaco_shards::{PrepareReport, Tokenizer};
use dipaco_store::{RunManifest, RunStore, SeedRecord};
use dipaco_telemetry::Progress;

/// Settings beside `tests/fixtures/imported.toml`, for texts of a few words.
const SETTINGS: [&str; 7] = [
    "prepare.validation_fraction=0.02",
    "seed_model.steps=2",
    "seed_model.batch=2",
    "seed_model.sequence_tokens=32",
    "train.sequence_tokens=32",
    "evaluation.prefix_tokens=16",
    "routing.prefix_tokens=16",
];

/// A model that transformers saved: grouped-query attention, tied embeddings, bf16 in two files, more rows than entries.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/pretrained")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

/// A run in a temporary folder.
struct Test {
    folder: tempfile::TempDir,
    run: RunDirectory,
}

impl Test {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        Self { folder, run }
    }

    fn config(&self, model: &PretrainedModel, overrides: &[&str]) -> Result<RunConfig, String> {
        let sources = Sources {
            pretrained: Some(model.pretrained()),
            file: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/imported.toml")),
            overrides: SETTINGS.iter().chain(overrides).map(|&text| text.to_owned()).collect(),
            ..Sources::default()
        };
        RunConfig::load(&sources).map(|resolved| resolved.config).map_err(|error| error.to_string())
    }

    fn import(&self, overrides: &[&str]) -> Result<ImportedModel, PipelineError> {
        self.import_from(&model(), overrides)
    }

    fn import_from(&self, model: &Path, overrides: &[&str]) -> Result<ImportedModel, PipelineError> {
        self.import_or_replace(model, overrides, false)
    }

    fn import_or_replace(
        &self,
        model: &Path,
        overrides: &[&str],
        restart: bool,
    ) -> Result<ImportedModel, PipelineError> {
        let model = PretrainedModel::open(model)?;
        let config = self.config(&model, overrides).unwrap();
        let imported = block_on(import(&self.run, &config, &model, restart))?;
        save_config(&self.run, &imported.config)?;
        Ok(imported)
    }

    /// The saved configuration, with the vocabulary.
    fn saved(&self) -> RunConfig {
        let file = self.run.config();
        let saved = RunConfig::from_toml(&std::fs::read_to_string(&file).unwrap(), &file).unwrap();
        vocabulary::with_vocabulary(&self.run, &saved).unwrap()
    }

    fn prepare(&self) -> PrepareReport {
        self.try_to_prepare().unwrap()
    }

    fn try_to_prepare(&self) -> Result<PrepareReport, PipelineError> {
        let text = self.folder.path().join("text.jsonl");
        let line = |i: u32| {
            serde_json::json!({"text": format!("the path {i} of the router ").repeat(9)}).to_string()
        };
        std::fs::write(&text, (0..60).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let file = self.run.config();
        let config = RunConfig::from_toml(&std::fs::read_to_string(&file).unwrap(), &file).unwrap();
        let stop = AtomicBool::new(false);
        prepare::prepare(&self.run, &config, &[text], &[], &Progress::hidden(), &stop)
    }

    fn train_seed(&self, steps: u64, restart: bool) {
        let mut config = self.saved();
        config.seed_model.steps = steps;
        let (how, progress) = (SeedHow { restart, ..SeedHow::default() }, Progress::hidden());
        let summary = block_on(seed(&self.run, &config, how, &progress, Arc::default(), || Ok(()))).unwrap();
        assert!(summary.finished && summary.step == steps, "{summary:?}");
    }

    fn seed(&self) -> SeedRecord {
        let store = RunStore::open(&self.run.store()).unwrap();
        block_on(store.load::<RunManifest>()).unwrap().unwrap().manifest.seed.unwrap()
    }
}

#[test]
fn a_model_is_imported_prepared_and_adapted() {
    let test = Test::new();
    let imported = test.import(&[]).unwrap();
    assert_eq!((imported.parameters, imported.prepared), (8272, false));
    let before = test.seed();
    assert_eq!((before.step, before.steps, before.finished()), (0, 2, false));
    assert_eq!(before.imported.as_ref(), Some(&before.weights));

    test.prepare();
    let config = test.saved();
    assert_eq!(
        (config.model.vocab_size, config.model.kv_heads, config.model.rope_theta),
        (272, Some(2), 5e4)
    );
    let tokenizer = prepared::tokenizer(&test.run).unwrap();
    assert_eq!(tokenizer.to_json(), std::fs::read(model().join("tokenizer.json")).unwrap());
    assert_eq!(tokenizer.end_of_text_text(), "<|endoftext|>");
    assert_eq!(test.run.imported().end_tokens().unwrap(), [2, 0]);

    test.train_seed(2, false);
    let adapted = test.seed();
    assert!(adapted.finished() && adapted.weights.hash != before.weights.hash);
    assert_eq!(adapted.imported, before.imported, "the imported weights stay for a restart");
    test.train_seed(2, true);
    assert_eq!(test.seed().weights.hash, adapted.weights.hash, "a restart begins with the same weights");

    let exported = test.run.imported().exported(0).unwrap().unwrap();
    assert_eq!(exported.special["eos_token_id"], serde_json::json!([2, 0]));
    let names: Vec<&str> = exported.files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"]);
    for (name, bytes) in &exported.files {
        assert_eq!(bytes, &std::fs::read(model().join(name)).unwrap(), "{name}");
    }
}

#[test]
fn a_moved_run_has_its_tokenizer() {
    let mut test = Test::new();
    test.import(&[]).unwrap();
    test.prepare();
    let named = |test: &Test| test.saved().prepare.tokenizer.unwrap();
    assert_eq!(named(&test), Path::new("imported/tokenizer.json"));

    let moved = RunDirectory::new(test.folder.path().join("moved"));
    std::fs::rename(test.run.root(), moved.root()).unwrap();
    test.run = moved;
    assert!(test.prepare().skipped, "the same text with the same tokenizer");
    std::fs::remove_dir_all(test.run.data()).unwrap();
    let mut config = RunConfig::default();
    config.prepare.tokenizer = Some("imported/tokenizer.json".into());
    let expected = vocabulary::of_run(&test.run, &config).unwrap().config.model.vocab_size;
    assert!(!test.prepare().skipped);
    let tokenizer = prepared::tokenizer(&test.run).unwrap();
    assert_eq!(tokenizer.to_json(), std::fs::read(model().join("tokenizer.json")).unwrap());
    assert_eq!(tokenizer.vocab_size() as usize, expected);

    // A run of an earlier version has the whole path. The same import again takes the name.
    let whole = test.run.root().join("imported/tokenizer.json").display().to_string();
    let text = std::fs::read_to_string(test.run.config()).unwrap();
    std::fs::write(test.run.config(), text.replace("imported/tokenizer.json", &whole)).unwrap();
    assert_eq!(named(&test), Path::new(&whole));
    assert!(test.prepare().skipped);
    for name in [whole.as_str(), "imported/tokenizer.json"] {
        test.import(&[&format!("prepare.tokenizer={name}")]).unwrap();
        assert_eq!(named(&test), Path::new("imported/tokenizer.json"), "{name}");
    }
}

#[test]
fn without_steps_the_seed_is_the_model_itself() {
    let test = Test::new();
    test.import(&[]).unwrap();
    // The same import again changes nothing.
    test.import(&[]).unwrap();
    test.prepare();
    // The configuration of the import asked for steps, and this one for none.
    test.train_seed(0, false);
    let seed = test.seed();
    assert_eq!((seed.steps, seed.finished(), seed.imported.as_ref()), (0, true, Some(&seed.weights)));
    let path = block_on(async {
        let config = test.saved();
        let weights = Weights::open(&test.run, &config, dipaco_pipeline::Version::Current).await.unwrap();
        tokio::task::spawn_blocking(move || weights.seed().unwrap()).await.unwrap()
    });
    assert_eq!(path.weights().unwrap().values.len(), 8272);
}

#[test]
fn contradictions_name_both_values() {
    let test = Test::new();
    let model = PretrainedModel::open(&model()).unwrap();
    let wrong = ["model.hidden_size=32", "model.kv_heads=4", "model.context=65", "model.rope_theta=1e4"];
    let message = test.config(&model, &wrong).unwrap_err();
    for (given, has) in [
        ("model.hidden_size is 32, but the model in", "has 16"),
        ("model.kv_heads is 4, but the model in", "has 2"),
        ("model.context is 65, but the model in", "has 64"),
        ("model.rope_theta is 10000.0, but the model in", "has 50000.0"),
    ] {
        let line = message.lines().find(|line| line.contains(given));
        assert!(line.is_some_and(|line| line.contains(has)), "{given}, {has}: {message}");
    }
    let same = ["model.hidden_size=16", "model.context=32", "model.vocab_size=0", "model.dtype=bf16"];
    let config = test.config(&model, &same).unwrap();
    assert_eq!((config.model.context, config.model.vocab_size), (32, 272));
}

#[test]
fn embeddings_are_untied_on_request_and_other_tokenizers_are_refused() {
    let test = Test::new();
    let imported = test.import(&["model.tie_embeddings=false"]).unwrap();
    assert_eq!(imported.parameters, 8272 + 272 * 16);

    let other = Test::new();
    let config = other.folder.path().join("tokenizer.json");
    let json = std::fs::read_to_string(model().join("tokenizer.json")).unwrap();
    std::fs::write(&config, json.replace("<|im_start|>", "<|begin|>")).unwrap();
    let error = other.import(&[&format!("prepare.tokenizer={}", config.display())]).unwrap_err();
    assert!(matches!(error, PipelineError::Pretrained(PretrainedError::Tokenizer { .. })), "{error}");
}

/// Words, digits, white space, scripts, emoji and the names of special tokens.
const HARD_TEXTS: [&str; 6] = [
    "It's 1234567 o'clock,  isn't it?\n\n\tnext   line \r\n",
    "  leading and trailing  ",
    "x²½Ⅷ٣ naïve ЁЖ 日本語\u{3000}テキスト 🎉👩‍👩‍👧 \u{a0}\u{2028}end",
    "snake_case CamelCase <|endoftext|> <|im_end|> <a href=\"b\">'ll 'LL",
    "the path of the router, and the modules of the path",
    "",
];

#[test]
fn a_gguf_file_gives_the_same_seed_and_token_ids_as_the_folder() {
    let folder = Test::new();
    folder.import(&["seed_model.steps=0"]).unwrap();
    folder.prepare();
    let config = folder.saved();
    let weights = block_on(async {
        let weights = Weights::open(&folder.run, &config, dipaco_pipeline::Version::Current).await.unwrap();
        tokio::task::spawn_blocking(move || weights.seed().unwrap().weights().unwrap()).await.unwrap()
    });
    let tokenizer = prepared::tokenizer(&folder.run).unwrap();
    let vocabulary = GgufVocabulary::from_tokenizer_json(tokenizer.to_json(), 2)
        .unwrap()
        .with_chat_template(folder.run.imported().chat_template().unwrap());
    let file = folder.folder.path().join("model.gguf");
    let mut out = std::fs::File::create(&file).unwrap();
    export_gguf(&config.model, &weights, "tiny", &vocabulary, WeightFormat::F32, &mut out).unwrap();

    let test = Test::new();
    let imported = test.import_from(&file, &["seed_model.steps=0"]).unwrap();
    assert_eq!((imported.parameters, imported.prepared), (8272, false));
    assert_eq!(test.seed().weights.hash, folder.seed().weights.hash);
    assert_eq!(test.run.imported().end_tokens().unwrap(), [2]);
    let template = |test: &Test| test.run.imported().chat_template().unwrap().unwrap();
    assert_eq!(template(&test), template(&folder));
    test.prepare();
    let found = prepared::tokenizer(&test.run).unwrap();
    assert_eq!(found.end_of_text(), tokenizer.end_of_text());
    for text in HARD_TEXTS {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(found.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(found.decode(&ids).unwrap(), text);
    }
    let exported = test.run.imported().exported(0).unwrap().unwrap();
    assert_eq!(exported.special["eos_token_id"], serde_json::json!([2, 0]), "documents end with 0");
}

#[test]
fn an_export_is_verified_with_the_end_of_text_of_the_run() {
    let folder = copied_model();
    let tokenizer = folder.path().join("tokenizer.json");
    let json = std::fs::read_to_string(&tokenizer).unwrap();
    std::fs::write(&tokenizer, json.replace("<|endoftext|>", "<|stop|>")).unwrap();
    std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
    let test = Test::new();
    test.import_from(folder.path(), &["seed_model.steps=0", "prepare.end_of_text=<|stop|>"]).unwrap();
    test.prepare();
    let (run, config, out) = (test.run.clone(), test.saved(), test.folder.path().join("out"));
    let difference = block_on(async {
        let weights = Weights::open(&run, &config, dipaco_pipeline::Version::Current).await.unwrap();
        let verified = tokio::task::spawn_blocking(move || {
            let exported = Exported::compose(&weights, None).unwrap();
            exported.write_checkpoint(&run, &config, &out).unwrap();
            exported.verify(&config, &out, WeightFormat::F32).unwrap()
        });
        verified.await.unwrap()
    });
    assert!(difference.is_rounding(), "{difference}");
}

/// A copy of the model with other weights, without a chat template and settings of its own.
fn other_model() -> tempfile::TempDir {
    let folder = copied_model();
    for file in ["chat_template.jinja", "generation_config.json", "tokenizer_config.json"] {
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    let weights = folder.path().join("model-00002-of-00002.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    // The lowest bit of the last number.
    let place = bytes.len() - 2;
    bytes[place] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    folder
}

#[test]
fn a_model_that_replaces_another_one_leaves_none_of_its_files() {
    let (test, other) = (Test::new(), other_model());
    test.import(&[]).unwrap();
    let refused = test.import_from(other.path(), &[]).unwrap_err().to_string();
    assert!(refused.contains("--restart"), "{refused}");
    assert!(test.run.imported().chat_template().unwrap().is_some(), "a refused import changes nothing");
    assert!(test.import_or_replace(other.path(), &[], true).unwrap().new);
    let imported = test.run.imported();
    assert_eq!(imported.chat_template().unwrap(), None);
    assert!(imported.generation_settings().unwrap().is_empty());
    let mut names: Vec<_> = std::fs::read_dir(imported.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["config.json", "tokenizer.json"]);
}

#[test]
fn an_import_that_was_broken_off_is_repeated_before_anything_else() {
    let (test, other) = (Test::new(), other_model());
    test.import(&[]).unwrap();
    // A folder in the place of a file breaks the import off when the seed is replaced already.
    let template = test.run.imported().root().join("chat_template.jinja");
    std::fs::remove_file(&template).unwrap();
    std::fs::create_dir(&template).unwrap();
    test.import_or_replace(other.path(), &[], true).unwrap_err();
    let (how, progress) = (SeedHow::default(), Progress::hidden());
    let config = RunConfig::default();
    let seeded = block_on(seed(&test.run, &config, how, &progress, Arc::default(), || Ok(())));
    for refused in [test.try_to_prepare().unwrap_err(), seeded.unwrap_err()] {
        let text = refused.to_string();
        assert!(text.contains("an import was broken off") && text.contains("seed --import"), "{text}");
    }
    std::fs::remove_dir(&template).unwrap();
    test.import_or_replace(other.path(), &[], true).unwrap();
    test.prepare();
}

#[test]
fn an_exported_folder_writes_no_token_before_a_text() {
    let folder = copied_model();
    let file = |name: &str| folder.path().join(name);
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file("tokenizer.json")).unwrap()).unwrap();
    let begin = serde_json::json!({"SpecialToken": {"id": "<|im_start|>", "type_id": 0}});
    let text = |id: &str| serde_json::json!({"Sequence": {"id": id, "type_id": 0}});
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": [begin, text("A")], "pair": [begin, text("A"), text("B")],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    });
    std::fs::write(file("tokenizer.json"), json.to_string()).unwrap();
    std::fs::write(file("tokenizer_config.json"), r#"{"add_bos_token": true, "bos_token": "<|im_start|>"}"#)
        .unwrap();
    let read = |folder: &Path| Tokenizer::from_file(&folder.join("tokenizer.json"), None).unwrap();
    assert_eq!(read(folder.path()).first_token().as_deref(), Some("<|im_start|>"));

    let test = Test::new();
    test.import_from(folder.path(), &["seed_model.steps=0"]).unwrap();
    test.prepare();
    let (run, config, out) = (test.run.clone(), test.saved(), test.folder.path().join("out"));
    block_on(async {
        let weights = Weights::open(&run, &config, dipaco_pipeline::Version::Current).await.unwrap();
        let (run, out) = (run.clone(), out.clone());
        let written = tokio::task::spawn_blocking(move || {
            Exported::compose(&weights, None).unwrap().write_checkpoint(&run, &config, &out).unwrap();
        });
        written.await.unwrap();
    });
    let exported = read(&out);
    assert_eq!(exported.first_token(), None);
    assert_eq!(exported.encode(HARD_TEXTS[0]).unwrap(), read(folder.path()).encode(HARD_TEXTS[0]).unwrap());
    let settings: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("tokenizer_config.json")).unwrap()).unwrap();
    assert_eq!(settings, serde_json::json!({"add_bos_token": false, "bos_token": "<|im_start|>"}));
}

#[test]
fn devices_and_pipes_in_place_of_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = |file: &str| folder.path().join(file);
    let refused = |error: PipelineError, file: &Path| {
        let reason = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(reason, "it is no regular file", "{error}");
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    };
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(model().join(file), place(file)).unwrap();
    }
    let weights = place("model.safetensors");
    std::os::unix::fs::symlink("/dev/zero", &weights).unwrap();
    refused(PretrainedModel::open(folder.path()).unwrap().read(None).unwrap_err(), &weights);
    refused(PretrainedModel::open(&weights).unwrap_err(), &weights);
    // A pipe that nobody writes to.
    let pipe = place("generation_config.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(PretrainedModel::open(folder.path()).unwrap_err(), &pipe);
}

/// Makes a file of this length, which takes no space on the disk.
fn lengthen(file: &Path, length: u64) {
    std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap().set_len(length).unwrap();
}

/// A copy of the model that may be damaged.
fn copied_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

#[test]
fn a_file_that_is_longer_than_a_model_can_have_is_refused_by_name() {
    for (name, largest) in [
        ("config.json", 1 << 20),
        ("tokenizer.json", 128 << 20),
        ("tokenizer_config.json", 16 << 20),
        ("special_tokens_map.json", 16 << 20),
        ("generation_config.json", 1 << 20),
        ("chat_template.jinja", 1 << 20),
        ("model.safetensors.index.json", 16 << 20),
    ] {
        let folder = copied_model();
        let file = folder.path().join(name);
        lengthen(&file, largest + 1);
        let refused = PretrainedModel::open(folder.path()).and_then(|model| model.read(None)).unwrap_err();
        let expected = format!("{} has more than {largest} bytes", file.display());
        assert!(refused.to_string().contains(&expected), "{refused}");
    }
    // The file of `serve.chat_template`.
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("mine.jinja");
    lengthen(&template, 1 << 42);
    let refused = dipaco_pipeline::chat_template_in(&template).unwrap_err();
    assert!(refused.to_string().contains("mine.jinja has more than 1048576 bytes"), "{refused}");
}

#[test]
fn weights_that_no_machine_can_hold_are_refused_before_they_are_read() {
    const LENGTH: u64 = 1 << 42;
    let folder = copied_model();
    let refused = |found: Result<(), PipelineError>, file: &Path| {
        let error = found.unwrap_err();
        let PipelineError::Pretrained(PretrainedError::Memory { file: named, needed, .. }) = &error else {
            panic!("{error}");
        };
        assert!(named == file && *needed >= LENGTH, "{error}");
        assert!(error.to_string().contains("name a smaller model"), "{error}");
    };
    let part = folder.path().join("model-00001-of-00002.safetensors");
    lengthen(&part, LENGTH);
    refused(PretrainedModel::open(folder.path()).unwrap().read(None).map(drop), &part);
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let one = folder.path().join("model.safetensors");
    lengthen(&one, LENGTH);
    refused(PretrainedModel::open(folder.path()).unwrap().read(None).map(drop), &one);
    let gguf = folder.path().join("model.gguf");
    std::fs::write(&gguf, "GGUF").unwrap();
    lengthen(&gguf, LENGTH);
    refused(PretrainedModel::open(&gguf).map(drop), &gguf);
    // Its first bytes say that a file is no model, whatever its length.
    let zeros = folder.path().join("zeros.gguf");
    lengthen(&zeros, LENGTH);
    let error = PretrainedModel::open(&zeros).unwrap_err().to_string();
    assert!(error.contains("zeros.gguf is not a valid GGUF file: it does not begin with GGUF"), "{error}");
}

#[test]
fn a_model_in_one_file_needs_no_index() {
    // A folder may have both. Like transformers, the program reads the one file.
    let folder = copied_model();
    let weights = || PretrainedModel::open(folder.path()).unwrap().read(None).map(|(_, weights)| weights);
    let expected = weights().unwrap();
    let file = expected.to_safetensors(None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("-of-00002") {
            std::fs::write(&path, "damaged").unwrap();
        }
    }
    assert_eq!(weights().unwrap(), expected);
}

#[test]
fn folders_without_a_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = || PretrainedModel::open(folder.path()).unwrap_err().to_string();
    let missing = PretrainedModel::open(&folder.path().join("typo")).unwrap_err().to_string();
    assert!(missing.contains("typo: name a folder in Hugging Face's format, or a GGUF file"), "{missing}");
    let other = folder.path().join("other.gguf");
    std::fs::write(&other, "no model").unwrap();
    let other = PretrainedModel::open(&other).unwrap_err().to_string();
    assert!(other.contains("other.gguf is not a valid GGUF file"), "{other}");
    let copy = |file: &str| {
        std::fs::copy(model().join(file), folder.path().join(file)).unwrap();
    };
    assert!(open().contains("has no config.json"), "{}", open());
    copy("config.json");
    assert!(open().contains("has no tokenizer.json"), "{}", open());
    copy("tokenizer.json");
    std::fs::write(folder.path().join("generation_config.json"), "[]").unwrap();
    assert!(open().contains("generation_config.json is not a JSON object"), "{}", open());
}
