//! Values of `[serve]` as types of the engine and of the standard library.

use std::time::Duration;

use dipaco_infer::EngineConfig;
use dipaco_settings::ServeConfig;

/// The limits of the engine.
pub(crate) fn engine(config: &ServeConfig) -> EngineConfig {
    EngineConfig {
        slots: config.slots,
        queued_requests: config.queued_requests,
        queued_tokens: config.queued_tokens,
        ..EngineConfig::default()
    }
}

/// A duration of a checked configuration.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::ZERO)
}
