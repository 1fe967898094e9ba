//! Damaged and hostile tokenizers.

use std::fs::File;
use std::panic::resume_unwind;
use std::process::Command;

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::rand::seq::IndexedRandom;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use serde_json::{Value, json};

use super::*;

/// Has a value in the child process of a test.
const CHILD: &str = "DIPACO_TEST_TOKENIZER";

/// The content of a `tokenizer.json` with a model and, by name, other parts. Its end-of-text token is `</s>`.
fn file(model: &Value, parts: &[(&str, Value)]) -> Value {
    let mut file = json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        }],
        "model": model,
    });
    for (name, part) in parts {
        file[name] = part.clone();
    }
    file
}

fn bpe(vocabulary: &Value, merges: &Value) -> Value {
    json!({"type": "BPE", "vocab": vocabulary, "merges": merges})
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn read(file: &Value) -> Result<Tokenizer, ShardsError> {
    Tokenizer::from_bytes(file.to_string().as_bytes(), None, "x/tokenizer.json")
}

/// The message of an error with its causes.
fn chain(error: &ShardsError) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    message
}

#[test]
fn merges_that_the_library_reads_out_of_bounds_are_refused() {
    let longer = bpe(&json!({"aaaa": 0, "b": 1}), &json!(["aaaa b"]));
    let mut shorter = bpe(&json!({"a": 0, "b": 1, "ab": 2}), &json!([["a", "b"]]));
    shorter["continuing_subword_prefix"] = json!("####");
    for model in [longer, shorter] {
        let error = read(&file(&model, &[])).unwrap_err();
        let message = chain(&error);
        assert!(message.starts_with("tokenizer x/tokenizer.json: cannot read it"), "{message}");
        assert!(message.contains("the tokenizers library broke off: "), "{message}");
    }
}

#[test]
fn ids_far_above_the_number_of_tokens_are_refused() {
    for decoder in [byte_level(), json!({"type": "Fuse"})] {
        for id in [u32::MAX, u32::MAX - 1, 1 << 24, 1 << 20] {
            let model = bpe(&json!({"a": 0, "b": id}), &json!([]));
            let message = read(&file(&model, &[("decoder", decoder.clone())])).unwrap_err().to_string();
            assert!(message.contains(&format!("has the id {id}, but only 3 tokens")), "{message}");
        }
        let model = bpe(&json!({"a": 0, "b": (1 << 20) - 1}), &json!([]));
        let tokenizer = read(&file(&model, &[("decoder", decoder)])).unwrap();
        assert_eq!(tokenizer.vocab_size(), 1 << 20, "rows without a token");
    }
}

#[test]
fn an_added_token_that_is_longer_than_any_real_one_is_refused() {
    let with = |bytes: usize| {
        let mut file = file(&bpe(&json!({"a": 0}), &json!([])), &[]);
        let mut token = file["added_tokens"][0].clone();
        (token["id"], token["content"]) = (json!(2), json!("a".repeat(bytes)));
        file["added_tokens"].as_array_mut().unwrap().push(token);
        read(&file)
    };
    assert!(with(1024).is_ok());
    let message = with(1025).unwrap_err().to_string();
    assert!(message.contains("of 1025 bytes: the limit is 1024"), "{message}");
}

#[test]
fn patterns_and_decoders_that_make_the_library_panic_are_errors() {
    let model = bpe(&json!({"a": 0}), &json!([]));
    let strip = json!({"type": "Strip", "content": "a", "start": 0, "stop": 2});
    let tokenizer = read(&file(&model, &[("decoder", strip)])).unwrap();
    let ids = tokenizer.encode("a").unwrap();
    let error = tokenizer.decode(&ids).unwrap_err();
    assert!(chain(&error).contains("cannot decode token ids: the tokenizers library broke off: "), "{error}");
    assert!(tokenizer.token_bytes(0).is_err() && tokenizer.incremental_decoder().push(0).is_err());

    // It tries all ways to divide the letters.
    let endless = json!({"Regex": "^(?:a|aa)+$"});
    let split = json!({"type": "Split", "pattern": endless, "behavior": "Isolated", "invert": false});
    let tokenizer = read(&file(&model, &[("pre_tokenizer", split)])).unwrap();
    let text = "a".repeat(60) + "b";
    for error in [tokenizer.encode(&text), tokenizer.template_encoder().encode(&text)].map(Result::unwrap_err)
    {
        assert!(chain(&error).contains("the tokenizers library broke off: Onig"), "{}", chain(&error));
    }
    assert_eq!(tokenizer.encode("aa").unwrap(), [0, 0], "a text that it can divide");
}

/// Not by itself: a child process whose output another test reads.
#[test]
fn child_with_a_hostile_tokenizer() {
    if std::env::var(CHILD).is_ok() {
        read(&file(&bpe(&json!({"aaaa": 0, "b": 1}), &json!(["aaaa b"])), &[])).unwrap_err();
        panic!("an own panic is printed");
    }
}

#[test]
fn a_panic_of_the_library_prints_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "tokenizer::tests::damaged::child_with_a_hostile_tokenizer";
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("an own panic is printed"), "{printed}");
    assert_eq!(printed.matches("panicked").count(), 1, "{printed}");
}

#[test]
fn a_device_in_place_of_a_file_is_refused() {
    let error = Tokenizer::from_file(Path::new("/dev/zero"), None).unwrap_err();
    assert!(chain(&error).ends_with("it is no regular file"), "{}", chain(&error));
}

#[test]
fn a_file_that_is_longer_than_any_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    // Sparse: it takes no space on the disk, and all memory of the machine when it is read.
    File::create(&path).unwrap().set_len(1 << 42).unwrap();
    let error = Tokenizer::from_file(&path, None).unwrap_err();
    assert!(matches!(error, ShardsError::TooLarge { largest: Tokenizer::LARGEST_FILE, .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("{} has more than 134217728 bytes", path.display())), "{text}");
}

/// A tokenizer of any kind.
fn valid(rng: &mut CaseRng) -> Vec<u8> {
    if rng.random_bool(0.2) {
        return shared().to_json().to_vec();
    }
    let vocabulary =
        json!({"<unk>": 0, "a": 1, "b": 2, "▁": 3, "ab": 4, "##b": 5, "abab": 6, "Ġ": 7, "<0x61>": 8});
    let models = [
        bpe(&vocabulary, &json!(["a b", "ab ab"])),
        json!({
            "type": "BPE", "vocab": vocabulary, "merges": [["a", "##b"], ["ab", "ab"]], "unk_token": "<unk>",
            "continuing_subword_prefix": "##", "byte_fallback": true, "ignore_merges": true,
        }),
        json!({
            "type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["ab", -1.5], ["▁", -3.0], ["▁a", -2.5]],
        }),
        json!({
            "type": "WordPiece", "vocab": vocabulary, "unk_token": "<unk>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }),
        json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}),
    ];
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizers = [
        Value::Null,
        json!({"type": "NFKC"}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}),
        json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
    ];
    let splits =
        json!({"type": "Split", "pattern": {"Regex": "\\w+|\\s+"}, "behavior": "Isolated", "invert": false});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let pre_tokenizers = [
        Value::Null,
        byte_level(),
        metaspace.clone(),
        json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, splits]}),
        json!({"type": "BertPreTokenizer"}),
    ];
    let decoders = [
        Value::Null,
        byte_level(),
        metaspace,
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]}),
    ];
    let template =
        json!([{"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let post_processors = [
        Value::Null,
        json!({
            "type": "TemplateProcessing", "single": template, "pair": template,
            "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}},
        }),
    ];
    let mut of = |parts: &[Value]| parts.choose(rng).unwrap().clone();
    let model = of(&models);
    let parts = [
        ("normalizer", of(&normalizers)),
        ("pre_tokenizer", of(&pre_tokenizers)),
        ("post_processor", of(&post_processors)),
        ("decoder", of(&decoders)),
    ];
    file(&model, &parts).to_string().into_bytes()
}

/// Damage that chance seldom does, to a file that is JSON still.
const WORSE: [fn(&mut Value); 5] = [
    |file| {
        let Some(vocabulary) = file.pointer_mut("/model/vocab").and_then(Value::as_object_mut) else {
            return;
        };
        let longest = vocabulary.keys().max_by_key(|token| token.len()).cloned();
        longest.and_then(|token| vocabulary.remove(&token));
    },
    |file| {
        let ids = file.pointer_mut("/model/vocab").and_then(Value::as_object_mut);
        ids.and_then(|ids| ids.values_mut().next()).into_iter().for_each(|id| *id = json!(u32::MAX));
    },
    |file| {
        let merges = file.pointer_mut("/model/merges").and_then(Value::as_array_mut);
        merges.into_iter().for_each(|merges| merges.reverse());
    },
    |file| {
        file["normalizer"] = json!({"type": "Replace", "pattern": {"String": "s"}, "content": ""});
        file.pointer_mut("/added_tokens/0/normalized")
            .into_iter()
            .for_each(|normalized| *normalized = json!(true));
    },
    |file| file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP///w8="}),
];

/// Encodes and decodes with a tokenizer.
fn both_ways(tokenizer: &Tokenizer) -> Result<(), ShardsError> {
    let mut ids = vec![tokenizer.end_of_text(), tokenizer.vocab_size()];
    let long = "a".repeat(60) + "b";
    for text in ["ab abab  a", "", "</s> <unk> Naïve 12\n\t日本語 🎉", &long] {
        ids.extend(tokenizer.encode(text)?);
        ids.extend(tokenizer.template_encoder().encode(text)?);
    }
    tokenizer.decode(&ids)?;
    let mut decoder = tokenizer.incremental_decoder();
    for &id in tokenizer.decoder_context(&ids).iter().chain(&ids) {
        tokenizer.token_bytes(id)?;
        decoder.push(id)?;
    }
    decoder.flush()?;
    Ok(())
}

fn reached(bytes: &[u8]) -> Reached {
    match Tokenizer::from_bytes(bytes, None, "x/tokenizer.json") {
        Err(ShardsError::TokenizerLibrary { .. }) => Reached::Outside,
        Err(_) => Reached::Inside,
        Ok(tokenizer) => both_ways(&tokenizer).map_or(Reached::Inside, |()| Reached::Accepted),
    }
}

#[test]
fn damaged_tokenizers_are_refused_or_read() {
    let read = |bytes: &[u8]| {
        if let Ok(file @ Value::Object(_)) = serde_json::from_slice(bytes) {
            for damage in WORSE {
                let mut worse = file.clone();
                damage(&mut worse);
                reached(worse.to_string().as_bytes());
            }
        }
        reached(bytes)
    };
    let read_apart = |bytes: &[u8]| {
        let measured = || {
            let mut found = Reached::Outside;
            let memory = allocation_counter::measure(|| found = read(bytes));
            assert!(memory.bytes_max <= 64 << 20, "{} bytes of memory", memory.bytes_max);
            found
        };
        // The library keeps words of every tokenizer until the thread that encoded them ends.
        std::thread::scope(|scope| scope.spawn(measured).join()).unwrap_or_else(|panic| resume_unwind(panic))
    };
    // The library refuses most other values in a part.
    Campaign::new("tokenizer").past(0.12).play(valid, read_apart);
}
