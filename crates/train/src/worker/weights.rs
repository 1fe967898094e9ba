//! The global weights of a lease.

use std::collections::BTreeSet;
use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_store::ObjectRef;
use dipaco_sync::{Unit, units_of};
use tokio::task::JoinSet;

use super::Worker;
use crate::protocol::{PIECES_AT_ONCE, UnitWeights, Work};
use crate::synchronizer::blocking;
use crate::transfer::Transfer;
use crate::{TrainError, module_files};

impl Worker {
    /// Fetches global weights, several fragments at a time, but for those that did not change since an earlier lease.
    pub(super) async fn fetch_weights(&mut self, weights: &[UnitWeights]) -> Result<(), TrainError> {
        let current = |wanted: &&UnitWeights| {
            !self.weights.get(&wanted.unit).is_some_and(|(held, _)| held.hash == wanted.object.hash)
        };
        let wanted: Vec<UnitWeights> = weights.iter().filter(current).cloned().collect();
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
                    held: self.weights.remove(&unit),
                    wanted,
                };
                under_way.spawn(async move { fetching.fetch().await.map(|fetched| (unit, fetched)) });
            }
            let Some(fetched) = under_way.join_next().await else { return Ok(()) };
            let (unit, fetched) = fetched.map_err(|source| TrainError::Thread { source })??;
            self.weights.insert(unit, fetched);
        }
    }

    /// Forgets the global weights that neither the lease nor a path that is held uses.
    pub(super) fn forget_weights(&mut self, work: &Work) {
        let fragments = self.session.plan().sync.fragments;
        let paths = self.held.iter().map(|&(path, ..)| path).chain([work.path]);
        let used: BTreeSet<Unit> = paths.flat_map(|path| units_of(&self.topology, fragments, path)).collect();
        self.weights.retain(|unit, _| used.contains(unit));
    }
}

/// The weights of one fragment on their way.
struct Fetching {
    transfer: Arc<Transfer>,
    specs: Arc<[TensorSpec]>,
    wanted: UnitWeights,
    held: Option<(ObjectRef, Vec<f32>)>,
}

impl Fetching {
    /// Fetches the changes that lead from what is held to what is wanted, or the weights as a whole.
    async fn fetch(mut self) -> Result<(ObjectRef, Vec<f32>), TrainError> {
        if let Some(changed) = self.change().await? {
            return Ok((self.wanted.object, changed));
        }
        let object = self.wanted.object;
        let bytes = self.transfer.object(&object).await?;
        let (name, specs) = (object.name.clone(), self.specs);
        let module = blocking(move || module_files::decode(&name, &bytes, specs)).await??;
        Ok((object, module.values))
    }

    /// Adds to weights that are held the changes that lead to others; `None` when none of them is a change of what is held.
    async fn change(&mut self) -> Result<Option<Vec<f32>>, TrainError> {
        let UnitWeights { unit, object, changes, .. } = &self.wanted;
        let Some((held, mut values)) = self.held.take() else { return Ok(None) };
        let Some(first) = changes.iter().position(|change| change.from == held.hash) else { return Ok(None) };
        for change in &changes[first..] {
            let bytes = self.transfer.object(&change.object).await?;
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
