//! API keys.

use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use blake3::Hash;

use crate::error::ApiError;
use crate::state::ServerError;

/// The API keys of a server. Only their hashes are kept, and hashes are compared in constant time, so neither a log nor
/// the time of an answer reveals anything about a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<Hash>);

impl ApiKeys {
    /// Reads keys from text, one a line. Empty lines and lines that begin with `#` are skipped.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self::of(lines)
    }

    /// Reads keys from the value of an environment variable, separated by commas or white space.
    ///
    /// # Errors
    /// [`ServerError::NoKeysIn`] when the value holds no key. A server with an empty variable must not start open to all.
    pub fn from_variable(name: &'static str, value: &str) -> Result<Self, ServerError> {
        let keys = value.split(|c: char| c == ',' || c.is_whitespace()).filter(|key| !key.is_empty());
        let keys = Self::of(keys);
        if keys.is_empty() { Err(ServerError::NoKeysIn { name }) } else { Ok(keys) }
    }

    fn of<'a>(keys: impl Iterator<Item = &'a str>) -> Self {
        Self(keys.map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// Returns true if there is no key, so that every request is accepted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These keys and others.
    pub(crate) fn and(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(&more.0).copied().collect())
    }

    /// Reads keys from a file.
    ///
    /// # Errors
    /// When the file can't be read or holds no key. A server with an empty key file must not start open to all.
    pub fn load(path: &Path) -> Result<Self, ServerError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ServerError::KeyFile { path: path.to_owned(), source })?;
        let keys = Self::from_text(&text);
        if keys.is_empty() { Err(ServerError::NoKeys { path: path.to_owned() }) } else { Ok(keys) }
    }

    /// Number of keys.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Checks the API key of a request. A server without keys accepts every request.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_empty() {
            return Ok(());
        }
        let given = given(headers);
        // `find` would stop at the first match, and the time would tell the position of the key.
        let known =
            given.is_some_and(|given| self.0.iter().fold(false, |found, key| found | (*key == given)));
        if known {
            return Ok(());
        }
        let message = match given {
            Some(_) => "the API key is not known to this server",
            None => "this server needs an API key: send the header `Authorization: Bearer KEY`",
        };
        Err(ApiError { code: Some("invalid_api_key"), ..ApiError::new(StatusCode::UNAUTHORIZED, message) })
    }

    /// Number of the client that sent a request, for equal shares between API keys. Without keys all requests come from
    /// client 0, because anybody could invent clients.
    pub(crate) fn client(&self, headers: &HeaderMap) -> u64 {
        let known = given(headers).filter(|_| !self.0.is_empty());
        known.and_then(|hash| hash.as_bytes().first_chunk().copied()).map_or(0, u64::from_le_bytes)
    }
}

/// Hash of the API key that a request gives.
fn given(headers: &HeaderMap) -> Option<Hash> {
    let bearer = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (_, key) = bearer.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))?;
    Some(blake3::hash(key.trim().as_bytes()))
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

    #[test]
    fn a_variable_lists_keys_and_an_empty_one_is_refused() {
        let keys = ApiKeys::from_variable("KEYS", " alpha,beta\n\tgamma,, ").unwrap();
        assert_eq!(keys, ApiKeys::from_text("alpha\nbeta\ngamma"));
        for empty in ["", " ", ",\n,"] {
            let error = ApiKeys::from_variable("KEYS", empty).unwrap_err();
            assert!(error.to_string().starts_with("the environment variable KEYS holds no key"), "{error}");
        }
    }

    #[test]
    fn a_key_is_a_client_and_without_keys_there_is_one_client() {
        let keys = ApiKeys::from_text("alpha\nbeta\n");
        let [alpha, beta] = ["Bearer alpha", "bearer beta"].map(|value| keys.client(&with(value)));
        assert_eq!(keys.client(&with("bearer  alpha ")), alpha);
        assert_ne!(alpha, beta);
        let open = ApiKeys::default();
        assert_eq!((open.client(&with("Bearer alpha")), open.client(&with("Bearer beta"))), (0, 0));
    }
}
