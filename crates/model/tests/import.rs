//! Import of a model that transformers saved, and of files that nobody should trust.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use std::path::PathBuf;
use std::sync::Arc;

use dipaco_model::*;
use dipaco_topology::{Topology, TopologyConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

fn read(file: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pretrained");
    std::fs::read(folder.join(file)).unwrap()
}

fn index() -> TensorIndex {
    TensorIndex::parse(&read("model.safetensors.index.json"), "index").unwrap()
}

fn settings() -> PretrainedSettings {
    PretrainedSettings::parse(&read("config.json"), "config.json").unwrap()
}

/// The settings of a `config.json` with some keys changed; null removes a key.
fn changed(changes: Value) -> Result<PretrainedSettings, ImportError> {
    let mut config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    PretrainedSettings::parse(&serde_json::to_vec(&config).unwrap(), "config.json")
}

fn refusal(changes: Value) -> String {
    changed(changes).unwrap_err().to_string()
}

fn import(settings: &PretrainedSettings) -> Result<ModuleWeights, ImportError> {
    let index = index();
    let mut weights = PretrainedWeights::new(settings, index.tensors(), Some(index))?;
    SHARDS.iter().try_for_each(|file| weights.read(&read(file), file))?;
    weights.finish()
}

fn compose(config: &ModelConfig, weights: &ModuleWeights) -> Path {
    let topology = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks).unwrap();
    let modules = split(config, &topology, weights).unwrap();
    let modules: Vec<_> = modules.iter().map(|m| Arc::new(Module::load(m, &Device::Cpu).unwrap())).collect();
    Path::compose(config, &topology, &modules).unwrap()
}

/// Asserts that every logit that the fixture has is that of transformers.
fn assert_logits(config: &ModelConfig, weights: &ModuleWeights) {
    let expected: Value = serde_json::from_slice(&read("expected.json")).unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        expected[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let tokens: Vec<u32> = numbers("tokens").iter().map(|&token| token as u32).collect();
    let stride = expected["stride"].as_u64().unwrap() as usize;
    let path = compose(config, weights);
    let rows = TokenRows::new(&*tokens, 1, config.vocab_size).unwrap();
    let positions: Vec<usize> = (0..tokens.len()).collect();
    let logits = path.position_logits(&rows, &positions).unwrap();
    let found = logits.chunks(config.vocab_size).flat_map(|row| row.iter().step_by(stride));
    let (found, expected) = (found.collect::<Vec<_>>(), numbers("logits"));
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
    assert!(largest > 1.0, "logits near 0 would hide errors: {largest}");
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} is not {expected}");
    }
}

#[test]
fn a_sharded_bf16_model_has_the_logits_of_transformers_in_both_spellings() {
    let new = settings();
    let older = PretrainedSettings::parse(&read("config-older.json"), "config.json").unwrap();
    assert_eq!(new, older);
    assert_eq!((new.model.rope_theta, new.model.rms_norm_eps), (50_000.0, 1e-6));
    assert_eq!((new.model.heads, new.model.kv_heads, new.model.context), (4, Some(2), 64));
    assert_eq!(new.end_tokens, [2, 0]);
    assert_logits(&new.model, &import(&new).unwrap());
}

#[test]
fn an_untied_copy_computes_the_same() {
    let settings = settings();
    let tied = import(&settings).unwrap();
    let config = ModelConfig { tie_embeddings: false, ..settings.model };
    let (before, mut untied) = (tied.values.len(), None);
    let taken = allocation_counter::measure(|| untied = Some(untie(&config, tied).unwrap()));
    let weights = untied.unwrap();
    assert_eq!(weights.values.len(), before + 272 * 16);
    assert!(taken.bytes_max < 272 * 16 * 4, "{} bytes: the weights were copied", taken.bytes_max);
    assert_logits(&config, &weights);
}

#[test]
fn the_memory_of_an_import_counts_one_tensor_more_and_a_copy_of_the_embedding() {
    let values = |more: Option<(&str, Vec<f32>)>| {
        let bytes = one_file(safetensors::Dtype::F32, more);
        let tensors = PretrainedWeights::tensors_of(&bytes, "model.safetensors").unwrap();
        PretrainedWeights::new(&settings(), tensors, None).unwrap().values_in_memory()
    };
    assert_eq!(values(None), 8272 + 272 * 16);
    assert_eq!(values(Some(("lm_head.weight", vec![0.0; 272 * 16]))), 8272 + 2 * 272 * 16);
}

/// The model in one safetensors file, with its tensors converted and one more added.
fn one_file(dtype: safetensors::Dtype, more: Option<(&str, Vec<f32>)>) -> Vec<u8> {
    use safetensors::tensor::TensorView;
    let weights = import(&settings()).unwrap();
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = weights
        .tensors()
        .map(|(spec, values)| (spec.name.clone(), spec.shape.clone(), values.to_vec()))
        .collect();
    tensors.extend(more.map(|(name, values)| (name.to_owned(), vec![values.len() / 16, 16], values)));
    let bytes = |values: &[f32]| -> Vec<u8> {
        match dtype {
            safetensors::Dtype::F16 => {
                values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    };
    let data: Vec<_> = tensors.iter().map(|(_, _, values)| bytes(values)).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape, _), data)| (name.clone(), TensorView::new(dtype, shape.clone(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

fn import_one(bytes: &[u8]) -> Result<ModuleWeights, ImportError> {
    let tensors = PretrainedWeights::tensors_of(bytes, "model.safetensors")?;
    let mut weights = PretrainedWeights::new(&settings(), tensors, None)?;
    weights.read(bytes, "model.safetensors")?;
    weights.finish()
}

#[test]
fn one_file_in_f32_or_f16_and_a_redundant_head_are_read() {
    let shards = import(&settings()).unwrap();
    let embedding = shards.values[..272 * 16].to_vec();
    let f32s = |more| import_one(&one_file(safetensors::Dtype::F32, more));
    assert_eq!(f32s(None).unwrap(), shards);
    assert_eq!(f32s(Some(("lm_head.weight", embedding.clone()))).unwrap(), shards);
    let mut other = embedding.clone();
    other[7] += 0.5;
    let error = f32s(Some(("lm_head.weight", other))).unwrap_err().to_string();
    assert!(error.contains("`lm_head.weight` differs from model.embed_tokens.weight"), "{error}");

    let halves = import_one(&one_file(safetensors::Dtype::F16, None)).unwrap();
    let off = halves.values.iter().zip(&shards.values).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0.0, f32::max) < 1e-4, "bf16 values of this size fit f16 up to subnormals");
    let error = f32s(Some(("model.layers.0.self_attn.q_proj.bias", embedding))).unwrap_err().to_string();
    assert!(error.contains("biases are not supported"), "{error}");
}

#[test]
fn parts_that_a_path_does_not_have_are_refused_by_name() {
    for (changes, part) in [
        (json!({"model_type": "qwen2"}), "the architecture \"qwen2\" is not supported"),
        (json!({"architectures": ["MistralForCausalLM"]}), "the architecture \"MistralForCausalLM\""),
        (json!({"quantization_config": {"bits": 4}}), "quantization_config is not supported"),
        (json!({"hidden_act": "gelu"}), "hidden_act = \"gelu\" is not supported: only silu is"),
        (json!({"attention_bias": true}), "attention_bias = true is not supported"),
        (json!({"mlp_bias": true}), "mlp_bias = true is not supported"),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}),
            "the scaling rope_parameters of type \"llama3\"",
        ),
        (
            json!({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 2.0}}),
            "the scaling rope_scaling of type \"linear\"",
        ),
        (
            json!({"rope_parameters": null, "rope_scaling": {"rope_type": "default", "type": "linear", "factor": 2.0}}),
            "the scaling rope_scaling of type \"linear\"",
        ),
        (
            json!({"rope_parameters": null, "rope_scaling": {"factor": 2.0}}),
            "the scaling rope_scaling without a type",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}, "rope_theta": 5e4}),
            "rope_parameters with settings of \"full_attention\"",
        ),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor = 0.5 is not supported"),
        (json!({"rope_theta": 1e4}), "rope_theta is 10000, but rope_theta in rope_parameters is 50000"),
        (json!({"hidden_size": "wide"}), "hidden_size is \"wide\": it must be a whole number"),
        (json!({"num_hidden_layers": null}), "num_hidden_layers is missing"),
        (json!({"eos_token_id": [2, -1]}), "eos_token_id has -1"),
        (json!({"num_key_value_heads": 3}), "settings can't be used"),
        (json!({"hidden_size": 1u64 << 40}), "settings can't be used"),
    ] {
        let message = refusal(changes.clone());
        assert!(message.contains(part), "{changes}: {message}");
    }
}

#[test]
fn settings_larger_than_the_files_are_refused_before_memory_is_taken() {
    // A million blocks would make a list of nine million tensors, and a vocabulary of 2^24 a gigabyte of embedding.
    let index = index();
    let many = changed(json!({"num_hidden_layers": 1 << 20})).unwrap();
    let error = PretrainedWeights::new(&many, index.tensors(), Some(index)).unwrap_err().to_string();
    assert!(error.contains("num_hidden_layers is 1048576, which makes at least 9437186 tensors"), "{error}");
    let wide = changed(json!({"vocab_size": 1 << 24})).unwrap();
    let error = import(&wide).unwrap_err().to_string();
    assert!(error.contains("`model.embed_tokens.weight` is [272, 16], but"), "{error}");
}

#[test]
fn a_header_of_weights_has_a_limit() {
    // The library's limit: a file of zeros whose header has five million bytes more.
    let mut file = vec![0; 110 << 20];
    file[..8].copy_from_slice(&105_000_000u64.to_le_bytes());
    let refused = PretrainedWeights::tensors_of(&file, "model.safetensors").unwrap_err();
    let ImportError::Safetensors { source, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(source, safetensors::SafeTensorError::HeaderTooLarge), "{source}");
    file[..8].copy_from_slice(&99_000_000u64.to_le_bytes());
    file.truncate(1 << 20);
    let memory = allocation_counter::measure(|| {
        assert!(PretrainedWeights::tensors_of(&file, "model.safetensors").is_err());
    });
    assert!(
        memory.bytes_max < 1 << 20,
        "{} bytes for a length that the file does not have",
        memory.bytes_max
    );
}

#[test]
fn an_index_is_believed_only_where_the_files_agree() {
    let parse = |map: Value| TensorIndex::parse(&serde_json::to_vec(&map).unwrap(), "index").map(drop);
    for name in ["../secret", "/etc/passwd", "a/b", "", ".hidden", "c:\\x"] {
        let error = parse(json!({"weight_map": {"lm_head.weight": name}})).unwrap_err().to_string();
        assert!(error.contains("not a plain name of a file"), "{error}");
    }
    for wrong in [json!([]), json!({}), json!({"weight_map": {}}), json!({"weight_map": {"a": 1}})] {
        assert!(parse(wrong.clone()).is_err(), "{wrong}");
    }
    let mut map: Value = serde_json::from_slice(&read("model.safetensors.index.json")).unwrap();
    map["weight_map"]["model.norm.weight"] = json!(SHARDS[0]);
    let index = TensorIndex::parse(&serde_json::to_vec(&map).unwrap(), "index").unwrap();
    let mut weights = PretrainedWeights::new(&settings(), index.tensors(), Some(index)).unwrap();
    let read_all = SHARDS.iter().try_for_each(|file| weights.read(&read(file), file));
    let error = read_all.unwrap_err().to_string();
    assert!(error.contains("`model.norm.weight` is here, but the index has it elsewhere"), "{error}");

    let mut weights = PretrainedWeights::new(&settings(), 20, None).unwrap();
    weights.read(&read(SHARDS[1]), SHARDS[1]).unwrap();
    let twice = weights.read(&read(SHARDS[1]), SHARDS[1]).unwrap_err().to_string();
    assert!(twice.contains("is in two files"), "{twice}");
    let missing = weights.finish().unwrap_err().to_string();
    assert!(missing.contains("is missing from the files"), "{missing}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..4000, flip in 1u8..) {
        let _ = PretrainedSettings::parse(&bytes, "config.json");
        let _ = TensorIndex::parse(&bytes, "index");
        prop_assert!(PretrainedWeights::tensors_of(&bytes, "file").is_err());
        let damaged = |file: &str| {
            let mut whole = read(file);
            let at = at % whole.len();
            whole[at] ^= flip;
            whole
        };
        let _ = PretrainedSettings::parse(&damaged("config.json"), "config.json").map(|settings| import(&settings));
        let _ = TensorIndex::parse(&damaged("model.safetensors.index.json"), "index");
        let mut weights = PretrainedWeights::new(&settings(), 20, None).unwrap();
        let _ = weights.read(&damaged(SHARDS[0]), SHARDS[0]);
        let _ = weights.finish();
    }
}
