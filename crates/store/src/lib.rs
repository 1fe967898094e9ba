//! The run store: everything that a run keeps, at one address.
//!
//! *Objects* are immutable and named by what they are ([`names`]); [`RunStore::put`] publishes one atomically and
//! returns an [`ObjectRef`] (name, BLAKE3 hash, length), and [`RunStore::get`] verifies both, so that a cut or damaged
//! object is told and never read. What is current is said by one *manifest* ([`RunStore::load`],
//! [`RunStore::replace`]), replaced by compare-and-swap: of two writers that start from the same manifest exactly one
//! wins, and the other learns of it.
//!
//! ```
//! use dipaco_store::{ManifestSchema, RunStore, Sequence, names};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Progress { round: u64 }
//! impl ManifestSchema for Progress {
//!     const SCHEMA: &'static str = "progress";
//!     const VERSION: u32 = 1;
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let store = RunStore::in_memory();
//! let module = store.put(&names::router(0), "weights".into()).await?;
//! assert_eq!(store.get(&module).await?, "weights");
//!
//! let first = store.replace(&Progress { round: 1 }, Sequence::NONE).await?;
//! assert!(store.replace(&Progress { round: 9 }, Sequence::NONE).await.is_err());
//! assert_eq!(store.load::<Progress>().await?.map(|m| m.sequence), Some(first));
//! # Ok::<(), dipaco_store::StoreError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The manifest of a training run is [`RunManifest`]; the mechanism takes any [`ManifestSchema`].
//!
//! This package knows no tensors, holds no caches and never decides what may be deleted.

mod address;
mod error;
mod interrupted;
mod manifest;
pub mod names;
mod object;
mod run_manifest;
mod store;

pub use address::StoreOptions;
pub use error::StoreError;
pub use manifest::{KEPT_MANIFESTS, Loaded, ManifestSchema, Sequence};
pub use object::ObjectRef;
pub use run_manifest::{
    Best, ChangeRecord, CheckpointRecord, CompletedLeaseRecord, CountRecord, FragmentRecord, GradientRecord,
    KeptVersion, ModuleRecord, PathRecord, RunManifest, SeedRecord, ShardRecord, TrainingRecord,
};
pub use store::{RunStore, StoredObject};
