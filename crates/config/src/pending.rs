//! Sections whose packages are not there yet.

use serde::{Deserialize, Serialize};

/// Section `[model]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct ModelConfig {
    pub hidden_size: usize,
    pub blocks: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub ffn_size: usize,
    pub vocab_size: usize,
    pub context: usize,
    pub rope_theta: f64,
    pub rms_norm_eps: f64,
    pub tie_embeddings: bool,
    pub init_std: f64,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            hidden_size: 128,
            blocks: 4,
            heads: 4,
            head_dim: 32,
            ffn_size: 352,
            vocab_size: 0,
            context: 256,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
            tie_embeddings: false,
            init_std: 0.02,
        }
    }
}
