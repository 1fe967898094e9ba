//! Export of a path as a GGUF file for llama.cpp and programs that use it.

mod sampling;
mod special_tokens;
mod vocabulary;

use std::io::{Seek, Write};

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{self, Value};
use dipaco_ops::WeightFormat;

use crate::split::require_specs;
use crate::{ModelConfig, ModelError, ModuleWeights, TensorSpec, path_specs};
pub(crate) use sampling::{FRACTIONS, TOP_K};
pub(crate) use special_tokens::ALL_ENDS;
pub use special_tokens::GgufTokens;
pub use vocabulary::{GgufVocabulary, VocabularyError};
pub(crate) use vocabulary::{TokenKind, pre_tokenizer};

/// The number of a format in the key `general.file_type`.
fn file_type(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::F32 => 0,
        WeightFormat::Bf16 => 32,
        WeightFormat::Q8_0 => 7,
        WeightFormat::Q4_0 => 2,
    }
}

/// Writes a path and its tokenizer as a GGUF file. `name` is shown by programs that load the file.
///
/// `path` holds the weights of a whole path. The file has llama.cpp's architecture `llama`: its rotary embedding pairs
/// neighbouring numbers of a head, so the rows of the query and key matrices are written in that order.
///
/// # Errors
/// The tensors are not the tensors of a path of this configuration, the vocabulary is larger than the model's, rows are
/// no multiple of a block, or `out` can't be written.
pub fn export_gguf(
    config: &ModelConfig,
    path: &ModuleWeights,
    name: &str,
    vocabulary: &GgufVocabulary,
    format: WeightFormat,
    out: &mut (impl Write + Seek),
) -> Result<(), ModelError> {
    config.check_complete()?;
    require_specs(&path.specs, &path_specs(config))?;
    let mut metadata = settings(config, name, format);
    metadata.extend(vocabulary.metadata(config.vocab_size)?);
    let tensors = path.tensors().map(|(spec, values)| tensor(config, spec, values, format));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Ok(gguf_file::write(out, &metadata, &tensors)?)
}

/// The keys of the architecture `llama`.
fn settings(config: &ModelConfig, name: &str, format: WeightFormat) -> Vec<(String, Value)> {
    let number = |value: usize| Value::U32(u32::try_from(value).unwrap_or(u32::MAX));
    [
        ("general.architecture", Value::String("llama".into())),
        ("general.name", Value::String(name.to_owned())),
        ("general.file_type", Value::U32(file_type(format))),
        ("general.quantization_version", Value::U32(2)),
        ("llama.vocab_size", number(config.vocab_size)),
        ("llama.context_length", number(config.context)),
        ("llama.embedding_length", number(config.hidden_size)),
        ("llama.block_count", number(config.blocks)),
        ("llama.feed_forward_length", number(config.ffn_size)),
        ("llama.attention.head_count", number(config.heads)),
        ("llama.attention.head_count_kv", number(config.key_value_heads())),
        ("llama.attention.key_length", number(config.head_dim)),
        ("llama.attention.value_length", number(config.head_dim)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32)),
        ("llama.rope.dimension_count", number(config.head_dim)),
        ("llama.rope.freq_base", Value::F32(config.rope_theta as f32)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// A tensor with its name in the file.
fn tensor(
    config: &ModelConfig,
    spec: &TensorSpec,
    values: &[f32],
    format: WeightFormat,
) -> Result<(String, QTensor), ModelError> {
    let wrong = |problem: String| ModelError::Weights { tensor: spec.name.clone(), problem };
    let name = file_name(&spec.name).ok_or_else(|| wrong("it has no name in a GGUF file".into()))?;
    let format = match spec.shape.len() {
        1 => WeightFormat::F32,
        _ if name.starts_with("blk.") => format,
        _ => format.of_ends(),
    };
    let columns = spec.shape.last().copied().unwrap_or(1);
    let permuted = match name.rsplit('.').nth(1) {
        Some("attn_q" | "attn_k") => Some(neighbouring_pairs(values, config.head_dim, columns)),
        _ => None,
    };
    let values = permuted.as_deref().unwrap_or(values);
    let tensor = format.quantize(values, &spec.shape).map_err(|source| wrong(source.to_string()))?;
    Ok((name, tensor))
}

/// The name of a tensor of Hugging Face's Llama in a GGUF file.
pub(crate) fn file_name(name: &str) -> Option<String> {
    let name = name.strip_suffix(".weight")?;
    let own = match name.strip_prefix("model.layers.") {
        None => match name {
            "model.embed_tokens" => "token_embd".to_owned(),
            "model.norm" => "output_norm".to_owned(),
            "lm_head" => "output".to_owned(),
            _ => return None,
        },
        Some(rest) => {
            let (block, tensor) = rest.split_once('.')?;
            let tensor = match tensor {
                "input_layernorm" => "attn_norm",
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.o_proj" => "attn_output",
                "post_attention_layernorm" => "ffn_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                _ => return None,
            };
            format!("blk.{block}.{tensor}")
        }
    };
    Some(own + ".weight")
}

/// The rows of a query or key matrix, where each head's rows i and i + Dh/2 become its rows 2i and 2i + 1.
fn neighbouring_pairs(values: &[f32], head_dim: usize, columns: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_dim * columns) {
        for pair in 0..half {
            for row in [pair, pair + half] {
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
    }
    out
}

/// The inverse of [`neighbouring_pairs`].
pub(crate) fn halves(values: &[f32], head_dim: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_dim * columns) {
        for first in [0, 1] {
            for row in (first..head_dim).step_by(2) {
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
