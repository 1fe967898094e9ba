use dipaco_model::{GgufVocabulary, WeightFormat, export_gguf};

use super::*;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/pretrained")
}

/// Writes the fixture as a GGUF file. Weights in bf16 are half as long in the file as in memory.
fn write_gguf(file: &Path) {
    let model = PretrainedModel::open(&fixture()).unwrap();
    let vocabulary = GgufVocabulary::from_tokenizer_json(model.bytes(TOKENIZER), 0).unwrap();
    let (shape, weights) = (&model.settings.model, model.weights().unwrap());
    let mut out = std::fs::File::create(file).unwrap();
    export_gguf(shape, &weights, "x", &vocabulary, WeightFormat::Bf16, &mut out).unwrap();
}

#[test]
fn weights_that_become_larger_than_the_memory_are_refused() {
    let (fixture, place) = (fixture(), tempfile::tempdir().unwrap());
    let gguf = place.path().join("model.gguf");
    write_gguf(&gguf);
    let file_of = |path: &Path| std::fs::metadata(path).unwrap().len();
    let part = file_of(&fixture.join("model-00001-of-00002.safetensors"))
        .max(file_of(&fixture.join("model-00002-of-00002.safetensors")));
    for (path, file) in [(&fixture, part), (&gguf, file_of(&gguf))] {
        // The largest tensor is the embedding of 272 rows.
        let needed = (8272 + 272 * 16) * 4 + file;
        let within =
            |memory| PretrainedModel::open_within(path, ImportMemory::new(memory)).unwrap().weights();
        assert_eq!(within(needed).unwrap().values.len(), 8272);
        let refused = within(needed - 1).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&format!("needs {needed} bytes of memory")), "{text}");
    }
}

#[test]
fn a_tokenizer_that_may_become_larger_than_the_memory_is_refused() {
    let bytes = std::fs::metadata(fixture().join("tokenizer.json")).unwrap().len();
    let needed = bytes * Tokenizer::MEMORY_OF_A_BYTE;
    let within = |memory| {
        let model = PretrainedModel::open_within(&fixture(), ImportMemory::new(memory)).unwrap();
        model.tokenizer(None)
    };
    assert!(within(needed).is_ok());
    let text = within(needed - 1).unwrap_err().to_string();
    assert!(text.contains(&format!("tokenizer.json needs {needed} bytes of memory")), "{text}");
}

#[test]
fn a_token_before_texts_is_found_in_the_settings_or_in_the_tokenizer() {
    let (fixture, folder) = (fixture(), tempfile::tempdir().unwrap());
    std::fs::copy(fixture.join("config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(fixture.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&bytes).unwrap();
    let begin = serde_json::json!({"SpecialToken": {"id": "<|im_start|>", "type_id": 0}});
    let template = [begin, serde_json::json!({"Sequence": {"id": "A", "type_id": 0}})];
    let special =
        serde_json::json!({"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}});
    let rule = serde_json::json!({
        "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": special,
    });
    for (rule, settings, first) in [
        (Value::Null, "{}", None),
        (rule.clone(), "{}", Some("<|im_start|>")),
        (rule, r#"{"add_bos_token": false, "bos_token": "<s>"}"#, None),
        (Value::Null, r#"{"add_bos_token": true, "bos_token": {"content": "<s>"}}"#, Some("<s>")),
    ] {
        tokenizer["post_processor"] = rule;
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), settings).unwrap();
        let model = PretrainedModel::open(folder.path()).unwrap();
        assert_eq!(model.first_token(&model.tokenizer(None).unwrap()).as_deref(), first, "{settings}");
    }
}

#[test]
fn the_token_that_ends_texts_is_found_in_any_file_that_names_it() {
    let (fixture, folder) = (fixture(), tempfile::tempdir().unwrap());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::copy(fixture.join("config.json"), folder.path().join("config.json")).unwrap();
    // No usual name is left. The first end token of the configuration is 2, <|im_end|>.
    let json = std::fs::read_to_string(fixture.join("tokenizer.json")).unwrap();
    write("tokenizer.json", &json.replace("<|endoftext|>", "<|stop|>"));
    let end = || PretrainedModel::open(folder.path()).unwrap().tokenizer(None).unwrap().end_of_text_text();
    assert_eq!(end(), "<|im_end|>");
    write("generation_config.json", r#"{"eos_token_id": [1, 2]}"#);
    assert_eq!(end(), "<|im_start|>");
    write("special_tokens_map.json", r#"{"eos_token": {"content": "<|stop|>"}}"#);
    assert_eq!(end(), "<|stop|>");
    write("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#);
    assert_eq!(end(), "<|im_end|>");
}

#[test]
fn a_token_before_texts_is_found_in_a_gguf_file() {
    let place = tempfile::tempdir().unwrap();
    let gguf = place.path().join("model.gguf");
    write_gguf(&gguf);
    let first = || {
        let model = PretrainedModel::open(&gguf).unwrap();
        model.first_token(&model.tokenizer(None).unwrap())
    };
    assert_eq!(first(), None);
    let mut bytes = std::fs::read(&gguf).unwrap();
    let key = b"tokenizer.ggml.add_bos_token";
    let value = bytes.windows(key.len()).position(|found| found == key).unwrap() + key.len() + 4;
    // A truth value after its kind.
    bytes[value] = 1;
    std::fs::write(&gguf, bytes).unwrap();
    assert_eq!(first().as_deref(), Some("<|endoftext|>"));
}
