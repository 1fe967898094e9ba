//! The manifest: what is current, replaced by compare-and-swap.
//!
//! Each manifest is an object of its own, `manifest/<20-digit sequence>.json`, created exclusively, and the highest
//! sequence is the current one. Create-if-absent is the one conditional write that every object store has, local
//! directories included, so it is the compare-and-swap: of all who replace the same manifest one creates the next.

use std::fmt;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, PutMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{RunStore, StoreError};

/// How many manifests are kept: the current one and those before it, for the case that it is damaged.
pub const KEPT_MANIFESTS: u64 = 8;

const PREFIX: &str = "manifest";
const FORMAT: u32 = 1;

/// A type that can be a run's manifest.
pub trait ManifestSchema: Serialize + DeserializeOwned {
    /// The schema's name; a manifest of another name is refused.
    const SCHEMA: &'static str;
    /// The schema's version; a manifest of another version is refused.
    const VERSION: u32;
}

/// The place of a manifest in the order of all that a run had, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl Sequence {
    /// No manifest yet: what the first [`RunStore::replace`] of a run expects.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The current manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<M> {
    /// The manifest's content.
    pub manifest: M,
    /// What [`RunStore::replace`] must expect. It is the highest sequence that is present, damaged ones included.
    pub sequence: Sequence,
    /// Newer manifests that are damaged and were passed over, one sentence each; empty in a healthy store. Work that
    /// only they recorded is done again.
    pub warnings: Vec<String>,
}

/// What stands before the payload.
#[derive(Serialize)]
struct Head<'a> {
    format: u32,
    schema: &'a str,
    version: u32,
    sequence: u64,
    payload_blake3: String,
}

#[derive(Deserialize)]
struct Read<'a> {
    schema: String,
    version: u32,
    sequence: u64,
    payload_blake3: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl RunStore {
    /// The current manifest, or `None` when the run has none yet.
    ///
    /// One that is damaged is passed over in favour of the one before it, with a warning in the result.
    ///
    /// # Errors
    /// [`StoreError::ManifestDamaged`] when none is intact, [`StoreError::ManifestSchema`] and
    /// [`StoreError::ManifestPayload`] when the current one is intact but not an `M`.
    pub async fn load<M: ManifestSchema>(&self) -> Result<Option<Loaded<M>>, StoreError> {
        // A manifest that is pruned between the listing and the reading means that newer ones are there.
        loop {
            let sequences = self.sequences().await?;
            let Some(&newest) = sequences.last() else { return Ok(None) };
            let mut warnings = Vec::new();
            let mut pruned = false;
            for &sequence in sequences.iter().rev() {
                let name = name(sequence);
                let content = match self.read(&Path::from(name.as_str())).await {
                    Ok(content) => content,
                    Err(StoreError::Missing { .. }) => {
                        pruned = true;
                        break;
                    }
                    Err(error) => return Err(error),
                };
                match self.decode(&name, sequence, &content)? {
                    Ok(manifest) => {
                        return Ok(Some(Loaded { manifest, sequence: Sequence(newest), warnings }));
                    }
                    Err(reason) => warnings.push(format!("`{name}` is damaged: {reason}")),
                }
            }
            if !pruned {
                let (store, reasons) = (self.address().to_owned(), warnings.join("; "));
                return Err(StoreError::ManifestDamaged { store, reasons });
            }
        }
    }

    /// Makes `manifest` the current one, if `expected` still is; returns its sequence and prunes old ones.
    ///
    /// Write the objects that it refers to before. A retry inside a cloud store's client may report a conflict for a
    /// write that succeeded: load and look whose manifest is current.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when another writer was first, [`StoreError::Full`] when the disk is full.
    pub async fn replace<M: ManifestSchema>(
        &self,
        manifest: &M,
        expected: Sequence,
    ) -> Result<Sequence, StoreError> {
        let current = self.newest().await?;
        let sequence = match expected.0.checked_add(1) {
            Some(sequence) if current == expected.0 => sequence,
            _ => return Err(self.conflict(expected, current)),
        };
        let name = name(sequence);
        let content = encode(manifest, sequence).map_err(|source| self.payload_error::<M>(&name, source))?;
        let path = Path::from(name.as_str());
        match self.write(&path, [content], PutMode::Create).await {
            Ok(()) => {}
            Err(Error::AlreadyExists { .. }) => {
                let current = self.newest().await?;
                return Err(self.conflict(expected, current));
            }
            Err(source) => return Err(self.failed("write", &name, source)),
        }
        // A writer that slept since it listed may create a number that others have used and pruned. It finds that
        // out here: numbers are pruned only when they are this far behind.
        let sequences = self.sequences().await?;
        let newest = sequences.last().copied().unwrap_or(sequence);
        if newest >= sequence.saturating_add(KEPT_MANIFESTS) {
            self.remove(&path).await?;
            return Err(self.conflict(expected, newest));
        }
        for old in sequences.into_iter().filter(|old| old.saturating_add(KEPT_MANIFESTS) <= newest) {
            self.remove(&Path::from(self::name(old))).await?;
        }
        Ok(Sequence(sequence))
    }

    async fn newest(&self) -> Result<u64, StoreError> {
        Ok(self.sequences().await?.last().copied().unwrap_or(Sequence::NONE.0))
    }

    /// The sequences of all manifests present, ascending.
    async fn sequences(&self) -> Result<Vec<u64>, StoreError> {
        let listed = self.list_under(Some(&Path::from(PREFIX))).await?;
        let mut sequences: Vec<u64> = listed.iter().filter_map(|object| parse_name(&object.name)).collect();
        sequences.sort_unstable();
        Ok(sequences)
    }

    fn conflict(&self, expected: Sequence, current: u64) -> StoreError {
        StoreError::Conflict { store: self.address().to_owned(), expected: expected.0, current }
    }

    fn payload_error<M: ManifestSchema>(&self, name: &str, source: serde_json::Error) -> StoreError {
        let (object, store) = (name.to_owned(), self.address().to_owned());
        StoreError::ManifestPayload { object, store, schema: M::SCHEMA, source }
    }

    /// The outer result is for an intact manifest of another schema, the inner one for a damaged one.
    fn decode<M: ManifestSchema>(
        &self,
        name: &str,
        sequence: u64,
        content: &[u8],
    ) -> Result<Result<M, String>, StoreError> {
        let read = match parse(sequence, content) {
            Ok(read) => read,
            Err(Unread::Damaged(reason)) => return Ok(Err(reason)),
            Err(Unread::Format(found)) => {
                let (object, store) = (name.to_owned(), self.address().to_owned());
                return Err(StoreError::ManifestFormat { object, store, found, known: FORMAT });
            }
        };
        if (read.schema.as_str(), read.version) != (M::SCHEMA, M::VERSION) {
            return Err(StoreError::ManifestSchema {
                object: name.to_owned(),
                store: self.address().to_owned(),
                schema: M::SCHEMA,
                version: M::VERSION,
                found_schema: read.schema,
                found_version: read.version,
            });
        }
        let manifest = serde_json::from_str(read.payload.get());
        manifest.map(Ok).map_err(|source| self.payload_error::<M>(name, source))
    }
}

pub(crate) fn is_manifest(name: &str) -> bool {
    name.split('/').next() == Some(PREFIX)
}

fn name(sequence: u64) -> String {
    format!("{PREFIX}/{sequence:020}.json")
}

fn parse_name(object: &str) -> Option<u64> {
    let sequence = object.strip_prefix(PREFIX)?.strip_prefix('/')?.strip_suffix(".json")?.parse().ok()?;
    (name(sequence) == object).then_some(sequence)
}

fn encode<M: ManifestSchema>(manifest: &M, sequence: u64) -> Result<Bytes, serde_json::Error> {
    let payload = serde_json::to_string_pretty(manifest)?;
    let head = Head {
        format: FORMAT,
        schema: M::SCHEMA,
        version: M::VERSION,
        sequence,
        payload_blake3: checksum(M::SCHEMA, M::VERSION, sequence, &payload),
    };
    // The payload is JSON already: a run of thousands of paths writes megabytes of it again and again.
    let mut content = serde_json::to_vec(&head)?;
    content.pop();
    content.reserve(payload.len() + 16);
    content.extend_from_slice(br#","payload":"#);
    content.extend_from_slice(payload.as_bytes());
    content.extend_from_slice(b"}\n");
    Ok(content.into())
}

/// Why a manifest was not read.
#[derive(Debug)]
enum Unread {
    Damaged(String),
    /// Not passed over like a damaged one: an older program must not fall back behind a newer one's manifest.
    Format(u32),
}

fn parse(sequence: u64, content: &[u8]) -> Result<Read<'_>, Unread> {
    #[derive(Deserialize)]
    struct AnyFormat {
        format: u32,
    }
    let not_json =
        |error| Unread::Damaged(format!("its {} bytes are not a manifest ({error})", content.len()));
    let AnyFormat { format } = serde_json::from_slice(content).map_err(not_json)?;
    if format != FORMAT {
        return Err(Unread::Format(format));
    }
    let read: Read<'_> = serde_json::from_slice(content).map_err(not_json)?;
    let expected = checksum(&read.schema, read.version, read.sequence, read.payload.get());
    if expected != read.payload_blake3 {
        return Err(Unread::Damaged("its checksum does not match its content".to_owned()));
    }
    if read.sequence != sequence {
        return Err(Unread::Damaged(format!("it is the manifest of sequence {}", read.sequence)));
    }
    Ok(read)
}

/// Covers the payload as it stands in the file, and what says how to read it.
fn checksum(schema: &str, version: u32, sequence: u64, payload: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{schema}\n{version}\n{sequence}\n").as_bytes()).update(payload.as_bytes());
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Progress {
        round: u64,
    }

    impl ManifestSchema for Progress {
        const SCHEMA: &'static str = "progress";
        const VERSION: u32 = 1;
    }

    #[test]
    fn names_sort_like_numbers() {
        assert_eq!(name(42), "manifest/00000000000000000042.json");
        assert_eq!(parse_name(&name(u64::MAX)), Some(u64::MAX));
        for other in ["manifest/42.json", "manifest/x.json", "manifest/00000000000000000042.json.bak"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_manifest(content in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse(1, &content).is_err());
        }

        #[test]
        fn any_flipped_bit_and_any_cut_is_found(round: u64, at: prop::sample::Index, bit in 0..8_u8) {
            let whole = encode(&Progress { round }, 7).unwrap();
            prop_assert!(parse(7, &whole).is_ok());
            let at = at.index(whole.len() - 1); // the last byte is the line's end
            prop_assert!(parse(7, &whole[..at]).is_err());
            let mut damaged = whole.to_vec();
            damaged[at] ^= 1 << bit;
            prop_assert!(parse(7, &damaged).is_err());
        }
    }
}
