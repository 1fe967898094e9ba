//! References to objects.

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
