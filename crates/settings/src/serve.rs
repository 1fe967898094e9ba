//! Section `[serve]`: the HTTP server.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{RerouteBy, SettingError};

/// Longest duration in seconds. Larger values are mistakes.
const MAX_SECONDS: f64 = 1e6;

/// Number type of the matrices of served paths, in llama.cpp's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightType {
    /// 32 bits: exactly the trained weights.
    #[default]
    F32,
    /// 16 bits.
    Bf16,
    /// 8.5 bits.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 4.5 bits, 8.5 in embedding and head.
    #[serde(rename = "q4_0")]
    Q4_0,
}

/// Number type of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// 32 bits: log-probabilities are those of an evaluation to 1e-5.
    F32,
    /// 16 bits: half the memory, rounded.
    #[default]
    Bf16,
}

/// Which modules are loaded before the server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preload {
    /// Those of all paths, as many as `serve.memory` has room for.
    #[default]
    All,
    /// Those of the first path.
    None,
}

/// Section `[serve]`: the HTTP server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeConfig {
    /// Key `serve.address`.
    pub address: SocketAddr,
    /// Key `serve.metrics_address`.
    pub metrics_address: Option<SocketAddr>,
    /// Key `serve.format`.
    pub format: WeightType,
    /// Key `serve.memory`.
    pub memory: usize,
    /// Key `serve.check_memory`.
    pub check_memory: bool,
    /// Key `serve.preload`.
    pub preload: Preload,
    /// Key `serve.route_every`.
    pub route_every: usize,
    /// Key `serve.reroute_by`.
    pub reroute_by: RerouteBy,
    /// Key `serve.reload_seconds`.
    pub reload_seconds: f64,
    /// Key `serve.kv_type`.
    pub kv_type: KvType,
    /// Key `serve.kv_bytes`.
    pub kv_bytes: usize,
    /// Key `serve.step_tokens`.
    pub step_tokens: usize,
    /// Key `serve.prompt_slowdown`.
    pub prompt_slowdown: f64,
    /// Key `serve.slots`.
    pub slots: usize,
    /// Key `serve.queued_requests`.
    pub queued_requests: usize,
    /// Key `serve.queued_tokens`.
    pub queued_tokens: usize,
    /// Key `serve.max_choices`.
    pub max_choices: usize,
    /// Key `serve.max_answer_tokens`.
    pub max_answer_tokens: usize,
    /// Key `serve.body_limit`.
    pub body_limit: usize,
    /// Key `serve.max_connections`.
    pub max_connections: usize,
    /// Key `serve.read_timeout`.
    pub read_timeout: f64,
    /// Key `serve.request_timeout`.
    pub request_timeout: f64,
    /// Key `serve.drain_timeout`.
    pub drain_timeout: f64,
    /// Key `serve.keep_alive`.
    pub keep_alive: f64,
    /// Key `serve.api_keys`.
    pub api_keys: Option<PathBuf>,
    /// Key `serve.chat_template`.
    pub chat_template: Option<PathBuf>,
    /// Key `serve.model_sampling`.
    pub model_sampling: bool,
    /// Key `serve.allowed_origins`.
    pub allowed_origins: Vec<String>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8000)),
            metrics_address: None,
            format: WeightType::F32,
            memory: 0,
            check_memory: true,
            preload: Preload::All,
            route_every: 0,
            reroute_by: RerouteBy::default(),
            reload_seconds: 0.0,
            kv_type: KvType::Bf16,
            kv_bytes: 0,
            step_tokens: 128,
            prompt_slowdown: 1.75,
            slots: 0,
            queued_requests: 1024,
            queued_tokens: 1 << 20,
            max_choices: 1024,
            max_answer_tokens: 1 << 20,
            body_limit: 2_000_000,
            max_connections: 1024,
            read_timeout: 30.0,
            request_timeout: 600.0,
            drain_timeout: 30.0,
            keep_alive: 15.0,
            api_keys: None,
            chat_template: None,
            model_sampling: true,
            allowed_origins: Vec::new(),
        }
    }
}

/// Range of a whole number, and the text that states it.
struct Count {
    key: &'static str,
    value: usize,
    least: usize,
    most: usize,
    problem: &'static str,
}

impl ServeConfig {
    /// Largest number of bytes of modules in memory; `None` for no limit.
    #[must_use]
    pub fn memory(&self) -> Option<usize> {
        (self.memory > 0).then_some(self.memory)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`SettingError`] for the first key with an unusable value.
    pub fn check(&self) -> Result<(), SettingError> {
        for Count { key, value, least, most, problem } in self.counts() {
            if !(least..=most).contains(&value) {
                return Err(SettingError::new("serve", key, &value, problem));
            }
        }
        for (key, value) in [
            ("read_timeout", self.read_timeout),
            ("request_timeout", self.request_timeout),
            ("keep_alive", self.keep_alive),
        ] {
            // The negation refuses NaN too.
            if !(value > 0.0 && value <= MAX_SECONDS) {
                let problem = "give seconds above 0, at most 1000000";
                return Err(SettingError::new("serve", key, &value, problem));
            }
        }
        // Unlike the others, 0 makes sense here: stop without waiting for requests, and never look for new weights.
        for (key, value) in [("drain_timeout", self.drain_timeout), ("reload_seconds", self.reload_seconds)] {
            if !(0.0..=MAX_SECONDS).contains(&value) {
                let problem = "give seconds from 0 to 1000000";
                return Err(SettingError::new("serve", key, &value, problem));
            }
        }
        if !(1.0..=1e6).contains(&self.prompt_slowdown) {
            let problem = "give a number from 1 to 1000000";
            return Err(SettingError::new("serve", "prompt_slowdown", &self.prompt_slowdown, problem));
        }
        for origin in self.allowed_origins.iter().filter(|origin| *origin != "*") {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            let usable = |rest: &str| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
            };
            if !rest.is_some_and(usable) {
                let problem =
                    "give \"*\", or origins as browsers send them: https://example.org, without a path";
                return Err(SettingError::new("serve", "allowed_origins", origin, problem));
            }
        }
        Ok(())
    }

    fn counts(&self) -> [Count; 7] {
        [
            Count {
                key: "step_tokens",
                value: self.step_tokens,
                least: 1,
                most: 1 << 16,
                problem: "it must be from 1 to 65536",
            },
            Count {
                key: "slots",
                value: self.slots,
                least: 0,
                most: 4096,
                problem: "it must be at most 4096",
            },
            Count {
                key: "queued_tokens",
                value: self.queued_tokens,
                least: 1,
                most: usize::MAX,
                problem: "it must be at least 1, better a few contexts",
            },
            Count {
                key: "max_choices",
                value: self.max_choices,
                least: 1,
                most: 1 << 20,
                problem: "it must be from 1 to 1048576",
            },
            Count {
                key: "max_answer_tokens",
                value: self.max_answer_tokens,
                least: 1,
                most: 1 << 30,
                problem: "it must be from 1 to 1073741824",
            },
            Count {
                key: "body_limit",
                value: self.body_limit,
                least: 1,
                most: 1 << 30,
                problem: "it must be from 1 to 1073741824 bytes",
            },
            Count {
                key: "max_connections",
                value: self.max_connections,
                least: 1,
                most: 1 << 20,
                problem: "it must be from 1 to 1048576",
            },
        ]
    }
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
        let error = ServeConfig { reload_seconds: -1.0, ..ServeConfig::default() }.check().unwrap_err();
        assert_eq!(error.key, "reload_seconds");
        for slowdown in [0.5, f64::INFINITY, f64::NAN] {
            let config = ServeConfig { prompt_slowdown: slowdown, ..ServeConfig::default() };
            assert_eq!(config.check().unwrap_err().key, "prompt_slowdown");
        }
        let origins = |origin: &str| {
            ServeConfig { allowed_origins: vec![origin.into()], ..ServeConfig::default() }.check()
        };
        assert_eq!((origins("*"), origins("https://chat.example.org:8443")), (Ok(()), Ok(())));
        for wrong in ["example.org", "https://", "https://example.org/", "https://a b"] {
            assert_eq!(origins(wrong).unwrap_err().key, "allowed_origins", "{wrong}");
        }
    }
}
