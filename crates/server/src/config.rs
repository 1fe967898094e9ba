//! How the server is configured.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dipaco_infer::EngineConfig;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Section `[serve]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeConfig {
    /// Where to listen. Default 127.0.0.1:8000, which other machines can't reach; 0.0.0.0 opens it to all: set
    /// `api_keys` then.
    pub address: SocketAddr,
    /// Sequences that are computed at a time. Default 0: the number of cores. More than that makes each one slower.
    pub slots: usize,
    /// Sequences that may wait; a request with k prompts and n choices counts k·n. Default 1024. Above it requests are
    /// answered with 429: too low and evaluation harnesses give up.
    pub queued_requests: usize,
    /// Prompt tokens that may wait. Default 1,048,576. Bounds the time a request can wait for long prompts.
    pub queued_tokens: usize,
    /// Choices of one request, prompts times n. Default 1024.
    pub max_choices: usize,
    /// Bytes of a request's body. Default 2,000,000; above it requests are answered with 413.
    pub body_limit: usize,
    /// Connections at a time. Default 1024; more wait in the operating system's backlog.
    pub max_connections: usize,
    /// Seconds a client has to send a request's head, and again for its body. Default 30.
    pub read_timeout: f64,
    /// Seconds a request may take from its admission to its last token. Default 600. A client may ask for less with
    /// the header `x-dipaco-timeout` (seconds).
    pub request_timeout: f64,
    /// Seconds that running requests get to finish when the server is stopped. Default 30.
    pub drain_timeout: f64,
    /// Seconds between comments that keep a silent stream open. Default 15.
    pub keep_alive: f64,
    /// A file with API keys, one a line, `#` for comments. Default none: everyone who reaches the address may ask. With
    /// it, everything but `/health` needs `Authorization: Bearer KEY`.
    pub api_keys: Option<PathBuf>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8000)),
            slots: 0,
            queued_requests: 1024,
            queued_tokens: 1 << 20,
            max_choices: 1024,
            body_limit: 2_000_000,
            max_connections: 1024,
            read_timeout: 30.0,
            request_timeout: 600.0,
            drain_timeout: 30.0,
            keep_alive: 15.0,
            api_keys: None,
        }
    }
}

/// A value of `[serve]` that can't work.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("serve.{key} is {value}: {expected}")]
pub struct ServeConfigError {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub expected: &'static str,
}

impl ServeConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// The first key whose value can't work.
    pub fn check(&self) -> Result<(), ServeConfigError> {
        let wrong = |key, value: &dyn ToString, expected| ServeConfigError {
            key,
            value: value.to_string(),
            expected,
        };
        for (key, value, least, most, expected) in [
            ("slots", self.slots, 0, 4096, "it must be at most 4096"),
            (
                "queued_tokens",
                self.queued_tokens,
                1,
                usize::MAX,
                "it must be at least 1, better a few contexts",
            ),
            ("max_choices", self.max_choices, 1, 1 << 20, "it must be from 1 to 1048576"),
            ("body_limit", self.body_limit, 1, 1 << 30, "it must be from 1 to 1073741824 bytes"),
            ("max_connections", self.max_connections, 1, 1 << 20, "it must be from 1 to 1048576"),
        ] {
            if !(least..=most).contains(&value) {
                return Err(wrong(key, &value, expected));
            }
        }
        for (key, value, positive) in [
            ("read_timeout", self.read_timeout, true),
            ("request_timeout", self.request_timeout, true),
            ("keep_alive", self.keep_alive, true),
            ("drain_timeout", self.drain_timeout, false),
        ] {
            // A NaN is in no range.
            if !(0.0..=1e6).contains(&value) || (positive && value == 0.0) {
                let expected = if positive {
                    "give seconds above 0, at most 1000000"
                } else {
                    "give seconds from 0 to 1000000"
                };
                return Err(wrong(key, &value, expected));
            }
        }
        Ok(())
    }

    /// The engine's part.
    #[must_use]
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            slots: self.slots,
            queued_requests: self.queued_requests,
            queued_tokens: self.queued_tokens,
        }
    }
}

/// Seconds of a checked configuration.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_work_and_bad_values_are_named() {
        assert_eq!(ServeConfig::default().check(), Ok(()));
        let error = ServeConfig { request_timeout: f64::NAN, ..ServeConfig::default() }.check().unwrap_err();
        assert!(error.to_string().starts_with("serve.request_timeout is NaN: give seconds"), "{error}");
        let error = ServeConfig { max_choices: 0, ..ServeConfig::default() }.check().unwrap_err();
        assert_eq!(error.key, "max_choices");
        assert_eq!(ServeConfig { drain_timeout: 0.0, ..ServeConfig::default() }.check(), Ok(()));
    }
}
