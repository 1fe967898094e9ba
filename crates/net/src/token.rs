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
const WORKER: Kind =
    Kind { prefix: PREFIX, name: "join token", holder: "a worker", file: "secrets/join.token" };
const HELPER: Kind = Kind {
    prefix: "dipaco-helper1.",
    name: "token of a synchronizer",
    holder: "a synchronizer",
    file: "secrets/synchronizer.token",
};
const MAX_TEXT_BYTES: usize = 64 << 10;
const CHECKSUM_BYTES: usize = 4;

/// A kind of token.
#[derive(Clone, Copy)]
struct Kind {
    /// The beginning of its line.
    prefix: &'static str,
    name: &'static str,
    /// Who joins with it.
    holder: &'static str,
    /// Its file in the folder of the coordinator's run.
    file: &'static str,
}

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
        read_text(file, WORKER)?.parse()
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
        read_text(file, HELPER)?.parse()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(self, WORKER, f)
    }
}

impl fmt::Display for HelperToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(self, HELPER, f)
    }
}

impl FromStr for JoinToken {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        from_line(text, WORKER)
    }
}

impl FromStr for HelperToken {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        from_line(text, HELPER)
    }
}

/// The text of the token of a kind in the file at `path`.
fn read_text(path: &Path, kind: Kind) -> Result<String, NetError> {
    let Kind { name, file, .. } = kind;
    let failed = |source| NetError::TokenFile { name, path: path.to_owned(), file, source };
    let mut content = Vec::new();
    let opened = File::open(path).map_err(failed)?;
    opened.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut content).map_err(failed)?;
    String::from_utf8(content)
        .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "the file is not text")))
}

fn write_line(token: &impl Serialize, kind: Kind, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut content = postcard::to_stdvec(token).map_err(|_| fmt::Error)?;
    content.extend_from_slice(&blake3::hash(&content).as_bytes()[..CHECKSUM_BYTES]);
    write!(f, "{}{}", kind.prefix, BASE64_URL_SAFE_NO_PAD.encode(content))
}

fn from_line<T: DeserializeOwned>(text: &str, kind: Kind) -> Result<T, NetError> {
    let Kind { prefix, name, file, .. } = kind;
    let wrong = |reason: &str| NetError::Token { name, reason: reason.to_owned(), file };
    if text.len() > MAX_TEXT_BYTES {
        return Err(wrong("it is far too long"));
    }
    // Terminals and mail programs wrap long lines.
    let text: String = text.split_whitespace().collect();
    if text.is_empty() {
        return Err(wrong("it is empty"));
    }
    let Some(encoded) = text.strip_prefix(prefix) else {
        if let Some(other) = [WORKER, HELPER].into_iter().find(|other| text.starts_with(other.prefix)) {
            return Err(wrong(&format!("it is the token of {}", other.holder)));
        }
        let other = text.strip_prefix("dipaco").and_then(|rest| rest.split_once('.'));
        return Err(match other {
            Some((version, _)) if version.parse::<u32>().is_ok() => {
                wrong("it is of another version of the program")
            }
            _ => wrong(&format!("it does not start with `{prefix}`")),
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
