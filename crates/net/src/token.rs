//! Join tokens: all data that a worker needs to find and to join a run, as a line of text.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::{NetError, ServerIdentity};

const PREFIX: &str = "dipaco1.";
const HELPER_PREFIX: &str = "dipaco-helper1.";
const MAX_TEXT_BYTES: usize = 64 << 10;
const CHECKSUM_BYTES: usize = 4;

/// A join token lets its holder join a run until it expires. It contains a private key: keep it like a password.
///
/// Its text is a line of `dipaco1.` and base64url with a checksum, so a mistyped or truncated token gets a clear
/// error.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// Identity of the run.
    pub run_id: String,
    /// Addresses of the coordinator as `host:port`, in the order of attempts.
    pub addresses: Vec<String>,
    /// Certificate of the run's authority (DER).
    pub authority: Vec<u8>,
    /// Certificate of the holder (DER).
    pub certificate: Vec<u8>,
    /// Private key of the holder (PKCS #8, DER).
    pub key: Vec<u8>,
    /// Time of expiry, in seconds since 1970-01-01 UTC.
    pub expires: u64,
}

impl JoinToken {
    /// Reads the token in `file`.
    ///
    /// # Errors
    /// [`NetError::Token`] if the token is damaged, [`NetError::TokenFile`] if the file can't be read.
    pub fn read_from(file: &Path) -> Result<Self, NetError> {
        read_text(file)?.parse()
    }

    /// The same token with the certificate of `renewed`.
    #[must_use]
    pub fn renewed(self, renewed: Self) -> Self {
        Self { addresses: self.addresses, ..renewed }
    }

    /// The time at which half of the rest of the token's life is over, seen from `now`.
    #[must_use]
    pub fn renew_at(&self, now: SystemTime) -> SystemTime {
        let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.expires));
        let left = expires.and_then(|expires| expires.duration_since(now).ok()).unwrap_or_default();
        now + left / 2
    }

    /// Checks that the token is valid at `now`.
    ///
    /// # Errors
    /// [`NetError::Expired`].
    pub fn check(&self, now: SystemTime) -> Result<(), NetError> {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if since_1970 < Duration::from_secs(self.expires) {
            return Ok(());
        }
        Err(self.expired())
    }

    pub(crate) fn expired(&self) -> NetError {
        let expired = i64::try_from(self.expires)
            .ok()
            .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
            .and_then(|date| date.format(&Rfc3339).ok());
        NetError::Expired {
            run_id: self.run_id.clone(),
            expired: expired.unwrap_or_else(|| format!("second {} of 1970", self.expires)),
        }
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("run_id", &self.run_id)
            .field("addresses", &self.addresses)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Lets its holder join a run, and serve the run's workers in the coordinator's place. It contains private keys: keep it
/// like a password.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HelperToken {
    /// Lets the holder join.
    pub join: JoinToken,
    /// The holder's identity as a server.
    pub server: ServerIdentity,
}

impl HelperToken {
    /// Reads the token in `file`.
    ///
    /// # Errors
    /// As [`JoinToken::read_from`].
    pub fn read_from(file: &Path) -> Result<Self, NetError> {
        read_text(file)?.parse()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(self, PREFIX, f)
    }
}

impl fmt::Display for HelperToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(self, HELPER_PREFIX, f)
    }
}

impl FromStr for JoinToken {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        from_line(text, PREFIX)
    }
}

impl FromStr for HelperToken {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        from_line(text, HELPER_PREFIX)
    }
}

/// The text of the token in `file`.
fn read_text(file: &Path) -> Result<String, NetError> {
    let failed = |source| NetError::TokenFile { path: file.to_owned(), source };
    let mut content = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    opened.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut content).map_err(failed)?;
    String::from_utf8(content)
        .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "the file is not text")))
}

fn write_line(token: &impl Serialize, prefix: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut content = postcard::to_stdvec(token).map_err(|_| fmt::Error)?;
    content.extend_from_slice(&blake3::hash(&content).as_bytes()[..CHECKSUM_BYTES]);
    write!(f, "{prefix}{}", BASE64_URL_SAFE_NO_PAD.encode(content))
}

fn from_line<T: DeserializeOwned>(text: &str, prefix: &str) -> Result<T, NetError> {
    let wrong = |reason: &str| NetError::Token { reason: reason.to_owned() };
    if text.len() > MAX_TEXT_BYTES {
        return Err(wrong("it is far too long"));
    }
    // Terminals and mail programs wrap long lines.
    let text: String = text.split_whitespace().collect();
    if text.is_empty() {
        return Err(wrong("it is empty"));
    }
    let Some(encoded) = text.strip_prefix(prefix) else {
        let other = text.strip_prefix("dipaco").and_then(|rest| rest.split_once('.'));
        return Err(match other {
            Some((version, _)) if version.parse::<u32>().is_ok() => {
                wrong("it is of another version of the program")
            }
            _ => NetError::Token { reason: format!("it does not start with `{prefix}`") },
        });
    };
    let content = BASE64_URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(|_| wrong("it has a character that does not belong there, or its end is missing"))?;
    let (content, checksum) =
        content.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(|| wrong("its end is missing"))?;
    if blake3::hash(content).as_bytes()[..CHECKSUM_BYTES] != *checksum {
        return Err(wrong("it is mistyped or its end is missing"));
    }
    postcard::from_bytes(content).map_err(|_| wrong("it is of another version of the program"))
}
