//! The global weights that a worker has downloaded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_path::{Layout, module_files};
use dipaco_store::ObjectRef;
use dipaco_sync::FragmentId;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::WorkerError;
use crate::TrainError;
use crate::blocking::blocking;
use crate::client::Transfer;
use dipaco_protocol::{FragmentWeights, PIECES_AT_ONCE};

/// Bytes of weights that are kept besides those of the next lease.
const OTHERS: usize = 128 << 20;

/// Global weights of a fragment and the object that holds them.
#[derive(Clone)]
struct CachedFragment {
    object: ObjectRef,
    values: Arc<Vec<f32>>,
}

/// Global weights by fragment. Weights that did not change since an earlier lease are not downloaded again.
pub(super) struct FragmentCache {
    transfer: Arc<Transfer>,
    layout: Layout,
    cached: Mutex<BTreeMap<FragmentId, CachedFragment>>,
}

impl FragmentCache {
    /// An empty cache.
    pub(super) fn new(transfer: Arc<Transfer>, layout: Layout) -> Self {
        Self { transfer, layout, cached: Mutex::default() }
    }

    /// Downloads the global weights of a lease that the cache lacks, several fragments at a time.
    pub(super) async fn fetch(&self, weights: &[FragmentWeights]) -> Result<(), WorkerError> {
        let mut cached = self.cached.lock().await;
        let stale = |wanted: &&FragmentWeights| {
            cached.get(&wanted.fragment).is_none_or(|cached| cached.object.hash != wanted.object.hash)
        };
        let mut wanted: Vec<FragmentWeights> = weights.iter().filter(stale).cloned().collect();
        // At the start of a run all modules of a level are copies of the seed: one download serves them all.
        wanted.retain(|wanted| {
            let same = cached.values().find(|cached| cached.object.hash == wanted.object.hash);
            let Some(values) = same.map(|cached| cached.values.clone()) else { return true };
            cached.insert(wanted.fragment, CachedFragment { object: wanted.object.clone(), values });
            false
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
                    cached: cached.remove(&fragment),
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
        let values = cached.get(&fragment).map(|cached| cached.values.clone());
        values.ok_or_else(|| {
            let what = format!("the weights of fragment {fragment} were not downloaded before training");
            TrainError::Internal { what }.into()
        })
    }

    /// Drops the weights of all fragments but the needed ones, and as many of the others, in their order, as fit into
    /// [`OTHERS`].
    pub(super) async fn keep(&self, needed: BTreeSet<FragmentId>, others: impl Iterator<Item = FragmentId>) {
        let mut cached = self.cached.lock().await;
        let (mut kept, mut room) = (needed, OTHERS);
        for fragment in others {
            let Some(found) = cached.get(&fragment).filter(|_| !kept.contains(&fragment)) else { continue };
            let Some(left) = room.checked_sub(size_of_val(found.values.as_slice())) else { break };
            room = left;
            kept.insert(fragment);
        }
        cached.retain(|fragment, _| kept.contains(fragment));
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
    /// Downloads the changes since the cached weights, or else the weights themselves.
    async fn run(mut self) -> Result<CachedFragment, WorkerError> {
        if let Some(changed) = self.changed().await? {
            return Ok(CachedFragment { object: self.wanted.object, values: Arc::new(changed) });
        }
        let object = self.wanted.object;
        let bytes = self.transfer.object_of(self.wanted.fragment, &object).await?;
        let (name, specs) = (object.name.clone(), self.specs);
        let module = blocking(move || module_files::decode(&name, &bytes, specs)).await??;
        Ok(CachedFragment { object, values: Arc::new(module.values) })
    }

    /// Adds the downloaded changes to the cached weights. Returns `None` if no chain of changes leads from the cached
    /// weights to the wanted weights.
    async fn changed(&mut self) -> Result<Option<Vec<f32>>, WorkerError> {
        let FragmentWeights { fragment, object, changes, .. } = &self.wanted;
        let Some(cached) = self.cached.take() else { return Ok(None) };
        let Some(first) = changes.iter().position(|change| change.from == cached.object.hash) else {
            return Ok(None);
        };
        let mut values = Arc::unwrap_or_clone(cached.values);
        for change in &changes[first..] {
            let bytes = self.transfer.object_of(*fragment, &change.object).await?;
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
