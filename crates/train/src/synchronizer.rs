//! Outer steps: merges the outer gradients of a fragment and makes its next version.

mod error;
mod process;

use std::collections::BTreeMap;

use dipaco_config::OuterConfig;
use dipaco_optim::squared_norm;
use dipaco_store::{ObjectRef, RunStore, names};
use dipaco_sync::{Fold, FragmentId};
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::TrainError;
use crate::blocking::blocking;
use crate::host::VerifiedGradients;
use crate::stored_modules::read_module;
use dipaco_path::module_files;
use dipaco_path::{FragmentLayout, Layout};
use dipaco_path::{Merged, OuterState};
use dipaco_protocol::{MergeInput, OuterStepDone, OuterStepOrder};
pub use error::SynchronizerError;
pub use process::{SynchronizerOptions, SynchronizerSummary, synchronize};

/// Carries out outer steps (arXiv:2403.10616, algorithm 1, lines 13 and 14, with the weights and the rescaling of §2.7).
pub(crate) struct Synchronizer {
    store: RunStore,
    layout: Layout,
    outer: OuterConfig,
    /// Outer gradients that this process has received, verified and not folded yet.
    gradients: VerifiedGradients,
    /// Outer gradients that have been merged before their outer step is due.
    folds: BTreeMap<FragmentId, Folding>,
}

/// A fold of some contributions of an outer step.
struct Folding {
    version: u32,
    fence: u64,
    fold: Fold,
    /// Announced outer gradients by their place in the order.
    announced: BTreeMap<PathId, ObjectRef>,
}

impl Synchronizer {
    /// `gradients` holds the outer gradients that this process has received. It reads all others from the store.
    pub(crate) fn new(
        store: RunStore,
        layout: Layout,
        outer: OuterConfig,
        gradients: VerifiedGradients,
    ) -> Self {
        Self { store, layout, outer, gradients, folds: BTreeMap::new() }
    }

    /// Merges the outer gradients that an order names, and takes the outer step if it is due.
    pub(crate) async fn carry_out(
        &mut self,
        order: OuterStepOrder,
    ) -> Result<Option<OuterStepDone>, SynchronizerError> {
        let begun = Instant::now();
        let (merged, cosine) = if self.outer.delayed().is_some() || order.shares.is_empty() {
            if !order.due {
                return Ok(None);
            }
            (self.each_contribution(&order).await?, None)
        } else {
            let folding = self.fold(&order).await?;
            if !order.due {
                self.folds.insert(order.fragment, folding);
                return Ok(None);
            }
            let fold = folding.fold;
            let (cosine, mean) = blocking(move || (fold.cosine(), fold.finish())).await?;
            (Merged::Mean(mean?), cosine)
        };
        self.step(order, merged, cosine, begun).await.map(Some)
    }

    fn fragment(&self, fragment: FragmentId) -> Result<&FragmentLayout, SynchronizerError> {
        Ok(self.layout.fragment(fragment.module.level, fragment.index)?)
    }

    /// Merges the outer gradients of an order as far as they are there. The order of merging is that of the places, so
    /// the sum does not depend on the order of arrival.
    async fn fold(&mut self, order: &OuterStepOrder) -> Result<Folding, SynchronizerError> {
        let &OuterStepOrder { fragment, version, fence, ref shares, .. } = order;
        // A path may contribute more than once, so a contribution is identified by its place in the order.
        let places = || (0..).map(PathId).zip(shares);
        let begun = |folding: &Folding| (folding.version, folding.fence) == (version, fence);
        let mut folding = match self.folds.remove(&fragment).filter(begun) {
            Some(folding) => folding,
            None => {
                let weights = places().map(|(place, share)| (place, share.weight)).collect();
                let fold =
                    Fold::new(self.fragment(fragment)?.fold_tensors(), weights, self.outer.fold_rule());
                Folding { version, fence, fold, announced: BTreeMap::new() }
            }
        };
        for (place, share) in places() {
            if let Some(gradient) = &share.gradient
                && folding.announced.insert(place, gradient.clone()).is_none()
            {
                folding.fold.announce(place)?;
            }
        }
        while let Some(place) = folding.fold.next() {
            let gradient = self.gradient(fragment, shares.get(place.index())).await?;
            let Folding { mut fold, .. } = folding;
            fold = blocking(move || fold.merge(place, &gradient).map(|()| fold)).await??;
            folding = Folding { fold, ..folding };
        }
        Ok(folding)
    }

    /// The values of an outer gradient: from memory if this process has verified them, else from the store.
    async fn gradient(
        &self,
        fragment: FragmentId,
        share: Option<&MergeInput>,
    ) -> Result<Vec<f32>, SynchronizerError> {
        let found = share.and_then(|share| Some((share.path, share.gradient.as_ref()?)));
        let (path, object) = found.ok_or_else(|| TrainError::Internal {
            what: format!("an order for {fragment} lacks an outer gradient"),
        })?;
        if let Some(values) = self.gradients.remove(object) {
            return Ok(values);
        }
        let bytes = self.store.get(object).await?;
        let specs = self.fragment(fragment)?.specs.clone();
        Ok(blocking(move || module_files::decode_gradient(path, fragment.module, &specs, &bytes)).await??)
    }

    /// The weighted contributions of a step, for a momentum that takes them one by one.
    async fn each_contribution(&self, order: &OuterStepOrder) -> Result<Merged, SynchronizerError> {
        if order.shares.is_empty() {
            return Ok(Merged::Nothing);
        }
        let mut gradients = Vec::with_capacity(order.shares.len());
        for share in &order.shares {
            let mut gradient = self.gradient(order.fragment, Some(share)).await?;
            gradient.iter_mut().for_each(|value| *value *= share.weight);
            gradients.push(gradient);
        }
        Ok(Merged::Each(gradients, order.applied))
    }

    /// Takes an outer step: makes the new global weights, momentum and change, and puts them into the store.
    async fn step(
        &self,
        order: OuterStepOrder,
        merged: Merged,
        cosine: Option<f64>,
        begun: Instant,
    ) -> Result<OuterStepDone, SynchronizerError> {
        let OuterStepOrder { fragment, version, fence, .. } = order;
        let FragmentId { module, index } = fragment;
        let specs = self.fragment(fragment)?.specs.clone();
        let store = &self.store;
        let mut weights = read_module(store, &order.weights, specs.clone()).await?;
        let outer = self.outer.of_level(module.level);
        let mut state = match &order.momentum {
            Some(object) => OuterState::decode(&outer, &specs, &store.get(object).await?)?,
            None => OuterState::start(&outer, weights.values.len()),
        };
        let (weights, state, change, norm) = blocking(move || {
            let norm = match &merged {
                Merged::Nothing => 0.0,
                Merged::Mean(gradient) => squared_norm(gradient).sqrt(),
                Merged::Each(gradients, _) => gradients.iter().map(|g| squared_norm(g)).sum::<f64>().sqrt(),
            };
            let change = state
                .step(&outer, &mut weights.values, &merged)
                .map_err(|why| SynchronizerError::WeightChange { module, why })?;
            let state = state.encode(&outer, &specs)?;
            Ok::<_, SynchronizerError>((weights, state, change, norm))
        })
        .await??;
        let name = names::weights(module, index, version, fence);
        let weights = store.put_replacing(&name, module_files::encode(&weights)?).await?;
        let name = names::momentum(module, index, version, fence);
        let momentum = store.put_replacing(&name, state).await?;
        let change = match change {
            Some(bytes) => {
                let name = names::change(module, index, version, fence);
                Some(store.put_replacing(&name, bytes.into()).await?)
            }
            None => None,
        };
        tracing::debug!(%fragment, version, "outer step");
        let seconds = begun.elapsed().as_secs_f64();
        Ok(OuterStepDone { fragment, version, fence, weights, momentum, change, norm, cosine, seconds })
    }
}
