//! The global weights that a worker begins leases with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_store::ObjectRef;
use dipaco_sync::FragmentId;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::TrainError;
use crate::blocking::blocking;
use crate::client::Transfer;
use dipaco_path::Layout;
use dipaco_path::module_files;
use dipaco_protocol::{FragmentWeights, PIECES_AT_ONCE};

/// Weights with their object.
type CachedFragment = (ObjectRef, Arc<Vec<f32>>);

/// Global weights that a worker has, with their objects: those that did not change are not fetched again.
pub(super) struct FragmentCache {
    transfer: Arc<Transfer>,
    layout: Layout,
    held: Mutex<BTreeMap<FragmentId, CachedFragment>>,
}

impl FragmentCache {
    /// None yet.
    pub(super) fn new(transfer: Arc<Transfer>, layout: Layout) -> Self {
        Self { transfer, layout, held: Mutex::default() }
    }

    /// Fetches global weights, several fragments at a time, but for those that did not change since an earlier lease.
    pub(super) async fn fetch(&self, weights: &[FragmentWeights]) -> Result<(), TrainError> {
        self.transfer.routes.learn(weights);
        let mut held = self.held.lock().await;
        let current = |wanted: &&FragmentWeights| {
            held.get(&wanted.fragment).is_none_or(|(held, _)| held.hash != wanted.object.hash)
        };
        let mut wanted: Vec<FragmentWeights> = weights.iter().filter(current).cloned().collect();
        // A run begins with copies of the seed in all modules of a level.
        wanted.retain(|wanted| {
            let same = held.values().find(|(object, _)| object.hash == wanted.object.hash);
            let Some(values) = same.map(|(_, values)| values.clone()) else { return true };
            held.insert(wanted.fragment, (wanted.object.clone(), values));
            false
        });
        let mut wanted = wanted.into_iter();
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < PIECES_AT_ONCE
                && let Some(wanted) = wanted.next()
            {
                let FragmentWeights { fragment, .. } = wanted;
                let fetching = Fetching {
                    transfer: self.transfer.clone(),
                    specs: self.layout.fragment(fragment.module.level, fragment.index)?.specs.clone(),
                    held: held.remove(&fragment),
                    wanted,
                };
                under_way.spawn(async move { fetching.fetch().await.map(|fetched| (fragment, fetched)) });
            }
            let Some(fetched) = under_way.join_next().await else { return Ok(()) };
            let (fragment, (object, values)) = fetched.map_err(|source| TrainError::Thread { source })??;
            held.insert(fragment, (object, Arc::new(values)));
        }
    }

    /// The weights of a fragment that were fetched last.
    pub(super) async fn get(&self, fragment: FragmentId) -> Result<Arc<Vec<f32>>, TrainError> {
        let lacks = || TrainError::ManifestLacks { what: format!("weights of {fragment}") };
        self.held.lock().await.get(&fragment).map(|(_, values)| values.clone()).ok_or_else(lacks)
    }

    /// Forgets all but those of these fragments.
    pub(super) async fn keep(&self, used: &BTreeSet<FragmentId>) {
        self.held.lock().await.retain(|fragment, _| used.contains(fragment));
    }
}

/// The weights of one fragment on their way.
struct Fetching {
    transfer: Arc<Transfer>,
    specs: Arc<[TensorSpec]>,
    wanted: FragmentWeights,
    held: Option<CachedFragment>,
}

impl Fetching {
    /// Fetches the changes that lead from what is held to what is wanted, or the weights as a whole.
    async fn fetch(mut self) -> Result<(ObjectRef, Vec<f32>), TrainError> {
        if let Some(changed) = self.change().await? {
            return Ok((self.wanted.object, changed));
        }
        let object = self.wanted.object;
        let bytes = self.transfer.object_of(self.wanted.fragment, &object).await?;
        let (name, specs) = (object.name.clone(), self.specs);
        let module = blocking(move || module_files::decode(&name, &bytes, specs)).await??;
        Ok((object, module.values))
    }

    /// Adds to weights that are held the changes that lead to others; `None` when none of them is a change of what is held.
    async fn change(&mut self) -> Result<Option<Vec<f32>>, TrainError> {
        let FragmentWeights { fragment, object, changes, .. } = &self.wanted;
        let Some((held, values)) = self.held.take() else { return Ok(None) };
        let Some(first) = changes.iter().position(|change| change.from == held.hash) else { return Ok(None) };
        let mut values = Arc::unwrap_or_clone(values);
        for change in &changes[first..] {
            let bytes = self.transfer.object_of(*fragment, &change.object).await?;
            let module = fragment.module;
            values = blocking(move || {
                let decoded = dipaco_codec::decode(&bytes, values.len())
                    .map_err(|why| TrainError::Broadcast { module, why })?;
                values.iter_mut().zip(decoded).for_each(|(value, change)| *value += change);
                Ok::<_, TrainError>(values)
            })
            .await??;
        }
        let (specs, name) = (self.specs.clone(), object.name.clone());
        let (values, sum) = blocking(move || {
            let module = ModuleWeights { specs, values };
            let sum = ObjectRef::of(name, &module_files::encode(&module)?);
            Ok::<_, TrainError>((module.values, sum))
        })
        .await??;
        // The sum must be what the store holds, bit for bit.
        if sum != *object {
            tracing::warn!(%fragment, "the changes do not lead to the weights; these are fetched whole");
            return Ok(None);
        }
        Ok(Some(values))
    }
}
