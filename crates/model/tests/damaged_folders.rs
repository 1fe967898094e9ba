//! Damaged folders in Hugging Face's format: settings, an index, and weights in two files.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::*;
use serde_json::{Map, Value, json};

/// Stands between the files of a folder in an input.
const BETWEEN: &[u8] = b"\n--next file--\n";
const FILES: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 9,
        hidden_size: 8,
        blocks: 2,
        heads: 2,
        kv_heads: Some(1),
        head_dim: 4,
        ffn_size: 16,
        context: 64,
        tie_embeddings: true,
        ..ModelConfig::default()
    }
}

/// `config.json`, the index, and the weights in two files.
fn folder() -> [Vec<u8>; 4] {
    let config = config();
    let settings = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.blocks, "num_attention_heads": config.heads, "num_key_value_heads": 1,
        "head_dim": config.head_dim, "max_position_embeddings": config.context, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": 1,
    });
    let weights = init(&config, 7).unwrap();
    let half = weights.specs.len() / 2;
    let mut map = Map::new();
    let parts = [&weights.specs[..half], &weights.specs[half..]];
    let mut rest = &weights.values[..];
    let files = [0, 1].map(|number: usize| {
        map.extend(parts[number].iter().map(|spec| (spec.name.clone(), Value::from(FILES[number]))));
        let (own, others) = rest.split_at(parts[number].iter().map(TensorSpec::parameters).sum());
        rest = others;
        ModuleWeights::new(parts[number].into(), own.to_vec()).unwrap().to_safetensors(None).unwrap()
    });
    let index = json!({"metadata": {}, "weight_map": map});
    let [first, second] = files;
    [serde_json::to_vec(&settings).unwrap(), serde_json::to_vec(&index).unwrap(), first, second]
}

fn import(files: [&[u8]; 4]) -> Result<ModuleWeights, ImportError> {
    let [settings, index, first, second] = files;
    let settings = PretrainedSettings::parse(settings, "config.json")?;
    let index = TensorIndex::parse(index, "model.safetensors.index.json")?;
    let mut weights = PretrainedWeights::new(&settings, index.tensors(), Some(index))?;
    weights.read(first, FILES[0])?;
    weights.read(second, FILES[1])?;
    weights.finish()
}

/// The files of an input; `None` if there are not four.
fn files(input: &[u8]) -> Option<[&[u8]; 4]> {
    let mut rest = input;
    let mut files = Vec::new();
    while let Some(end) = rest.windows(BETWEEN.len()).position(|found| found == BETWEEN) {
        files.push(&rest[..end]);
        rest = &rest[end + BETWEEN.len()..];
    }
    files.push(rest);
    files.try_into().ok()
}

#[test]
fn damaged_folders_are_refused_or_read() {
    let whole = folder();
    assert_eq!(
        import(whole.each_ref().map(Vec::as_slice)).unwrap().values,
        init(&config(), 7).unwrap().values
    );
    let valid = |rng: &mut CaseRng| {
        let mut files = whole.clone();
        if rng.random_bool(0.5) {
            let mut settings: Value = serde_json::from_slice(&files[0]).unwrap();
            settings["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 10000.0});
            files[0] = serde_json::to_vec(&settings).unwrap();
        }
        files.join(BETWEEN)
    };
    let reached = |input: &[u8]| {
        let Some(files) = files(input) else { return Reached::Outside };
        match import(files) {
            Ok(_) => Reached::Accepted,
            Err(ImportError::Json { .. } | ImportError::Safetensors { .. }) => Reached::Outside,
            Err(_) => Reached::Inside,
        }
    };
    let counts = Campaign::new("import-folder").memory(4 << 20).play(valid, reached);
    assert!(counts.inside > 100, "{counts:?}");
}
