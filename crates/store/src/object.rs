//! References to objects, and hashes of content.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Name of an immutable object, with length and hash of its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRef {
    /// The object's name in the store (see [`crate::names`]).
    pub name: String,
    /// BLAKE3 hash of the content, 64 lower-case hexadecimal digits.
    pub hash: String,
    /// Length of the content in bytes.
    pub bytes: u64,
}

impl ObjectRef {
    /// The reference of `content` under `name`; nothing is stored.
    #[must_use]
    pub fn of(name: impl Into<String>, content: &[u8]) -> Self {
        Self {
            name: name.into(),
            hash: blake3::hash(content).to_hex().to_string(),
            bytes: content.len() as u64,
        }
    }
}

/// The BLAKE3 hash of `content` in hexadecimal digits. A blocking thread hashes large content: at a few GB/s a module
/// of some hundred megabytes would delay every other task of an async thread.
pub(crate) async fn hash(content: &Bytes) -> String {
    const INLINE: usize = 256 << 10;
    if content.len() > INLINE {
        let shared = content.clone();
        if let Ok(hash) = tokio::task::spawn_blocking(move || blake3::hash(&shared)).await {
            return hash.to_hex().to_string();
        }
    }
    blake3::hash(content).to_hex().to_string()
}
