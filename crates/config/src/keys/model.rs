//! Keys of `model`.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key("model.hidden_size", "values", "D, the width of the residual stream."),
    key("model.blocks", "blocks", "Number of transformer blocks of a path."),
    key("model.heads", "heads", "H, the number of attention heads."),
    key(
        "model.kv_heads",
        "heads",
        "Hkv, the number of heads of keys and values, a divisor of H (grouped-query attention). Each serves H / Hkv heads of \
         queries. Fewer heads make the KV cache and the path smaller. Not set: as many as H.",
    ),
    key(
        "model.head_dim",
        "values",
        "Dh, the width of an attention head. Must be even, because positions rotate pairs of values.",
    ),
    key("model.ffn_size", "values", "F, the inner width of the feed-forward part."),
    key(
        "model.vocab_size",
        "tokens",
        "V, the number of rows of the token embedding, at least the number of the tokenizer's entries; 0 takes that number.",
    ),
    key(
        "model.context",
        "tokens",
        "Largest number of tokens of a sequence, in training and when the model is served.",
    ),
    key("model.rope_theta", "number", "Base of the wavelengths of the rotary positions."),
    key(
        "model.rms_norm_eps",
        "number",
        "Added to the mean square in RMSNorm to avoid division by 0. At least 1e-16.",
    ),
    key(
        "model.tie_embeddings",
        "true or false",
        "Uses the token embedding as the output projection. Embedding and head must then be in the same level.",
    ),
    key(
        "model.embedding_decay",
        "true or false",
        "Applies weight decay to the token embedding. Weight decay moves the rows of all tokens, also of tokens that a \
         path never reads.",
    ),
    key(
        "model.init_std",
        "number",
        "Standard deviation of the initial matrices. When it is not set, each matrix has 1 divided by the root of three \
         times the number of its inputs; the token embedding counts as a matrix with D inputs. 0.02 learns less in short runs \
         (docs/results/short-runs.md).",
    ),
    key(
        "model.dtype",
        "name",
        "Number format of the operands of matrix products in training, validation, `evaluate` and routing by the seed: \
         \"f32\" or \"bf16\". \"bf16\" halves the memory for activations and is faster on processors with bf16 products. Sums, \
         weights, gradients and moments are f32 in both.",
    ),
];
