//! Import of GGUF files: of this program's own, of every number type, with parts that are not supported, and damaged.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use std::collections::BTreeMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::*;
use serde_json::json;

/// A tiny shape. Rows have 32 numbers, which is a block of most number types.
fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 9,
        hidden_size: 32,
        blocks: 2,
        heads: 4,
        kv_heads: Some(2),
        head_dim: 8,
        ffn_size: 64,
        context: 128,
        rope_theta: 50_000.0,
        rms_norm_eps: 1e-5,
        tie_embeddings: true,
        ..ModelConfig::default()
    }
}

fn tokenizer(pre_tokenizer: &serde_json::Value, ignore_merges: bool) -> Vec<u8> {
    let added =
        |id: u32, content: &str, special: bool| json!({"id": id, "content": content, "special": special});
    let file = json!({
        "added_tokens": [
            added(0, "<|endoftext|>", true), added(1, "<|im_end|>", true), added(5, "<tool>", false),
        ],
        "pre_tokenizer": pre_tokenizer,
        "normalizer": null,
        "model": {
            "type": "BPE",
            "ignore_merges": ignore_merges,
            "vocab": {"<|endoftext|>": 0, "<|im_end|>": 1, "a": 2, "b": 3, "ab": 4, "<tool>": 5, "\u{120}": 6},
            "merges": ["a b"],
        },
    });
    serde_json::to_vec(&file).unwrap()
}

fn byte_level() -> serde_json::Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn export(config: &ModelConfig, format: WeightFormat) -> Vec<u8> {
    let vocabulary = GgufVocabulary::from_tokenizer_json(&tokenizer(&byte_level(), false), 1)
        .unwrap()
        .with_chat_template(Some("{{ messages }}".to_owned()));
    let mut file = Cursor::new(Vec::new());
    export_gguf(config, &init(config, 7).unwrap(), "tiny", &vocabulary, format, &mut file).unwrap();
    file.into_inner()
}

type Keys = BTreeMap<String, Value>;
type Tensors = BTreeMap<String, QTensor>;

/// A file with other keys and tensors.
fn edited(bytes: &[u8], edit: impl FnOnce(&mut Keys, &mut Tensors)) -> Vec<u8> {
    let mut file = Cursor::new(bytes);
    let content = Content::read(&mut file).unwrap();
    let tensor =
        |name: &String| (name.clone(), content.tensor(&mut file.clone(), name, &Device::Cpu).unwrap());
    let mut tensors: Tensors = content.tensor_infos.keys().map(tensor).collect();
    let mut keys: Keys = content.metadata.into_iter().collect();
    edit(&mut keys, &mut tensors);
    let keys: Vec<(&str, &Value)> = keys.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut out = Cursor::new(Vec::new());
    gguf_file::write(&mut out, &keys, &tensors).unwrap();
    out.into_inner()
}

struct Imported {
    settings: PretrainedSettings,
    files: BTreeMap<&'static str, Vec<u8>>,
    weights: ModuleWeights,
}

fn import(bytes: &[u8]) -> Result<Imported, ImportError> {
    let model = GgufModel::parse(bytes, "model.gguf")?;
    let files: BTreeMap<_, _> = model.files()?.into_iter().collect();
    let settings = PretrainedSettings::parse(&files["config.json"], "config.json")?;
    let weights = model.weights(&settings)?;
    Ok(Imported { settings, files, weights })
}

fn refusal(edit: impl FnOnce(&mut Keys, &mut Tensors)) -> String {
    match import(&edited(&export(&config(), WeightFormat::F32), edit)) {
        Ok(_) => "nothing".to_owned(),
        Err(ImportError::Model(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_was_exported_is_imported_bit_for_bit() {
    for tie_embeddings in [true, false] {
        let config = ModelConfig { tie_embeddings, ..config() };
        let found = import(&export(&config, WeightFormat::F32)).unwrap();
        assert_eq!(found.settings.model, config);
        assert_eq!(found.settings.end_tokens, [1]);
        let weights = init(&config, 7).unwrap();
        assert_eq!(found.weights.specs, weights.specs);
        assert_eq!(found.weights.values, weights.values);
    }
}

#[test]
fn the_tokenizer_and_the_template_come_along() {
    let found = import(&export(&config(), WeightFormat::F32)).unwrap();
    let json = |file: &str| -> serde_json::Value { serde_json::from_slice(&found.files[file]).unwrap() };
    let (tokenizer, names) = (json("tokenizer.json"), json("tokenizer_config.json"));
    let vocabulary =
        json!({"<|endoftext|>": 0, "<|im_end|>": 1, "a": 2, "b": 3, "ab": 4, "<tool>": 5, "\u{120}": 6});
    assert_eq!(tokenizer["model"]["vocab"], vocabulary, "rows without a token have no entry");
    assert_eq!(tokenizer["model"]["merges"], json!(["a b"]));
    assert_eq!(tokenizer["model"]["ignore_merges"], json!(false));
    assert_eq!(tokenizer["pre_tokenizer"], byte_level());
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let added: Vec<_> =
        added.iter().map(|token| (&token["id"], &token["content"], &token["special"])).collect();
    let expected = [(0, "<|endoftext|>", true), (1, "<|im_end|>", true), (5, "<tool>", false)]
        .map(|(id, content, special)| (json!(id), json!(content), json!(special)));
    assert_eq!(
        added,
        expected.iter().map(|(id, content, special)| (id, content, special)).collect::<Vec<_>>()
    );
    assert_eq!((&names["eos_token"], &names["bos_token"]), (&json!("<|im_end|>"), &json!("<|im_end|>")));
    assert_eq!(found.files["chat_template.jinja"], b"{{ messages }}");

    let several = edited(&export(&config(), WeightFormat::F32), |keys, _| {
        keys.insert("tokenizer.ggml.eot_token_id".into(), Value::U32(0));
    });
    assert_eq!(import(&several).unwrap().settings.end_tokens, [1, 0]);
}

#[test]
fn all_end_tokens_and_the_sampling_settings_come_along() {
    let exported = |special: GgufTokens, settings: &serde_json::Value| {
        let vocabulary = GgufVocabulary::from_tokenizer_json(&tokenizer(&byte_level(), false), 1).unwrap();
        let vocabulary = vocabulary.with_special_tokens(special).with_sampling(settings.as_object().unwrap());
        let (mut file, weights) = (Cursor::new(Vec::new()), init(&config(), 7).unwrap());
        export_gguf(&config(), &weights, "tiny", &vocabulary.unwrap(), WeightFormat::F32, &mut file).unwrap();
        import(&file.into_inner()).unwrap()
    };
    let settings =
        json!({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.1});
    let special = GgufTokens { begin: 2, end: 1, further_ends: vec![0, 5, 6, 4], padding: 3 };
    let found = exported(special, &settings);
    assert_eq!(found.settings.end_tokens, [1, 5, 6, 0, 4], "four keys name five end tokens");
    let mut expected = settings;
    for (key, ids) in
        [("bos_token_id", json!(2)), ("eos_token_id", json!([1, 5, 6, 0, 4])), ("pad_token_id", json!(3))]
    {
        expected[key] = ids;
    }
    expected["do_sample"] = json!(true);
    let generation: serde_json::Value =
        serde_json::from_slice(&found.files["generation_config.json"]).unwrap();
    assert_eq!(generation, expected);

    let plain = exported(GgufTokens::of_end(1), &json!({"eos_token_id": 1}));
    assert_eq!(plain.settings.end_tokens, [1]);
    assert!(!plain.files.contains_key("generation_config.json"));
    let generation = |sampling: &[(&str, Value)]| -> serde_json::Value {
        let file = edited(&export(&config(), WeightFormat::F32), |keys, _| {
            keys.extend(
                sampling.iter().map(|(key, value)| (format!("general.sampling.{key}"), value.clone())),
            );
        });
        serde_json::from_slice(&import(&file).unwrap().files["generation_config.json"]).unwrap()
    };
    let all_tokens = generation(&[("top_k", Value::I32(-1)), ("temp", Value::U32(1))]);
    assert_eq!((&all_tokens["top_k"], &all_tokens["temperature"]), (&json!(0), &json!(1.0)));
    assert_eq!(all_tokens["do_sample"], true);
    for likeliest in [("temp", Value::F32(0.0)), ("penalty_repeat", Value::F32(1.5))] {
        assert_eq!(generation(&[likeliest]).get("do_sample"), None);
    }
}

#[test]
fn numbers_of_a_header_take_no_memory() {
    let exported = export(&config(), WeightFormat::F32);
    let many = |key: &'static str, value: Value| {
        let file = edited(&exported, |keys, _| {
            keys.insert(key.into(), Value::Array(vec![value; 1 << 20]));
        });
        let mut refused = String::new();
        let memory = allocation_counter::measure(|| refused = import(&file).err().unwrap().to_string());
        assert!(memory.bytes_max < 1 << 20, "{key}: {} bytes", memory.bytes_max);
        refused
    };
    // In memory a number of the second list is eight times as long as in the file.
    for (key, value, named) in [
        (
            "tokenizer.ggml.tokens",
            Value::String(String::new()),
            "has 1048576 tokens, but the embedding has 9 rows",
        ),
        ("tokenizer.ggml.token_type", Value::U8(1), "is no list of 9 numbers"),
        ("tokenizer.ggml.eos_token_ids", Value::U8(1), "is no list of at most 256 token ids below 9"),
        ("general.alignment", Value::U8(1), "general.alignment is wrong: it must be a power of two"),
    ] {
        let refused = many(key, value);
        assert!(refused.contains(named), "{key}: {refused}");
    }
    for (place, what) in [(8, "tensors"), (16, "keys")] {
        let mut file = exported.clone();
        file[place..place + 8].copy_from_slice(&65_537u64.to_le_bytes());
        let refused = import(&file).err().unwrap().to_string();
        assert!(refused.contains(&format!("it has 65537 {what}: no model has more than 65536")), "{refused}");
    }
    let mut long = vec![0; 70 << 20];
    let number = |number: u64| number.to_le_bytes().to_vec();
    let head = [
        b"GGUF\x03\0\0\0".to_vec(),
        number(0),
        number(1),
        number(1),
        b"a\x08\0\0\0".to_vec(),
        number(65 << 20),
    ];
    let head = head.concat();
    long[..head.len()].copy_from_slice(&head);
    let refused = import(&long).err().unwrap().to_string();
    assert!(refused.contains("the header of a model ends before byte 67108864"), "{refused}");
}

#[test]
fn rules_for_words_are_those_that_are_exported() {
    for rule in ["gpt-2", "smollm", "llama-bpe", "default"] {
        let file = edited(&export(&config(), WeightFormat::F32), |keys, _| {
            keys.insert("tokenizer.ggml.pre".into(), Value::String(rule.into()));
        });
        let json = import(&file).unwrap().files.remove("tokenizer.json").unwrap();
        let vocabulary = GgufVocabulary::from_tokenizer_json(&json, 1).unwrap();
        let mut again = Cursor::new(Vec::new());
        let weights = init(&config(), 7).unwrap();
        export_gguf(&config(), &weights, "x", &vocabulary, WeightFormat::F32, &mut again).unwrap();
        again.set_position(0);
        let keys = Content::read(&mut again).unwrap().metadata;
        assert_eq!(keys["tokenizer.ggml.pre"].to_string().unwrap(), rule);
    }
}

#[test]
fn a_begin_token_before_each_text_is_found_as_llama_cpp_does() {
    let adds = |rule: &str, key: Option<Value>| {
        let file = edited(&export(&config(), WeightFormat::F32), |keys, _| {
            keys.insert("tokenizer.ggml.pre".into(), Value::String(rule.into()));
            keys.remove("tokenizer.ggml.add_bos_token");
            keys.extend(key.map(|key| ("tokenizer.ggml.add_bos_token".to_owned(), key)));
        });
        GgufModel::parse(&file, "model.gguf").unwrap().adds_begin_token().map_err(|error| error.to_string())
    };
    for (rule, key, expected) in [
        ("smollm", Some(true), true),
        ("smollm", None, false),
        ("llama-bpe", None, true),
        ("llama-bpe", Some(false), false),
    ] {
        assert_eq!(adds(rule, key.map(Value::Bool)), Ok(expected), "{rule} {key:?}");
    }
    let wrong = adds("smollm", Some(Value::U32(1))).unwrap_err();
    assert!(wrong.contains("tokenizer.ggml.add_bos_token is not true or false"), "{wrong}");
}

#[test]
fn every_number_type_is_dequantised() {
    // Blocks of K types have 256 numbers.
    let config = ModelConfig { hidden_size: 256, head_dim: 64, ffn_size: 256, blocks: 1, ..config() };
    let exported = export(&config, WeightFormat::F32);
    let exact = import(&exported).unwrap().weights;
    for dtype in [
        GgmlDType::F16,
        GgmlDType::BF16,
        GgmlDType::Q8_0,
        GgmlDType::Q4_0,
        GgmlDType::Q4_1,
        GgmlDType::Q5_0,
        GgmlDType::Q5_1,
        GgmlDType::Q2K,
        GgmlDType::Q3K,
        GgmlDType::Q4K,
        GgmlDType::Q5K,
        GgmlDType::Q6K,
    ] {
        let mut expected = BTreeMap::new();
        let file = edited(&exported, |_, tensors| {
            for (name, tensor) in tensors.iter_mut().filter(|(_, tensor)| tensor.rank() == 2) {
                *tensor = QTensor::quantize(&tensor.dequantize(&Device::Cpu).unwrap(), dtype).unwrap();
                let values = tensor.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
                expected.insert(name.clone(), values.to_vec1::<f32>().unwrap());
            }
        });
        let found = import(&file).unwrap().weights;
        let of = |name: &str, weights: &ModuleWeights| {
            weights.tensors().find(|(spec, _)| spec.name == name).unwrap().1.to_vec()
        };
        for (name, own) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ] {
            assert_eq!(of(own, &found), expected[name], "{dtype:?} {name}");
        }
        // The rows of a query are in another order, and near the exact ones.
        let name = "model.layers.0.self_attn.q_proj.weight";
        let (found, exact) = (of(name, &found), of(name, &exact));
        let error: f32 = found.iter().zip(&exact).map(|(found, exact)| (found - exact).powi(2)).sum();
        let power: f32 = exact.iter().map(|exact| exact.powi(2)).sum();
        let bound = if dtype == GgmlDType::Q2K { 0.15 } else { 0.05 };
        assert!(error < bound * power, "{dtype:?}: {error} of {power}");
    }
}

#[test]
fn parts_that_a_path_does_not_have_are_refused_by_name() {
    let set = |key: &'static str, value: Value| {
        refusal(move |keys, _| {
            keys.insert(key.to_owned(), value);
        })
    };
    let text = |text: &str| Value::String(text.to_owned());
    for (key, value, named) in [
        ("general.architecture", text("qwen2"), "the architecture \"qwen2\" is not supported"),
        ("llama.rope.scaling.type", text("yarn"), "llama.rope.scaling.type = \"yarn\" is not supported"),
        ("llama.rope.scaling.factor", Value::F32(8.0), "llama.rope.scaling.factor = 8 is not supported"),
        ("llama.rope.scaling.attn_factor", Value::F32(0.5), "scaling.attn_factor = 0.5 is not supported"),
        ("llama.rope.scaling.yarn_attn_factor", Value::F32(0.5), "yarn_attn_factor is not supported"),
        ("llama.expert_count", Value::U32(8), "llama.expert_count = 8 is not supported"),
        ("split.count", Value::U16(2), "split.count = 2 is not supported"),
        ("llama.rope.dimension_count", Value::U32(4), "llama.rope.dimension_count = 4 is not supported"),
        ("llama.attention.value_length", Value::U32(16), "value_length = 16 is not supported"),
        ("tokenizer.ggml.model", text("llama"), "tokenizer.ggml.model = \"llama\" is not supported"),
        ("tokenizer.ggml.pre", text("qwen2"), "tokenizer.ggml.pre = \"qwen2\" is not supported"),
        ("llama.block_count", text("two"), "llama.block_count is not a whole number"),
        ("llama.block_count", Value::U64(1 << 40), "model.blocks: is 1099511627776"),
        ("llama.block_count", Value::U64(1 << 15), "num_hidden_layers is 32768, which makes at least"),
        ("llama.embedding_length", Value::I32(-1), "llama.embedding_length is not a whole number"),
        ("llama.embedding_length", Value::U32(64), "the settings demand"),
        ("llama.attention.head_count", Value::U32(0), "model.heads: is 0"),
        ("tokenizer.ggml.eos_token_id", Value::U32(9), "is 9, but the embedding has 9 rows"),
        ("tokenizer.ggml.eos_token_ids", Value::Array(vec![Value::U32(9)]), "token ids below 9"),
        ("tokenizer.ggml.eos_token_ids", Value::Array(vec![Value::I32(-1)]), "token ids below 9"),
        ("general.sampling.temp", Value::F32(f32::NAN), "general.sampling.temp is not finite"),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Value::F32(f32::NAN),
            "layer_norm_rms_epsilon is not finite",
        ),
        ("llama.rope.freq_base", Value::F64(f64::INFINITY), "llama.rope.freq_base is not finite"),
        ("general.sampling.top_p", text("most"), "general.sampling.top_p is not a number"),
        ("general.alignment", Value::U32(0), "it must be a power of two"),
        ("tokenizer.ggml.tokens", Value::Array(vec![text("a"), text("a")]), "is no list of 2 numbers"),
    ] {
        let message = set(key, value);
        assert!(message.contains(named), "{key}: {message}");
    }
    for key in ["llama.block_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"] {
        let message = refusal(|keys, _| drop(keys.remove(key)));
        assert!(message.contains(&format!("{key} is missing")), "{message}");
    }
    let tokens = |texts: [&str; 2]| Value::Array(texts.map(text).to_vec());
    let twice = refusal(|keys, _| {
        keys.insert("tokenizer.ggml.tokens".into(), tokens(["a", "a"]));
        keys.remove("tokenizer.ggml.token_type");
    });
    assert!(twice.contains("has \"a\" as token 0 and as token 1"), "{twice}");
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let tensor = |shape: &[usize], value: f32| {
        QTensor::quantize(&Tensor::full(value, shape, &Device::Cpu).unwrap(), GgmlDType::F32).unwrap()
    };
    let add = |name: &'static str, tensor| {
        refusal(move |_, tensors| {
            tensors.insert(name.to_owned(), tensor);
        })
    };
    for (name, shape, value, named) in [
        ("rope_freqs.weight", &[4][..], 1.0, "the tensor rope_freqs.weight is not supported"),
        ("blk.0.attn_q.bias", &[32], 0.0, "biases are not supported"),
        ("blk.2.attn_q.weight", &[32, 32], 0.0, "is not part of a Llama with these settings"),
        ("blk.1.attn_q.weight", &[32, 16], 0.0, "but the settings demand [32, 32]"),
        ("blk.1.attn_norm.weight", &[32], f32::NAN, "has NaN at place 0"),
    ] {
        let message = add(name, tensor(shape, value));
        assert!(message.contains(named), "{name}: {message}");
    }
    let message = refusal(|_, tensors| drop(tensors.remove("output_norm.weight")));
    assert!(message.contains("20 tensors, but the files have 19"), "{message}");
}

/// A file whose header says something else of a tensor: the number of its type, and its place in the data.
fn with_place(bytes: &[u8], tensor: &str, change: impl FnOnce(&mut u32, &mut u64)) -> Vec<u8> {
    let mut file = bytes.to_vec();
    let name = [&(tensor.len() as u64).to_le_bytes(), tensor.as_bytes()].concat();
    let at = file.windows(name.len()).position(|found| found == name).unwrap() + name.len();
    // The number of dimensions, and each of them.
    let at = at + 4 + 8 * file[at] as usize;
    let mut kind = u32::from_le_bytes(*file[at..].first_chunk().unwrap());
    let mut offset = u64::from_le_bytes(*file[at + 4..].first_chunk().unwrap());
    change(&mut kind, &mut offset);
    file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    file[at + 4..at + 12].copy_from_slice(&offset.to_le_bytes());
    file
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let file = export(&config(), WeightFormat::F32);
    let (first, second) = ("blk.0.attn_q.weight", "blk.1.attn_q.weight");
    let mut place = 0;
    with_place(&file, first, |_, offset| place = *offset);
    for (shift, begins, ends) in [(0, second, first), (32 * 32 * 4 - 1, second, first)] {
        let shared = with_place(&file, second, |_, offset| *offset = place + shift);
        let message = import(&shared).err().unwrap().to_string();
        assert!(message.contains("begins before the end of"), "{shift}: {message}");
        assert!(message.contains(begins) && message.contains(ends), "{shift}: {message}");
    }
    assert!(import(&with_place(&file, second, |_, _| ())).is_ok());
}

#[test]
fn number_types_that_are_not_read_are_refused_by_name() {
    let file = export(&config(), WeightFormat::F32);
    for (kind, named) in
        [(20, "is of type IQ4_NL: only F32"), (39, "is of type MXFP4"), (99, "unknown type 99")]
    {
        let other = with_place(&file, "blk.0.attn_q.weight", |found, _| *found = kind);
        let message = import(&other).err().unwrap().to_string();
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn files_that_end_too_early_are_refused() {
    let file = export(&config(), WeightFormat::F32);
    let error = |bytes: &[u8]| import(bytes).err().unwrap().to_string();
    assert!(error(&file[..file.len() - 64]).contains("the file ends before its last byte"));
    assert!(error(&file[..100]).contains("the file ends before"));
    assert!(error(b"").contains("is not a valid GGUF file"));
    let mut big_endian = file;
    big_endian[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert!(error(&big_endian).contains("little-endian"));
}

#[test]
fn damaged_files_are_refused_or_read() {
    let formats = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8_0, WeightFormat::Q4_0];
    let small = ModelConfig { blocks: 1, ffn_size: 32, ..config() };
    let files = formats.map(|format| {
        // The header is a larger part of the file, so more damage meets it.
        edited(&export(&small, format), |keys, _| {
            keys.insert("some.numbers".into(), Value::Array(vec![Value::U8(1); 40]));
        })
    });
    let valid = |rng: &mut CaseRng| files[rng.random_range(0..files.len())].clone();
    let reached = |bytes: &[u8]| match import(bytes) {
        Ok(_) => Reached::Accepted,
        Err(ImportError::Gguf { .. }) => Reached::Outside,
        Err(_) => Reached::Inside,
    };
    let counts = Campaign::new("import-gguf").memory(4 << 20).play(valid, reached);
    assert!(counts.inside > 200, "{counts:?}");
}
