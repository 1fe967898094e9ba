//! Sources of the kernels and the constants of their compilation.

use dipaco_model::{Dtype, ModelConfig};

/// The source files in the order of compilation; they form one text.
const SOURCES: [(&str, &str); 13] = [
    ("primitives.cuh", include_str!("../kernels/primitives.cuh")),
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("step.cuh", include_str!("../kernels/step.cuh")),
    ("embedding.cu", include_str!("../kernels/embedding.cu")),
    ("rms_norm.cu", include_str!("../kernels/rms_norm.cu")),
    ("rope.cu", include_str!("../kernels/rope.cu")),
    ("swiglu.cu", include_str!("../kernels/swiglu.cu")),
    ("attention.cu", include_str!("../kernels/attention.cu")),
    ("attention_tensor.cu", include_str!("../kernels/attention_tensor.cu")),
    ("cross_entropy.cu", include_str!("../kernels/cross_entropy.cu")),
    ("gradient_norm.cu", include_str!("../kernels/gradient_norm.cu")),
    ("adamw.cu", include_str!("../kernels/adamw.cu")),
    ("mean.cu", include_str!("../kernels/mean.cu")),
];

/// Names of all kernels.
pub(crate) const NAMES: [&str; 18] = [
    "embedding_forward",
    "embedding_backward",
    "rms_norm_forward",
    "rms_norm_backward",
    "rms_norm_weight_gradient",
    "rope",
    "swiglu_forward",
    "swiglu_backward",
    "attention_forward",
    "attention_delta",
    "attention_query_gradient",
    "attention_key_value_gradient",
    "cross_entropy",
    "sum_losses",
    "squared_norm",
    "clip",
    "adamw",
    "mean",
];

/// Numbers that one block of `squared_norm` adds up; SQUARES_CHUNK of the kernel.
pub(crate) const SQUARES_CHUNK: usize = 65_536;

/// Returns the text for the compiler.
pub(crate) fn source() -> String {
    SOURCES.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}")).collect()
}

/// Rows of one block of the attention kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionRows {
    /// Queries, in the forward pass.
    pub(crate) forward: usize,
    /// Queries or keys, in the backward passes.
    pub(crate) backward: usize,
}

/// True if the attention runs on the tensor cores.
fn tensor_attention(config: &ModelConfig) -> bool {
    config.dtype == Dtype::Bf16 && config.head_dim.is_multiple_of(16) && config.head_dim <= 128
}

/// Returns the rows of the attention kernels, which both files of attention kernels define.
pub(crate) fn attention_rows(config: &ModelConfig) -> AttentionRows {
    match (tensor_attention(config), config.head_dim) {
        (true, ..=64) => AttentionRows { forward: 128, backward: 64 },
        (true, _) => AttentionRows { forward: 64, backward: 64 },
        (false, _) => AttentionRows { forward: 8, backward: 8 },
    }
}

/// Returns the constants of common.cuh as options of the compiler.
pub(crate) fn defines(config: &ModelConfig) -> Vec<String> {
    let widths = [
        config.hidden_size,
        config.attention_size(),
        config.key_value_size(),
        config.ffn_size,
        config.vocab_size,
    ];
    let vector = if widths.iter().all(|width| width.is_multiple_of(8)) { 8 } else { 1 };
    [
        ("BF16", usize::from(config.dtype == Dtype::Bf16)),
        ("WIDTH", config.hidden_size),
        ("HEADS", config.heads),
        ("KV_HEADS", config.key_value_heads()),
        ("HEAD_DIM", config.head_dim),
        ("FFN", config.ffn_size),
        ("VOCABULARY", config.vocab_size),
        ("VECTOR", vector),
        ("TENSOR_ATTENTION", usize::from(tensor_attention(config))),
    ]
    .iter()
    .map(|(name, value)| format!("-D{name}={value}"))
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::SOURCES;

    #[test]
    fn every_file_of_the_kernels_is_compiled() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let entries = std::fs::read_dir(folder).unwrap();
        let files = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let compiled = SOURCES.map(|(name, _)| name.to_owned());
        assert_eq!(BTreeSet::from(compiled), files.collect::<BTreeSet<_>>());
    }
}
