//! The global weights that a worker begins leases with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_store::ObjectRef;
use dipaco_sync::Unit;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::layout::Layout;
use crate::protocol::{PIECES_AT_ONCE, UnitWeights};
use crate::synchronizer::blocking;
use crate::transfer::Transfer;
use crate::{TrainError, module_files};

/// Weights with their object.
type Held = (ObjectRef, Arc<Vec<f32>>);

/// Global weights that a worker has, with their objects: those that did not change are not fetched again.
pub(super) struct Weights {
    transfer: Arc<Transfer>,
    layout: Layout,
    held: Mutex<BTreeMap<Unit, Held>>,
}

impl Weights {
    /// None yet.
    pub(super) fn new(transfer: Arc<Transfer>, layout: Layout) -> Self {
        Self { transfer, layout, held: Mutex::default() }
    }

    /// Fetches global weights, several fragments at a time, but for those that did not change since an earlier lease.
    pub(super) async fn fetch(&self, weights: &[UnitWeights]) -> Result<(), TrainError> {
        self.transfer.routes.learn(weights);
        let mut held = self.held.lock().await;
        let current = |wanted: &&UnitWeights| {
            held.get(&wanted.unit).is_none_or(|(held, _)| held.hash != wanted.object.hash)
        };
        let mut wanted: Vec<UnitWeights> = weights.iter().filter(current).cloned().collect();
        // A run begins with copies of the seed in all modules of a level.
        wanted.retain(|wanted| {
            let same = held.values().find(|(object, _)| object.hash == wanted.object.hash);
            let Some(values) = same.map(|(_, values)| values.clone()) else { return true };
            held.insert(wanted.unit, (wanted.object.clone(), values));
            false
        });
        let mut wanted = wanted.into_iter();
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < PIECES_AT_ONCE
                && let Some(wanted) = wanted.next()
            {
                let UnitWeights { unit, .. } = wanted;
                let fetching = Fetching {
                    transfer: self.transfer.clone(),
                    specs: self.layout.fragment(unit.module.level, unit.fragment)?.specs.clone(),
                    held: held.remove(&unit),
                    wanted,
                };
                under_way.spawn(async move { fetching.fetch().await.map(|fetched| (unit, fetched)) });
            }
            let Some(fetched) = under_way.join_next().await else { return Ok(()) };
            let (unit, (object, values)) = fetched.map_err(|source| TrainError::Thread { source })??;
            held.insert(unit, (object, Arc::new(values)));
        }
    }

    /// The weights of a fragment that were fetched last.
    pub(super) async fn get(&self, unit: Unit) -> Result<Arc<Vec<f32>>, TrainError> {
        let lacks = || TrainError::ManifestLacks { what: format!("weights of {unit}") };
        self.held.lock().await.get(&unit).map(|(_, values)| values.clone()).ok_or_else(lacks)
    }

    /// Forgets all but those of these fragments.
    pub(super) async fn keep(&self, used: &BTreeSet<Unit>) {
        self.held.lock().await.retain(|unit, _| used.contains(unit));
    }
}

/// The weights of one fragment on their way.
struct Fetching {
    transfer: Arc<Transfer>,
    specs: Arc<[TensorSpec]>,
    wanted: UnitWeights,
    held: Option<Held>,
}

impl Fetching {
    /// Fetches the changes that lead from what is held to what is wanted, or the weights as a whole.
    async fn fetch(mut self) -> Result<(ObjectRef, Vec<f32>), TrainError> {
        if let Some(changed) = self.change().await? {
            return Ok((self.wanted.object, changed));
        }
        let object = self.wanted.object;
        let bytes = self.transfer.object_of(self.wanted.unit, &object).await?;
        let (name, specs) = (object.name.clone(), self.specs);
        let module = blocking(move || module_files::decode(&name, &bytes, specs)).await??;
        Ok((object, module.values))
    }

    /// Adds to weights that are held the changes that lead to others; `None` when none of them is a change of what is held.
    async fn change(&mut self) -> Result<Option<Vec<f32>>, TrainError> {
        let UnitWeights { unit, object, changes, .. } = &self.wanted;
        let Some((held, values)) = self.held.take() else { return Ok(None) };
        let Some(first) = changes.iter().position(|change| change.from == held.hash) else { return Ok(None) };
        let mut values = Arc::unwrap_or_clone(values);
        for change in &changes[first..] {
            let bytes = self.transfer.object_of(*unit, &change.object).await?;
            let module = unit.module;
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
            tracing::warn!(%unit, "the changes do not lead to the weights; these are fetched whole");
            return Ok(None);
        }
        Ok(Some(values))
    }
}
