#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::Cursor;

use candle_core::Device;
use candle_core::quantized::gguf_file::Content;
use dipaco_topology::Part;
use serde_json::json;

use super::*;
use crate::Dtype;
use crate::init;

/// A matrix of 3 rows of 32 numbers in three magnitudes, half of the last row zero.
fn matrix() -> Vec<f32> {
    let mut state: u64 = 1;
    let mut next = |scale: f64| {
        state = (state * 1_103_515_245 + 12_345) & 0x7fff_ffff;
        ((state as f64 / f64::from(0x7fff_ffff) - 0.5) * scale) as f32
    };
    let mut values: Vec<f32> =
        [0.1, 3.0, 0.004].iter().flat_map(|scale| [*scale; 32]).map(&mut next).collect();
    values[64..80].fill(0.0);
    values
}

fn written(
    name: &str,
    shape: &[usize],
    values: &[f32],
    format: WeightFormat,
) -> Result<(String, String), ModelError> {
    let spec = TensorSpec {
        name: name.into(),
        shape: shape.into(),
        part: Part::Block(0),
        decay: true,
        file_dtype: Dtype::F32,
    };
    let config = ModelConfig { head_dim: 4, ..ModelConfig::default() };
    let (name, tensor) = tensor(&config, &spec, values, format)?;
    let bytes = tensor.data()?;
    Ok((name, bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// The numbers come from the package `gguf` of PyPI, 0.19.0: `gguf.quants.quantize(matrix, type).tobytes().hex()`.
#[test]
fn blocks_are_those_of_llama_cpp() {
    let name = "model.layers.0.mlp.up_proj.weight";
    let bytes = |format| written(name, &[3, 32], &matrix(), format).unwrap();
    let (file_name, q8_0) = bytes(WeightFormat::Q8_0);
    assert_eq!(file_name, "blk.0.ffn_up.weight");
    assert_eq!(
        q8_0,
        "3d0e04abce0976aa35b8ff9d93e3c5dd7f094626464a55a521cfd86e05e61c4b7161cc21612e4416e3dab157eaf67f9db47a3fe84a\
         447983d044bc188779d08bf16e139bf700000000000000000000000000000000004abbd5b7c9cb698229e4303f77b75c7f"
    );
    assert_eq!(
        bytes(WeightFormat::Q4_0).1,
        "309e486d4b3731ed65bdb81e8faa6c3a1027c0b1324504f7ba4acd73f909b0fe9d1074eaa88b38c8b8d8b8b818f858a8584818d82808"
    );
    let bf16 = bytes(WeightFormat::Bf16).1;
    assert!(
        bf16.starts_with("b63a05bd9dbc623b373d06bda63ce0bc09ba1abd") && bf16.ends_with("8cbab13af53a"),
        "{bf16}"
    );
}

#[test]
fn norms_are_f32_and_the_ends_of_a_model_in_four_bits_have_eight() {
    let length = |name, shape: &[usize], values: &[f32]| {
        written(name, shape, values, WeightFormat::Q4_0).unwrap().1.len() / 2
    };
    assert_eq!(length("model.norm.weight", &[3], &[1.0, 2.0, 3.0]), 12);
    assert_eq!(length("lm_head.weight", &[3, 32], &matrix()), 3 * 34);
    assert_eq!(length("model.embed_tokens.weight", &[3, 32], &matrix()), 3 * 34);
    let error =
        written("model.layers.0.mlp.up_proj.weight", &[4, 24], &matrix(), WeightFormat::Q8_0).unwrap_err();
    assert!(error.to_string().contains("24 numbers"), "{error}");
}

#[test]
fn rows_of_queries_and_keys_are_paired_as_neighbours() {
    // Two heads of four rows with one number each. As in llama.cpp's converter: reshape(2, 2, 2).swapaxes(1, 2).
    let rows: Vec<f32> = (0..8u8).map(f32::from).collect();
    assert_eq!(neighbouring_pairs(&rows, 4, 1), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(neighbouring_pairs(&rows, 4, 2), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
}

fn tokenizer(pre_tokenizer: &serde_json::Value) -> Vec<u8> {
    json!({
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "vocab": {"a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": true}],
    })
    .to_string()
    .into_bytes()
}

#[test]
fn the_file_holds_the_model_and_its_tokenizer() {
    let config = ModelConfig {
        vocab_size: 5,
        hidden_size: 32,
        blocks: 2,
        heads: 4,
        kv_heads: Some(2),
        head_dim: 8,
        ffn_size: 64,
        ..ModelConfig::default()
    };
    let path = init(&config, 7).unwrap();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let vocabulary = GgufVocabulary::from_tokenizer_json(&tokenizer(&byte_level), 0).unwrap();
    let mut file = Cursor::new(Vec::new());
    export_gguf(&config, &path, "tiny/path-0", &vocabulary, WeightFormat::F32, &mut file).unwrap();
    file.set_position(0);
    let content = Content::read(&mut file).unwrap();
    let text = |key: &str| content.metadata[key].to_string().unwrap().clone();
    let number = |key: &str| content.metadata[key].to_u32().unwrap();
    assert_eq!((text("general.architecture"), text("tokenizer.ggml.pre")), ("llama".into(), "gpt-2".into()));
    assert_eq!(
        ["head_count", "head_count_kv", "key_length"].map(|key| number(&format!("llama.attention.{key}"))),
        [4, 2, 8]
    );
    let tokens = content.metadata["tokenizer.ggml.tokens"].to_vec().unwrap();
    let tokens: Vec<_> = tokens.iter().map(|token| token.to_string().unwrap().as_str()).collect();
    assert_eq!(tokens, ["<|endoftext|>", "a", "b", "ab", "<unused4>"]);
    let kinds = content.metadata["tokenizer.ggml.token_type"].to_vec().unwrap();
    let kinds: Vec<_> = kinds.iter().map(|kind| kind.to_i32().unwrap()).collect();
    assert_eq!(kinds, [3, 1, 1, 1, 5]);
    assert_eq!(content.metadata["tokenizer.ggml.merges"].to_vec().unwrap()[0].to_string().unwrap(), "a b");
    let names: Vec<_> = path.specs.iter().map(|spec| file_name(&spec.name).unwrap()).collect();
    assert_eq!(content.tensor_infos.len(), names.len());
    for (name, (spec, values)) in names.iter().zip(path.tensors()) {
        let found = content.tensor(&mut file, name, &Device::Cpu).unwrap();
        assert_eq!(found.shape().dims(), spec.shape);
        let found = found.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        if !(name.contains("attn_q") || name.contains("attn_k")) {
            assert_eq!(found, values, "{name}");
        }
    }
    let small = ModelConfig { vocab_size: 3, ..config };
    let error =
        export_gguf(&small, &init(&small, 7).unwrap(), "x", &vocabulary, WeightFormat::F32, &mut file);
    assert!(matches!(error, Err(ModelError::Token { token: 3, vocabulary: 3 })));
}

#[test]
fn tokenizers_that_llama_cpp_would_read_differently_are_refused() {
    let byte_level =
        |expression: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": expression});
    let sequence = |first, second| json!({"type": "Sequence", "pretokenizers": [first, second]});
    let digits = |each: bool| json!({"type": "Digits", "individual_digits": each});
    let rule = |pre_tokenizer: serde_json::Value| vocabulary::rule(&pre_tokenizer);
    assert_eq!(rule(byte_level(true)), Some("gpt-2"));
    assert_eq!(rule(sequence(digits(true), byte_level(true))), Some("smollm"));
    for other in [
        byte_level(false),
        sequence(digits(false), byte_level(true)),
        json!({"type": "Whitespace"}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}),
        json!(null),
    ] {
        assert_eq!(rule(other.clone()), None, "{other}");
    }
    let error =
        GgufVocabulary::from_tokenizer_json(&tokenizer(&json!({"type": "Whitespace"})), 0).unwrap_err();
    assert!(error.to_string().contains("pre-tokenizer"), "{error}");
    assert!(matches!(GgufVocabulary::from_tokenizer_json(b"{}", 0), Err(VocabularyError::Json(_))));
    let with_flags = |flags: [bool; 3]| {
        let mut file: serde_json::Value = serde_json::from_slice(&tokenizer(&byte_level(true))).unwrap();
        for (name, flag) in ["lstrip", "rstrip", "single_word"].into_iter().zip(flags) {
            file["added_tokens"][0][name] = json!(flag);
        }
        GgufVocabulary::from_tokenizer_json(file.to_string().as_bytes(), 0)
    };
    assert!(with_flags([false; 3]).is_ok());
    for flags in [[true, false, false], [false, true, false], [false, false, true]] {
        let error = with_flags(flags).unwrap_err().to_string();
        assert!(error.contains("added token \"<|endoftext|>\" has lstrip"), "{error}");
    }
}

/// The keys of a file with this vocabulary of 8 tokens, read back.
fn read_back(vocabulary: &GgufVocabulary) -> HashMap<String, Value> {
    let config = ModelConfig {
        vocab_size: 8,
        hidden_size: 32,
        blocks: 1,
        heads: 4,
        head_dim: 8,
        ffn_size: 32,
        ..ModelConfig::default()
    };
    let mut file = Cursor::new(Vec::new());
    export_gguf(&config, &init(&config, 7).unwrap(), "x", vocabulary, WeightFormat::F32, &mut file).unwrap();
    file.set_position(0);
    Content::read(&mut file).unwrap().metadata
}

fn with_ends() -> GgufVocabulary {
    let added = ["<|endoftext|>", "<|im_end|>", "<stop>", "<halt>", "<quit>"];
    let ids = [0, 4, 5, 6, 7];
    let token = |(id, text): (u32, &str)| json!({"id": id, "content": text, "special": true});
    let mut file: serde_json::Value = serde_json::from_slice(&tokenizer(
        &json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}),
    ))
    .unwrap();
    file["added_tokens"] = ids.into_iter().zip(added).map(token).collect();
    GgufVocabulary::from_tokenizer_json(file.to_string().as_bytes(), 0).unwrap()
}

#[test]
fn end_tokens_whose_text_llama_cpp_does_not_know_have_keys() {
    let key = |name: &str| format!("tokenizer.ggml.{name}_token_id");
    for (further, eot, eom, lost) in [
        (vec![], None, None, vec![]),
        (vec![0], None, None, vec![]),
        (vec![5, 0], Some(5), None, vec![]),
        (vec![0, 5, 6, 7], Some(5), Some(6), vec![7]),
    ] {
        let special = GgufTokens { begin: 3, end: 4, further_ends: further.clone(), padding: 0 };
        let vocabulary = with_ends().with_special_tokens(special);
        assert_eq!(vocabulary.lost_end_tokens(), lost, "{further:?}");
        let keys = read_back(&vocabulary);
        let found = ["bos", "eos", "padding", "eot", "eom"]
            .map(|name| keys.get(&key(name)).map(|value| value.to_u32().unwrap()));
        assert_eq!(found, [Some(3), Some(4), Some(0), eot, eom], "{further:?}");
        let all = keys.get("tokenizer.ggml.eos_token_ids").map(|list| {
            list.to_vec().unwrap().iter().map(|id| id.to_i32().unwrap() as u32).collect::<Vec<_>>()
        });
        let expected = (!further.is_empty()).then(|| [vec![4], further.clone()].concat());
        assert_eq!(all, expected, "{further:?}");
    }
    let outside = GgufTokens { further_ends: vec![8], ..GgufTokens::of_end(4) };
    let refused = with_ends().with_special_tokens(outside).metadata(8).unwrap_err();
    assert!(matches!(refused, ModelError::Token { token: 8, vocabulary: 8 }), "{refused}");
}

#[test]
fn sampling_settings_have_the_keys_of_llama_cpp() {
    let of = |settings: serde_json::Value| with_ends().with_sampling(settings.as_object().unwrap());
    let settings = json!({
        "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": null, "repetition_penalty": 1.5, "do_sample": true,
        "eos_token_id": [4, 0],
    });
    let keys = read_back(&of(settings).unwrap());
    let fraction = |key: &str| keys[&format!("general.sampling.{key}")].to_f32().unwrap();
    assert_eq!(["temp", "top_p", "penalty_repeat"].map(fraction), [0.7, 0.8, 1.5]);
    let whole = |key: &str| keys[&format!("general.sampling.{key}")].to_i32().unwrap();
    assert_eq!(["top_k", "penalty_last_n"].map(whole), [20, -1]);
    assert_eq!(keys.keys().filter(|key| key.starts_with("general.sampling.")).count(), 5, "{keys:?}");
    for (settings, problem) in [
        (json!({"temperature": "hot"}), "temperature is \"hot\": it must be a number"),
        (json!({"top_k": 2.5}), "top_k is 2.5: it must be a whole number"),
    ] {
        let error = of(settings).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}
