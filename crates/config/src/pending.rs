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

/// Section `adamw`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct AdamWConfig {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub clip_norm: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            learning_rate: 4e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        }
    }
}

/// Section `schedule`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct ScheduleConfig {
    pub warmup_steps: u64,
    pub final_fraction: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { warmup_steps: 20, final_fraction: 0.1 }
    }
}

/// Section `outer.nesterov`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct NesterovConfig {
    pub learning_rate: f64,
    pub momentum: f64,
}

impl Default for NesterovConfig {
    fn default() -> Self {
        Self { learning_rate: 0.7, momentum: 0.9 }
    }
}
