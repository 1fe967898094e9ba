//! API keys.

use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use blake3::Hash;

use crate::error::ApiError;
use crate::state::ServerError;

/// The keys that may ask. Only their hashes are kept, and hashes are compared in constant time: neither a log nor the
/// time of an answer tells anything about a key.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys(Vec<Hash>);

impl ApiKeys {
    /// Reads keys from text: one a line, empty lines and lines that begin with `#` are skipped.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// Reads keys from a file.
    ///
    /// # Errors
    /// When the file can't be read or holds no key: a server that was meant to be closed must not start open.
    pub fn load(path: &Path) -> Result<Self, ServerError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ServerError::KeyFile { path: path.to_owned(), source })?;
        let keys = Self::from_text(&text);
        if keys.0.is_empty() { Err(ServerError::NoKeys { path: path.to_owned() }) } else { Ok(keys) }
    }

    /// Whether a request may go on. Without keys everything may, whatever it sends.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = bearer
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let given = key.map(|(_, key)| blake3::hash(key.trim().as_bytes()));
        // All keys are compared, so that the time does not tell which one is near.
        let known =
            given.is_some_and(|given| self.0.iter().fold(false, |found, key| found | (*key == given)));
        if known {
            return Ok(());
        }
        let message = match key {
            Some(_) => "the API key is not known here",
            None => "an API key is needed: send the header `Authorization: Bearer KEY`",
        };
        Err(ApiError { code: Some("invalid_api_key"), ..ApiError::new(StatusCode::UNAUTHORIZED, message) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn only_known_keys_pass_and_without_keys_everything_does() {
        let keys = ApiKeys::from_text("# team\nalpha\n\n  beta \n");
        assert!(keys.check(&with("Bearer alpha")).is_ok());
        assert!(keys.check(&with("bearer beta")).is_ok());
        for wrong in ["Bearer ", "Bearer alph", "Basic alpha", "alpha", "Bearer # team"] {
            assert_eq!(keys.check(&with(wrong)).unwrap_err().status, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        assert!(ApiKeys::default().check(&with("Bearer ")).is_ok());
        assert!(!format!("{keys:?}").contains("alpha"));
    }
}
