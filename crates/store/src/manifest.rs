//! The manifest: the record of a run's current objects, replaced by compare-and-swap.
//!
//! Each manifest is an object of its own, `manifest/<20-digit sequence>.json`, and the highest sequence is the current
//! manifest. Create-if-absent is the only conditional write that every object store has, local directories included.
//! It serves as the compare-and-swap: of all writers that replace the same manifest one creates the next.

use std::error::Error as _;
use std::fmt;

use bytes::Bytes;
use object_store::path::Path;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::unique::unique;
use crate::{RunManifest, RunStore, StoreError};

/// Number of kept manifests: the current manifest and its predecessors, which replace it if it is damaged.
pub const KEPT_MANIFESTS: u64 = 8;

const PREFIX: &str = "manifest";
/// Version of the fields before the payload and of their checksum.
const FORMAT: u32 = 2;

/// A type of manifest.
pub trait ManifestSchema: Serialize + DeserializeOwned {
    /// Name of the schema; a manifest with another name is an error.
    const SCHEMA: &'static str;
    /// Version of the schema; a manifest with another version is an error.
    const VERSION: u32;
}

impl ManifestSchema for RunManifest {
    const SCHEMA: &'static str = "dipaco-run";
    const VERSION: u32 = 5;
}

/// Sequence number of a manifest among all manifests of the run, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ManifestSequence(pub u64);

impl ManifestSequence {
    /// No manifest yet; the first [`RunStore::replace`] of a run expects it.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for ManifestSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The current manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<M> {
    /// Content of the manifest.
    pub manifest: M,
    /// The sequence for the next [`RunStore::replace`] to expect: the highest sequence in the store, damaged manifests
    /// included.
    pub sequence: ManifestSequence,
    /// Newer manifests that are damaged and were skipped, one sentence each; empty in a healthy store. The run repeats
    /// the work that only they recorded.
    pub warnings: Vec<String>,
}

/// The fields before the payload.
#[derive(Serialize)]
struct ManifestHeader<'a> {
    format: u32,
    schema: &'a str,
    version: u32,
    sequence: u64,
    /// A text of its own for each replacement. A writer recognises its manifest by it when the reply was lost.
    writer: &'a str,
    payload_blake3: String,
}

/// A manifest file of the known format.
#[derive(Deserialize)]
struct StoredManifest<'a> {
    schema: String,
    version: u32,
    sequence: u64,
    writer: String,
    payload_blake3: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl RunStore {
    /// Loads the current manifest; `None` if the run has no manifest yet.
    ///
    /// Skips a damaged manifest in favour of its predecessor, and adds a warning to the result.
    ///
    /// # Errors
    /// [`StoreError::ManifestDamaged`] if all manifests are damaged, [`StoreError::ManifestSchema`] and
    /// [`StoreError::ManifestPayload`] if the current manifest is intact but not an `M`.
    pub async fn load<M: ManifestSchema>(&self) -> Result<Option<Loaded<M>>, StoreError> {
        // Another writer may prune a manifest between the listing and the read. Then newer manifests exist, so list
        // again.
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
                    Decoded::Intact(manifest) => {
                        // Not the sequence of this manifest: the next replacement must not reuse the number of a
                        // damaged newer manifest.
                        return Ok(Some(Loaded { manifest, sequence: ManifestSequence(newest), warnings }));
                    }
                    Decoded::Damaged(reason) => warnings.push(format!("`{name}` is damaged: {reason}")),
                }
            }
            if !pruned {
                let (store, reasons) = (self.address().to_owned(), warnings.join("; "));
                return Err(StoreError::ManifestDamaged { store, reasons });
            }
        }
    }

    /// Replaces the manifest if `expected` is still the current sequence. Returns the new sequence and prunes old
    /// manifests.
    ///
    /// Write all objects that the manifest refers to first. A lost reply is no conflict: the manifest names its writer. An old
    /// manifest that can't be removed is a warning, and the next replacement removes it.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if another writer was first, [`StoreError::Full`] if the disk is full, and
    /// [`StoreError::UnknownOutcome`] if the manifest was written and the store then failed: [`Self::load`] tells what counts.
    pub async fn replace<M: ManifestSchema>(
        &self,
        manifest: &M,
        expected: ManifestSequence,
    ) -> Result<ManifestSequence, StoreError> {
        // A stale writer stops here without a write. The conditional write below decides between writers that pass.
        let current = self.newest().await?;
        let sequence = match expected.0.checked_add(1) {
            Some(sequence) if current == expected.0 => sequence,
            _ => return Err(self.conflict(expected, current)),
        };
        let name = name(sequence);
        let content = encode(manifest, sequence, &unique());
        let content = content.map_err(|source| self.payload_error::<M>(&name, source))?;
        let path = Path::from(name.as_str());
        if !self.create_exclusive(&path, content.into()).await? {
            let current = self.newest().await?;
            return Err(self.conflict(expected, current));
        }
        // A writer that paused after its listing may create a number that other writers have used and pruned. The
        // second listing detects this: only numbers at least `KEPT_MANIFESTS` behind the newest are pruned.
        let sequences = self.sequences().await.map_err(|source| {
            let (object, store) = (name.clone(), self.address().to_owned());
            StoreError::UnknownOutcome { object, store, source: Box::new(source) }
        })?;
        let newest = sequences.last().copied().unwrap_or(sequence);
        self.prune(&sequences, newest).await;
        if newest >= sequence.saturating_add(KEPT_MANIFESTS) {
            return Err(self.conflict(expected, newest));
        }
        Ok(ManifestSequence(sequence))
    }

    /// Removes the manifests that are not kept. If one remains, this warns: it counts for nobody.
    async fn prune(&self, sequences: &[u64], newest: u64) {
        for old in sequences.iter().filter(|old| old.saturating_add(KEPT_MANIFESTS) <= newest) {
            let name = name(*old);
            // Without patience: the writer waits, and the next replacement is another attempt.
            if let Err(error) = self.remove_once(&Path::from(name.as_str())).await {
                let source = error.source().map(ToString::to_string);
                tracing::warn!(%error, source, "old manifests remain in the store until another one is written");
                return;
            }
        }
    }

    /// Checks that no manifest is newer than `sequence`.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if another writer has replaced the manifest since.
    pub async fn check_current(&self, sequence: ManifestSequence) -> Result<(), StoreError> {
        let newest = self.newest().await?;
        if newest > sequence.0 { Err(self.conflict(sequence, newest)) } else { Ok(()) }
    }

    async fn newest(&self) -> Result<u64, StoreError> {
        Ok(self.sequences().await?.last().copied().unwrap_or(ManifestSequence::NONE.0))
    }

    /// Sequences of all manifests in the store, ascending.
    async fn sequences(&self) -> Result<Vec<u64>, StoreError> {
        let listed = self.list_under(Some(&Path::from(PREFIX))).await?;
        let mut sequences: Vec<u64> = listed.iter().filter_map(|object| parse_name(&object.name)).collect();
        sequences.sort_unstable();
        Ok(sequences)
    }

    fn conflict(&self, expected: ManifestSequence, current: u64) -> StoreError {
        StoreError::Conflict { store: self.address().to_owned(), expected: expected.0, current }
    }

    fn payload_error<M: ManifestSchema>(&self, name: &str, source: serde_json::Error) -> StoreError {
        let (object, store) = (name.to_owned(), self.address().to_owned());
        StoreError::ManifestPayload { object, store, schema: M::SCHEMA, source }
    }

    /// Decodes a manifest. An intact manifest with another schema is an error.
    fn decode<M: ManifestSchema>(
        &self,
        name: &str,
        sequence: u64,
        content: &[u8],
    ) -> Result<Decoded<M>, StoreError> {
        let stored = match parse(sequence, content) {
            Ok(stored) => stored,
            Err(Unreadable::Damaged(reason)) => return Ok(Decoded::Damaged(reason)),
            Err(Unreadable::Format(found)) => {
                let (object, store) = (name.to_owned(), self.address().to_owned());
                return Err(StoreError::ManifestFormat { object, store, found, known: FORMAT });
            }
        };
        if (stored.schema.as_str(), stored.version) != (M::SCHEMA, M::VERSION) {
            return Err(StoreError::ManifestSchema {
                object: name.to_owned(),
                store: self.address().to_owned(),
                schema: M::SCHEMA,
                version: M::VERSION,
                found_schema: stored.schema,
                found_version: stored.version,
            });
        }
        let manifest = serde_json::from_str(stored.payload.get());
        manifest.map(Decoded::Intact).map_err(|source| self.payload_error::<M>(name, source))
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

fn encode<M: ManifestSchema>(manifest: &M, sequence: u64, writer: &str) -> Result<Bytes, serde_json::Error> {
    let payload = serde_json::to_string_pretty(manifest)?;
    let head = ManifestHeader {
        format: FORMAT,
        schema: M::SCHEMA,
        version: M::VERSION,
        sequence,
        writer,
        payload_blake3: checksum(M::SCHEMA, M::VERSION, sequence, writer, &payload),
    };
    // Append the payload as text. A run of thousands of paths rewrites megabytes of JSON often, and a second
    // serialization of it would double the cost.
    let mut content = serde_json::to_vec(&head)?;
    content.pop();
    content.reserve(payload.len() + 16);
    content.extend_from_slice(br#","payload":"#);
    content.extend_from_slice(payload.as_bytes());
    content.extend_from_slice(b"}\n");
    Ok(content.into())
}

/// An intact manifest, or the reason why it is damaged.
enum Decoded<M> {
    Intact(M),
    Damaged(String),
}

/// Reasons why a manifest is unreadable.
#[derive(Debug)]
enum Unreadable {
    Damaged(String),
    /// Not skipped like a damaged manifest: a program must not go back to a state before another program's manifest.
    Format(u32),
}

fn parse(sequence: u64, content: &[u8]) -> Result<StoredManifest<'_>, Unreadable> {
    #[derive(Deserialize)]
    struct AnyFormat {
        format: u32,
    }
    let not_json =
        |error| Unreadable::Damaged(format!("its {} bytes are not a manifest ({error})", content.len()));
    let AnyFormat { format } = serde_json::from_slice(content).map_err(not_json)?;
    if format != FORMAT {
        return Err(Unreadable::Format(format));
    }
    let stored: StoredManifest<'_> = serde_json::from_slice(content).map_err(not_json)?;
    let StoredManifest { schema, version, writer, .. } = &stored;
    let expected = checksum(schema, *version, stored.sequence, writer, stored.payload.get());
    if expected != stored.payload_blake3 {
        return Err(Unreadable::Damaged("its checksum does not match its content".to_owned()));
    }
    if stored.sequence != sequence {
        return Err(Unreadable::Damaged(format!("it is the manifest of sequence {}", stored.sequence)));
    }
    Ok(stored)
}

/// Hash of the payload as it stands in the file, and of the fields that identify it.
fn checksum(schema: &str, version: u32, sequence: u64, writer: &str, payload: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{schema}\n{version}\n{sequence}\n{writer}\n").as_bytes());
    hasher.update(payload.as_bytes()).finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests;
