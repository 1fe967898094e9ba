//! References to objects, and their verification.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Names one immutable object and says what its content must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRef {
    /// The object's name in the store (see [`crate::names`]).
    pub name: String,
    /// The BLAKE3 hash of its content, 64 lower-case hexadecimal digits.
    pub hash: String,
    /// The length of its content in bytes.
    pub bytes: u64,
}

impl ObjectRef {
    /// The reference that `content` under `name` has, whether or not it is stored.
    #[must_use]
    pub fn of(name: impl Into<String>, content: &[u8]) -> Self {
        Self {
            name: name.into(),
            hash: blake3::hash(content).to_hex().to_string(),
            bytes: content.len() as u64,
        }
    }
}

/// The BLAKE3 hash of `content` in hexadecimal digits. Large content is hashed beside the async threads: at a few
/// GB/s a module of some hundred megabytes would hold up everything else that the thread serves.
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
