//! Export of a path as a Hugging Face Llama checkpoint, and import.

use serde_json::{Map, Value, json};

use crate::init::matrix_deviation;
use crate::split::require_specs;
use crate::{ModelConfig, ModelError, ModuleWeights, path_specs};

/// Special tokens of a tokenizer that this program trained, which the configuration of a checkpoint names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Id of the end-of-text token, which also starts and pads a text.
    pub end_of_text: u32,
    /// Text of the end-of-text token.
    pub end_of_text_text: String,
}

/// Returns name and content of each file of a checkpoint for transformers, vLLM and the converter of llama.cpp.
///
/// `path` holds the weights of a whole path. They stay f32, so that the logits are the same.
///
/// # Errors
/// The tensors are not the tensors of a path of this configuration, or the end-of-text token is outside of its
/// vocabulary.
pub fn export_llama(
    config: &ModelConfig,
    path: &ModuleWeights,
    tokens: &SpecialTokens,
    tokenizer_json: &[u8],
) -> Result<Vec<(String, Vec<u8>)>, ModelError> {
    config.check_complete()?;
    require_specs(&path.specs, &path_specs(config))?;
    if tokens.end_of_text as usize >= config.vocab_size {
        return Err(ModelError::Token { token: tokens.end_of_text, vocabulary: config.vocab_size });
    }
    let id = tokens.end_of_text;
    let generation = json!({
        "_from_model_config": true, "bos_token_id": id, "eos_token_id": id, "pad_token_id": id, "do_sample": true,
    });
    let text = &tokens.end_of_text_text;
    let tokenizer = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": text, "eos_token": text, "pad_token": text,
        "unk_token": text, "add_bos_token": false, "add_eos_token": false, "clean_up_tokenization_spaces": false,
        "model_max_length": config.context,
    });
    let special = json!({ "bos_token": text, "eos_token": text, "pad_token": text, "unk_token": text });
    Ok(vec![
        ("config.json".to_owned(), config_file(config, &special_ids(id))?),
        ("generation_config.json".to_owned(), json_file("generation_config.json", &generation)?),
        ("model.safetensors".to_owned(), path.to_safetensors(Some(("format", "pt")))?),
        ("tokenizer.json".to_owned(), tokenizer_json.to_vec()),
        ("tokenizer_config.json".to_owned(), json_file("tokenizer_config.json", &tokenizer)?),
        ("special_tokens_map.json".to_owned(), json_file("special_tokens_map.json", &special)?),
    ])
}

/// Reads the weights of a whole path from the `model.safetensors` of a Llama checkpoint (f32, names as exported).
///
/// # Errors
/// The bytes are damaged, or the tensors are not the tensors of a path of this configuration.
pub fn import_llama(config: &ModelConfig, safetensors: &[u8]) -> Result<ModuleWeights, ModelError> {
    config.check_complete()?;
    ModuleWeights::from_safetensors(safetensors, path_specs(config).into())
}

/// Returns name and content of the files of a checkpoint that depend on the model: `config.json` with `special`, keys
/// that name special tokens or replace those made of `config`, and the weights. The caller adds the tokenizer's files.
///
/// # Errors
/// The tensors are not the tensors of a path of this configuration.
pub fn export_model(
    config: &ModelConfig,
    path: &ModuleWeights,
    special: &Map<String, Value>,
) -> Result<Vec<(String, Vec<u8>)>, ModelError> {
    config.check_complete()?;
    require_specs(&path.specs, &path_specs(config))?;
    Ok(vec![
        ("config.json".to_owned(), config_file(config, special)?),
        ("model.safetensors".to_owned(), path.to_safetensors(Some(("format", "pt")))?),
    ])
}

/// The keys of special tokens of a tokenizer with one special token.
fn special_ids(end_of_text: u32) -> Map<String, Value> {
    ["bos_token_id", "eos_token_id", "pad_token_id"]
        .into_iter()
        .map(|key| (key.to_owned(), end_of_text.into()))
        .collect()
}

fn config_file(config: &ModelConfig, special: &Map<String, Value>) -> Result<Vec<u8>, ModelError> {
    let mut file = llama_config(config);
    if let Some(keys) = file.as_object_mut() {
        keys.extend(special.clone());
    }
    json_file("config.json", &file)
}

fn llama_config(config: &ModelConfig) -> Value {
    // transformers 5 reads `rope_parameters` and `dtype`, older programs read `rope_theta` and `torch_dtype`. Without
    // the key that it reads, each silently uses its own default, so all are written.
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.blocks,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads(),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.rms_norm_eps,
        "initializer_range": matrix_deviation(config, config.hidden_size),
        "attention_bias": false,
        "attention_dropout": 0.0,
        "mlp_bias": false,
        "tie_word_embeddings": config.tie_embeddings,
        "use_cache": true,
        "rope_theta": config.rope_theta,
        "rope_scaling": null,
        "rope_parameters": { "rope_type": "default", "rope_theta": config.rope_theta },
        "torch_dtype": "float32",
        "dtype": "float32",
    })
}

fn json_file(file: &'static str, value: &Value) -> Result<Vec<u8>, ModelError> {
    serde_json::to_vec_pretty(value).map_err(|source| ModelError::Json { file, source })
}
