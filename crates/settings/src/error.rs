//! Error of a section's checks.

use thiserror::Error;

/// A value that a section can't use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{section}.{key} is {value}: {problem}")]
pub struct SettingError {
    /// The section, as in `serve`.
    pub section: &'static str,
    /// The key, without its section.
    pub key: &'static str,
    /// The value as text.
    pub value: String,
    /// The reason why the value can't be used, and the values that can.
    pub problem: String,
}

impl SettingError {
    /// An error for the value of `section.key`.
    #[must_use]
    pub fn new(
        section: &'static str,
        key: &'static str,
        value: &dyn ToString,
        problem: impl Into<String>,
    ) -> Self {
        Self { section, key, value: value.to_string(), problem: problem.into() }
    }
}
