//! The place from which a process got its token. A coordinator that moves writes its new address there.

use std::path::{Path, PathBuf};

use dipaco_net::{HelperToken, JoinToken, NetError};
use thiserror::Error;

use crate::client::{TokenUrl, TokenUrlError};

/// Why a token can't be read at its place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenPlaceError {
    /// The file can't be read, or the text is no token.
    #[error(transparent)]
    Token(#[from] NetError),
    /// The address can't be used or gives no token.
    #[error(transparent)]
    Url(#[from] TokenUrlError),
}

/// A place that holds a token as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenPlace {
    /// A file.
    File(PathBuf),
    /// An address on the web.
    Url(TokenUrl),
}

impl TokenPlace {
    /// The place that a user names: an address that begins with `https://` or `http://`, or else a file.
    ///
    /// # Errors
    /// [`TokenUrlError::Address`] for an address that can't be used.
    pub fn named(name: &Path) -> Result<Self, TokenPlaceError> {
        match name.to_str().filter(|text| TokenUrl::is_meant(text)) {
            Some(text) => Ok(Self::Url(TokenUrl::parse(text)?)),
            None => Ok(Self::File(name.to_owned())),
        }
    }

    /// The worker's token that stands there now. Blocks on the file or the server, ten seconds at most.
    ///
    /// # Errors
    /// [`TokenPlaceError`] when it can't be read, or is no such token.
    pub fn join_token(&self) -> Result<JoinToken, TokenPlaceError> {
        match self {
            Self::File(file) => Ok(JoinToken::read_from(file)?),
            Self::Url(url) => Ok(url.fetch()?.parse()?),
        }
    }

    /// The synchronizer's token that stands there now. Blocks on the file or the server, ten seconds at most.
    ///
    /// # Errors
    /// As [`TokenPlace::join_token`].
    pub fn helper_token(&self) -> Result<HelperToken, TokenPlaceError> {
        match self {
            Self::File(file) => Ok(HelperToken::read_from(file)?),
            Self::Url(url) => Ok(url.fetch()?.parse()?),
        }
    }
}

/// Where the current token of a run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenSource {
    /// Nowhere: the token was given once, for example in the environment.
    #[default]
    Given,
    /// At a place with a worker's token.
    Join(TokenPlace),
    /// At a place with a synchronizer's token.
    Helper(TokenPlace),
}

impl TokenSource {
    /// The token as it stands at the source now, if it says more than `known`: other addresses of the same run, or a
    /// certificate that lives longer. A source that can't be read says nothing, because it may be written just now.
    ///
    /// Blocks on the file or the server, ten seconds at most.
    #[must_use]
    pub fn newer(&self, known: &JoinToken) -> Option<JoinToken> {
        let read = match self {
            Self::Given => return None,
            Self::Join(place) => place.join_token(),
            Self::Helper(place) => place.helper_token().map(|token| token.join),
        };
        let found = match read {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "the token can't be read again");
                return None;
            }
        };
        if (&found.run_id, &found.authority) != (&known.run_id, &known.authority) {
            tracing::warn!("the token's place now holds the token of another run; it is left unread");
            return None;
        }
        let addresses = found.addresses.clone();
        // A renewed certificate in memory may live longer than the one at the source.
        let newest = if found.expires > known.expires { found } else { known.clone() };
        let newest = JoinToken { addresses, ..newest };
        (newest != *known).then_some(newest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use dipaco_net::RunAuthority;

    use super::*;

    #[test]
    fn a_source_gives_new_addresses_and_longer_lives_of_the_same_run_only() {
        const HOUR: Duration = Duration::from_secs(3600);
        let now = SystemTime::now();
        let authority = RunAuthority::create("mine", now).unwrap();
        let token = |address: &str, life| {
            authority.issue("worker", "worker", vec![address.to_owned()], now, life).unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("join.token");
        let source = TokenSource::Join(TokenPlace::named(&file).unwrap());
        let known = token("old:1", HOUR);
        assert_eq!(source.newer(&known), None, "no file");
        std::fs::write(&file, known.to_string()).unwrap();
        assert_eq!(source.newer(&known), None, "nothing new");
        let moved = token("new:2", HOUR / 2);
        std::fs::write(&file, moved.to_string()).unwrap();
        let expected = JoinToken { addresses: vec!["new:2".to_owned()], ..known.clone() };
        assert_eq!(source.newer(&known), Some(expected), "the certificate in memory lives longer");
        let renewed = token("new:2", HOUR * 2);
        std::fs::write(&file, renewed.to_string()).unwrap();
        assert_eq!(source.newer(&known), Some(renewed));
        let other = RunAuthority::create("mine", now).unwrap();
        let other = other.issue("worker", "worker", vec!["new:2".to_owned()], now, HOUR * 3).unwrap();
        std::fs::write(&file, other.to_string()).unwrap();
        assert_eq!(source.newer(&known), None, "another authority");
        std::fs::write(&file, "dipaco1.half").unwrap();
        assert_eq!(source.newer(&known), None, "half a file");
        assert_eq!(TokenSource::Given.newer(&known), None);
    }
}
