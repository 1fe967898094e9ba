//! The run store: all durable data of a run, at one address.
//!
//! *Objects* are immutable, and their names describe their content ([`names`]). [`RunStore::put`] publishes an object
//! atomically and returns an [`ObjectRef`] (name, BLAKE3 hash, length). [`RunStore::get`] verifies hash and length, so
//! a truncated or damaged object is an error and never data. One *manifest* ([`RunStore::load`],
//! [`RunStore::replace`]) records the current objects. Compare-and-swap replaces it: of two writers that start from
//! the same manifest exactly one wins, and the other gets an error.
//!
//! ```
//! use dipaco_store::{ManifestSchema, RunStore, ManifestSequence, names};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct RoundManifest { round: u64 }
//! impl ManifestSchema for RoundManifest {
//!     const SCHEMA: &'static str = "round";
//!     const VERSION: u32 = 1;
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let store = RunStore::in_memory();
//! let module = store.put(&names::router(0), "weights".into()).await?;
//! assert_eq!(store.get(&module).await?, "weights");
//!
//! let first = store.replace(&RoundManifest { round: 1 }, ManifestSequence::NONE).await?;
//! assert!(store.replace(&RoundManifest { round: 9 }, ManifestSequence::NONE).await.is_err());
//! assert_eq!(store.load::<RoundManifest>().await?.map(|m| m.sequence), Some(first));
//! # Ok::<(), dipaco_store::StoreError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The manifest of a training run is [`RunManifest`]; the mechanism works with any [`ManifestSchema`].
//!
//! A store with [`Patience`] repeats what fails, for some time. This package knows no tensors and has no caches. The caller
//! decides about deletions.

#![forbid(unsafe_code)]

mod address;
mod counted;
mod deletion;
mod error;
mod folder;
mod hash;
mod link;
mod link_reader;
mod manifest;
mod parts;
mod patience;
mod pins;
mod probe;
mod remote;
mod store;
mod sweep;
mod transfer;
mod unfinished;
mod unique;

pub use address::StoreOptions;
pub use counted::StoreLoad;
pub use dipaco_ledger::names;
pub use dipaco_ledger::{
    ChangeRecord, CheckpointRecord, CompletedLeaseRecord, ContributorRecord, CountRecord, EarlyStoppingBest,
    ExtensionRecord, FragmentRecord, GradientRecord, KeptVersion, ModuleRecord, ObjectRef, PathRecord,
    QuarantineRecord, RollbackRecord, RunManifest, SeedRecord, ShardRecord, TrainingRecord,
};
pub use error::{RemoteCause, StoreError};
pub use link_reader::{LinkError, LinkReader};
pub use manifest::{KEPT_MANIFESTS, Loaded, ManifestSchema, ManifestSequence};
pub use parts::{ObjectParts, PARTS_IN_MEMORY};
pub use patience::Patience;
pub use store::{RunStore, StoredObject};
pub use unfinished::{DiskError, UnfinishedObject};
