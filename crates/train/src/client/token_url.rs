//! The address of a token on the web. Whoever reads a token can join the run, so it may travel over TLS or within a
//! machine only.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};

/// Longest time to get a token, from the look-up of the name to the last byte.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest answer that is read. A longer one is no token.
const MOST_BYTES: u64 = 64 << 10;

/// Why a token can't be fetched from an address. No message holds a part of the address that may be secret, or a part of
/// the token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenUrlError {
    /// The address can't be used.
    #[error("the address of the token can't be used: {reason}")]
    Address {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server does not answer.
    #[error("the token at {url} can't be fetched: {cause}; check the address and that its server runs")]
    Unreachable {
        /// The address.
        url: TokenUrl,
        /// What failed.
        cause: String,
    },
    /// The server gives no token.
    #[error(
        "the server of {url} answers with the HTTP status {status}: let it give the token's file itself, without a redirection"
    )]
    Refused {
        /// The address.
        url: TokenUrl,
        /// The status.
        status: u16,
    },
    /// The answer is no text, or longer than any token.
    #[error(
        "the server of {url} answers with something else than a token: name the address of the token's file"
    )]
    Content {
        /// The address.
        url: TokenUrl,
    },
}

impl TokenUrlError {
    /// True if the same request may succeed later: the server is down or busy, or nobody has put the token there yet.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(*status, 404 | 408 | 425 | 429 | 500..),
            Self::Address { .. } | Self::Content { .. } => false,
        }
    }
}

/// An address of a token: `https://`, or `http://` on this machine's loopback.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUrl(Uri);

impl TokenUrl {
    /// True for a text that is meant as an address on the web.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let starts =
            |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        starts("https://") || starts("http://")
    }

    /// Checks an address.
    ///
    /// # Errors
    /// [`TokenUrlError::Address`] for one that is malformed, or that would send the token over a network without TLS.
    pub fn parse(text: &str) -> Result<Self, TokenUrlError> {
        let wrong = |reason| TokenUrlError::Address { reason };
        let uri: Uri =
            text.parse().map_err(|_| wrong("it is malformed; write it as in https://HOST/join.token"))?;
        let Some(host) = uri.host().filter(|host| !host.is_empty()) else {
            return Err(wrong("it names no host; write it as in https://HOST/join.token"));
        };
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_loopback(host) => Ok(Self(uri)),
            Some("http") => Err(wrong(
                "over http:// everybody on the way could read the token and join the run; use https://, or a port of \
                 this machine's loopback",
            )),
            _ => Err(wrong("it begins with neither https:// nor http://")),
        }
    }

    /// True if the address has a part that may open the token to its reader: a user with a password, or a query.
    #[must_use]
    pub fn may_hold_secret(&self) -> bool {
        self.0.query().is_some()
            || self.0.authority().is_some_and(|authority| authority.as_str().contains('@'))
    }

    /// Gets the text at the address. Follows no redirection, trusts the certificates of the machine, and takes 10 seconds
    /// and 64 KiB at most.
    ///
    /// # Errors
    /// Every error of [`TokenUrlError`] but that of the address.
    pub fn fetch(&self) -> Result<String, TokenUrlError> {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("dipaco/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(LIMIT));
        if self.0.scheme_str() != Some("https") {
            // A proxy would carry the token in the clear to another machine.
            config = config.proxy(None);
        }
        let mut answer =
            config.build().new_agent().get(self.0.clone()).call().map_err(|error| self.failed(&error))?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(TokenUrlError::Refused { url: self.clone(), status });
        }
        let bytes = answer.body_mut().with_config().limit(MOST_BYTES).read_to_vec();
        let bytes = bytes.map_err(|error| self.failed(&error))?;
        String::from_utf8(bytes).map_err(|_| TokenUrlError::Content { url: self.clone() })
    }

    fn failed(&self, error: &ureq::Error) -> TokenUrlError {
        let cause = match error {
            ureq::Error::BodyExceedsLimit(_) => return TokenUrlError::Content { url: self.clone() },
            // Their texts hold the address.
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => "its address is malformed".to_owned(),
            error => error.to_string(),
        };
        TokenUrlError::Unreachable { url: self.clone(), cause }
    }
}

/// The address without what may be secret in it.
impl fmt::Display for TokenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        write!(f, "{}://{host}{}", self.0.scheme_str().unwrap_or_default(), self.0.path())
    }
}

impl fmt::Debug for TokenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// True if a request to this host, a name or an IP address, stays on the machine.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
