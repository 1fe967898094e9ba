//! What the keys of `model` mean.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key("model.hidden_size", "values", "D, the width of the residual stream."),
    key("model.blocks", "blocks", "Number of transformer blocks of a path."),
    key("model.heads", "heads", "Number of attention heads."),
    key(
        "model.head_dim",
        "values",
        "Dh, the width of one head; even, because positions rotate pairs of values.",
    ),
    key("model.ffn_size", "values", "F, the inner width of the feed-forward part."),
    key("model.vocab_size", "tokens", "V, the number of different tokens; 0 takes it from the tokenizer."),
    key(
        "model.context",
        "tokens",
        "The longest sequence that the model reads, in training and when it is served.",
    ),
    key("model.rope_theta", "number", "Base of the rotary positions' wavelengths."),
    key(
        "model.rms_norm_eps",
        "number",
        "Added to the mean square in RMSNorm, so that nothing is divided by 0.",
    ),
    key(
        "model.tie_embeddings",
        "true or false",
        "Whether the output projection is the token embedding. Then both must be in one level.",
    ),
    key("model.init_std", "number", "Standard deviation of the initial weights."),
    key(
        "model.dtype",
        "name",
        "The numbers that matrix products multiply in training: \"f32\", or \"bf16\", which is faster on processors that \
         have such products and saves half of the memory for activations. Sums, weights, gradients and moments are f32 \
         in both.",
    ),
];
