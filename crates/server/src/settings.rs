//! Values of `[serve]` as types of the engine and of the standard library.

use std::time::Duration;

use dipaco_infer::EngineConfig;
use dipaco_settings::{KvType, ServeConfig};

/// The limits of the engine.
#[must_use]
pub fn engine_config(config: &ServeConfig) -> EngineConfig {
    EngineConfig {
        slots: config.slots,
        queued_requests: config.queued_requests,
        queued_tokens: config.queued_tokens,
        step_tokens: config.step_tokens,
        prompt_slowdown: config.prompt_slowdown,
        kv_bytes: config.kv_bytes,
        kv_type: match config.kv_type {
            KvType::F32 => dipaco_infer::Dtype::F32,
            KvType::Bf16 => dipaco_infer::Dtype::Bf16,
        },
        threads: 0,
    }
}

/// A duration of a checked configuration.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::ZERO)
}
