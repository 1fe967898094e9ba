//! The kernels' sources and the constants that they are compiled with.

use crate::{PathShape, Precision};

/// The files in the order in which they are compiled, as one text.
const SOURCES: [(&str, &str); 12] = [
    ("primitives.cuh", include_str!("../kernels/primitives.cuh")),
    ("common.cuh", include_str!("../kernels/common.cuh")),
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

/// Every kernel's name.
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

/// Numbers that a block of `squared_norm` adds up; the kernel's SQUARES_CHUNK.
pub(crate) const SQUARES_CHUNK: usize = 65_536;

/// One text for the compiler.
pub(crate) fn source() -> String {
    SOURCES.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}")).collect()
}

/// Whether the tensor cores do the attention.
pub(crate) fn tensor_attention(shape: &PathShape, precision: Precision) -> bool {
    precision == Precision::Bf16 && shape.head_dim.is_multiple_of(16) && shape.head_dim <= 128
}

/// Rows of a block of the attention kernels: of queries in the forward pass, and of either side in the backward passes.
pub(crate) fn attention_rows(shape: &PathShape, precision: Precision) -> (usize, usize) {
    match (tensor_attention(shape, precision), shape.head_dim) {
        (true, ..=64) => (128, 64),
        (true, _) => (64, 64),
        (false, _) => (8, 8),
    }
}

/// The constants of common.cuh.
pub(crate) fn defines(shape: &PathShape, precision: Precision) -> Vec<String> {
    let widths = [shape.hidden_size, shape.attention(), shape.ffn_size, shape.vocab_size];
    let vector = if widths.iter().all(|width| width.is_multiple_of(8)) { 8 } else { 1 };
    [
        ("BF16", usize::from(precision == Precision::Bf16)),
        ("WIDTH", shape.hidden_size),
        ("HEADS", shape.heads),
        ("HEAD_DIM", shape.head_dim),
        ("FFN", shape.ffn_size),
        ("VOCABULARY", shape.vocab_size),
        ("VECTOR", vector),
        ("TENSOR_ATTENTION", usize::from(tensor_attention(shape, precision))),
    ]
    .iter()
    .map(|(name, value)| format!("-D{name}={value}"))
    .collect()
}
