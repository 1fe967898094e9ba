//! The global weights that a worker has downloaded.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_path::{Layout, module_files};
use dipaco_store::ObjectRef;
use dipaco_sync::FragmentId;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::WorkerError;
use super::cached_fragments::{CachedFragment, CachedFragments};
use crate::TrainError;
use crate::blocking::blocking;
use crate::client::{ClientError, Transfer};
use dipaco_protocol::{FragmentWeights, PIECES_AT_ONCE};

/// Global weights by fragment. Weights that did not change since an earlier lease are not downloaded again. The disk of the
/// worker's cache holds what has no room in memory: of the paths whose states are there, at most half of what the states take.
pub(super) struct FragmentCache {
    transfer: Arc<Transfer>,
    layout: Layout,
    cached: Mutex<CachedFragments>,
}

impl FragmentCache {
    /// An empty cache on the disk of `folder`, which need not exist, with `room` bytes of memory for weights besides those of the
    /// next lease.
    pub(super) fn new(transfer: Arc<Transfer>, layout: Layout, folder: PathBuf, room: usize) -> Self {
        Self { transfer, layout, cached: Mutex::new(CachedFragments::new(folder, room)) }
    }

    /// Brings the global weights of a lease into memory, several fragments at a time: those that the cache lacks are
    /// downloaded.
    pub(super) async fn fetch(&self, weights: &[FragmentWeights]) -> Result<(), WorkerError> {
        let mut cached = self.cached.lock().await;
        let mut wanted = weights.to_vec();
        wanted.retain(|wanted| {
            let has = |cached: &CachedFragment| cached.object.hash == wanted.object.hash;
            let own = cached.get(wanted.fragment).filter(|own| has(own));
            // At the start of a run all modules of a level are copies of the seed: one download serves them all.
            let Some(same) = own.or_else(|| cached.with_hash(&wanted.object.hash)) else { return true };
            let same = same.under(wanted.object.clone());
            let on_disk = same.values().is_none();
            cached.insert(wanted.fragment, same);
            on_disk
        });
        let mut wanted = wanted.into_iter();
        let mut in_flight = JoinSet::new();
        loop {
            while in_flight.len() < PIECES_AT_ONCE
                && let Some(wanted) = wanted.next()
            {
                let FragmentWeights { fragment, .. } = wanted;
                let download = Download {
                    transfer: self.transfer.clone(),
                    specs: self.layout.fragment(fragment.module.level, fragment.index)?.specs.clone(),
                    // Taken out of the cache, so that a change is added to the values without a copy.
                    cached: cached.remove(fragment),
                    wanted,
                };
                in_flight.spawn(async move { Ok::<_, WorkerError>((fragment, download.run().await?)) });
            }
            let Some(downloaded) = in_flight.join_next().await else { return Ok(()) };
            let (fragment, downloaded) = downloaded??;
            cached.insert(fragment, downloaded);
        }
    }

    /// The last downloaded weights of a fragment.
    pub(super) async fn get(&self, fragment: FragmentId) -> Result<Arc<Vec<f32>>, WorkerError> {
        let cached = self.cached.lock().await;
        let values = cached.get(fragment).and_then(|cached| cached.values().cloned());
        values.ok_or_else(|| {
            let what = format!("the weights of fragment {fragment} were not downloaded before training");
            TrainError::Internal { what }.into()
        })
    }

    /// Keeps the weights of the needed fragments in memory and those of `others` in their order, as far as they fit, and the
    /// rest of `others` on the disk. Drops all else.
    pub(super) async fn keep(&self, needed: BTreeSet<FragmentId>, others: impl Iterator<Item = FragmentId>) {
        self.cached.lock().await.keep(&needed, others).await;
    }
}

/// The download of one fragment's weights.
struct Download {
    transfer: Arc<Transfer>,
    specs: Arc<[TensorSpec]>,
    wanted: FragmentWeights,
    cached: Option<CachedFragment>,
}

impl Download {
    /// Reads the weights from the disk, or downloads the changes since the cached weights, or else the weights themselves.
    async fn run(mut self) -> Result<CachedFragment, WorkerError> {
        if let Some(cached) = self.cached.take() {
            if cached.object.hash == self.wanted.object.hash {
                if let Some(loaded) = cached.load().await {
                    return Ok(loaded);
                }
            } else if let Some(changed) = self.changed(cached).await? {
                return Ok(CachedFragment::new(self.wanted.object, changed));
            }
        }
        let object = self.wanted.object;
        let bytes = self.transfer.object_of(self.wanted.fragment, &object).await?;
        let (name, specs) = (object.name.clone(), self.specs);
        let module = blocking(move || module_files::decode(&name, &bytes, specs)).await??;
        Ok(CachedFragment::new(object, module.values))
    }

    /// Adds the downloaded changes to the cached weights. Returns `None` if no chain of changes leads from the cached
    /// weights to the wanted weights, or a change of the chain is gone.
    async fn changed(&self, cached: CachedFragment) -> Result<Option<Vec<f32>>, WorkerError> {
        let FragmentWeights { fragment, object, changes, .. } = &self.wanted;
        let Some(first) = changes.iter().position(|change| change.from == cached.object.hash) else {
            return Ok(None);
        };
        let Some(mut values) = cached.into_values().await else { return Ok(None) };
        for change in &changes[first..] {
            let bytes = match self.transfer.object_of(*fragment, &change.object).await {
                Ok(bytes) => bytes,
                // An outer step since the grant may have dropped it. The weights of a lease stay as long as it lasts.
                Err(ClientError::LeaseLost { reason }) => {
                    tracing::debug!(%fragment, reason, "a change is gone; downloading the weights instead");
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            let module = fragment.module;
            let added = blocking(move || {
                let change = dipaco_codec::decode(&bytes, values.len())
                    .map_err(|why| WorkerError::WeightChange { module, why })?;
                values.iter_mut().zip(change).for_each(|(value, change)| *value += change);
                Ok::<_, WorkerError>(values)
            });
            values = added.await??;
        }
        let (specs, name) = (self.specs.clone(), object.name.clone());
        let summed = blocking(move || {
            let module = ModuleWeights { specs, values };
            let sum = ObjectRef::of(name, &module_files::encode(&module)?);
            Ok::<_, WorkerError>((module.values, sum))
        });
        let (values, sum) = summed.await??;
        // All workers must train from the weights in the store, bit for bit.
        if sum != *object {
            tracing::warn!(%fragment, "the changes do not lead to the weights; downloading the weights instead");
            return Ok(None);
        }
        Ok(Some(values))
    }
}
