//! Outer steps: merges the outer gradients of a fragment and makes its next version.

mod early_folds;
mod error;
mod gathered;
mod last_steps;
mod live;
mod orders_in_flight;
mod process;
mod robust_merge;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use dipaco_codec::{Decoder, first_not_finite};
use dipaco_config::OuterConfig;
use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_optim::squared_norm;
use dipaco_store::{ObjectRef, RunStore, names};
use dipaco_sync::{Fold, FragmentId};
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::TrainError;
use crate::blocking::{blocking, joined};
use crate::host::VerifiedGradients;
use crate::stored_modules::read_module;
use dipaco_path::Layout;
use dipaco_path::module_files;
use dipaco_path::{Merged, OuterState, PathError, SynchronousSteps};
use dipaco_protocol::{MergeInput, OuterStepDone, OuterStepOrder, WorkerPlan};
use early_folds::{EarlyFolds, Folding};
pub use error::SynchronizerError;
use last_steps::LastSteps;
pub use live::ObserveSynchronizer;
pub(crate) use orders_in_flight::OrdersInFlight;
pub use process::{SynchronizerOptions, SynchronizerSummary, synchronize};
use robust_merge::RobustMerge;

/// Carries out outer steps (arXiv:2403.10616, algorithm 1, lines 13 and 14, with the weights and the rescaling of §2.7).
pub(crate) struct Synchronizer {
    store: RunStore,
    layout: Layout,
    outer: OuterConfig,
    /// The steps of modules in synchronous training.
    synchronous: Option<SynchronousSteps>,
    /// Outer gradients that this process has received, verified and not folded yet.
    gradients: VerifiedGradients,
    last_steps: LastSteps,
    /// Outer gradients that have been merged before their outer step is due.
    folds: EarlyFolds,
    /// The newest order of each fragment that lacked an input.
    outdated: Mutex<BTreeMap<FragmentId, OrderNumber>>,
    /// Folder for contributions that have no room in memory.
    scratch: PathBuf,
}

/// The order of an outer step among those of its fragment: the version that it makes, and the fencing number.
type OrderNumber = (u32, u64);

/// The contributions to an outer step as one outer gradient.
struct MergedContributions {
    values: Vec<f32>,
    /// Similarity of the contributions, see [`Fold::cosine`].
    cosine: Option<f64>,
}

/// The inputs of an outer step besides the contributions.
struct StepInputs {
    specs: Arc<[TensorSpec]>,
    /// The outer step of the fragment's level.
    outer: OuterConfig,
    weights: ModuleWeights,
    state: OuterState,
}

/// A fragment after an outer step.
struct SteppedFragment {
    weights: ModuleWeights,
    state: OuterState,
    /// The encoded change of the weights, if workers fetch changes.
    change: Option<Vec<u8>>,
    /// Euclidean norm of the merged outer gradient.
    norm: f64,
}

impl Synchronizer {
    /// `gradients` holds the outer gradients that this process has received. It reads all others from the store.
    /// Merges that need all contributions of a step put them into unnamed files in `scratch` if they outgrow the memory.
    pub(crate) fn new(
        store: RunStore,
        layout: Layout,
        plan: &WorkerPlan,
        gradients: VerifiedGradients,
        scratch: PathBuf,
    ) -> Self {
        let (outer, synchronous) = (plan.outer.clone(), SynchronousSteps::of_plan(plan));
        Self {
            store,
            layout,
            outer,
            synchronous,
            gradients,
            last_steps: LastSteps::default(),
            folds: EarlyFolds::default(),
            outdated: Mutex::default(),
            scratch,
        }
    }

    /// Values that an order holds at a time: those of its fragment, for each contribution if the merge needs all of them.
    fn values_at_once(&self, order: &OuterStepOrder) -> usize {
        let FragmentId { module, index } = order.fragment;
        // Only carrying out the order of an unknown fragment tells of it.
        let values = self.layout.fragment(module.level, index).map_or(0, |fragment| fragment.values());
        let holds_all = order.due && (self.outer.delayed().is_some() || self.outer.merge.compares());
        values.saturating_mul(if holds_all { order.shares.len().max(1) } else { 1 })
    }

    /// Merges the outer gradients that an order names, and takes the outer step if it is due. Orders of different
    /// fragments may be carried out at the same time, see [`OrdersInFlight`].
    ///
    /// An order that lacks an input is dropped, because another process may have taken the step meanwhile: its inputs are
    /// deleted then, and it is ordered no more. The same order for the second time is an error.
    pub(crate) async fn carry_out(
        &self,
        order: OuterStepOrder,
    ) -> Result<Option<OuterStepDone>, SynchronizerError> {
        let (fragment, number) = (order.fragment, (order.version, order.fence));
        match self.merge_and_step(order).await {
            Err(error) if error.is_of_a_missing_object() && self.note_outdated(fragment, number) => {
                tracing::warn!(%fragment, version = number.0, %error, "an outer step is dropped: another process has probably taken it");
                Ok(None)
            }
            done => done,
        }
    }

    /// Notes an order that lacks an input. Returns false if it is the noted one.
    fn note_outdated(&self, fragment: FragmentId, number: OrderNumber) -> bool {
        let mut outdated = self.outdated.lock().unwrap_or_else(PoisonError::into_inner);
        outdated.insert(fragment, number) != Some(number)
    }

    async fn merge_and_step(
        &self,
        order: OuterStepOrder,
    ) -> Result<Option<OuterStepDone>, SynchronizerError> {
        let begun = Instant::now();
        let by_one = self.outer.delayed().is_some() || order.shares.is_empty();
        // A single contribution has nothing to be compared with.
        let compares = self.outer.merge.compares() && order.shares.len() > 1;
        let (merged, cosine) = if by_one || compares {
            if !order.due {
                return Ok(None);
            }
            if by_one {
                (self.each_contribution(&order).await?, None)
            } else {
                let MergedContributions { values, cosine } = self.compare(&order).await?;
                (Merged::Mean(values), cosine)
            }
        } else {
            if !order.due {
                self.fold_early(&order).await?;
                return Ok(None);
            }
            let fold = self.fold(&order).await?.fold;
            let (cosine, mean) = blocking(move || (fold.cosine(), fold.finish())).await?;
            (Merged::Mean(mean?), cosine)
        };
        self.step(order, merged, cosine, begun).await.map(Some)
    }

    /// Merges the outer gradients of an order that is not due yet, if there is room for their sum.
    async fn fold_early(&self, order: &OuterStepOrder) -> Result<(), SynchronizerError> {
        let values = self.values_at_once(order);
        if let Some(room) = self.folds.make_room(order.fragment, order.version, values) {
            room.keep(self.fold(order).await?);
        }
        Ok(())
    }

    /// Merges the outer gradients of an order as far as they are there. The order of merging is that of the places, so
    /// the sum does not depend on the order of arrival.
    async fn fold(&self, order: &OuterStepOrder) -> Result<Folding, SynchronizerError> {
        let &OuterStepOrder { fragment, version, fence, ref shares, .. } = order;
        // A path may contribute more than once, so a contribution is identified by its place in the order.
        let places = || (0..).map(PathId).zip(shares);
        let factors: Vec<_> = shares.iter().map(|share| (share.weight, share.reduction)).collect();
        // The guard may have reduced a contribution since the early order. The fold then starts again.
        let begun = |folding: &Folding| {
            (folding.version, folding.fence) == (version, fence) && folding.factors == factors
        };
        let before = if order.due { self.folds.remove(fragment) } else { self.folds.take(fragment) };
        let mut folding = match before.filter(begun) {
            Some(folding) => folding,
            None => {
                let by_place = places().map(|(place, share)| (place, share.weight)).collect();
                let tensors = self.layout.fragment(fragment.module.level, fragment.index)?.fold_tensors();
                let fold = Fold::new(tensors, by_place, self.outer.fold_rule());
                let fold = fold.reduced(shares.iter().map(|share| share.reduction).collect());
                Folding { version, fence, factors, fold, announced: BTreeMap::new() }
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
            fold = blocking(move || fold.merge(place, gradient).map(|()| fold)).await??;
            folding = Folding { fold, ..folding };
        }
        Ok(folding)
    }

    /// Merges the contributions of an order by a rule that compares them with each other.
    async fn compare(&self, order: &OuterStepOrder) -> Result<MergedContributions, SynchronizerError> {
        let FragmentId { module, index } = order.fragment;
        let tensors = self.layout.fragment(module.level, index)?.fold_tensors();
        let mut merge = RobustMerge::new(tensors, &order.shares, &self.outer, &self.scratch);
        for share in &order.shares {
            let gradient = self.gradient(order.fragment, Some(share)).await?;
            merge = blocking(move || merge.push(&gradient).map(|()| merge)).await??;
        }
        blocking(move || merge.finish()).await?
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
        let length = self.layout.fragment(fragment.module.level, fragment.index)?.values();
        let mut decoder = Decoder::new(object.bytes, length);
        let mut values = Vec::with_capacity(length);
        let decode = |part: &[u8]| decoder.read(part, |group| values.extend_from_slice(group));
        let read = self.store.parts(object).read(decode).await?;
        let module = fragment.module;
        let decoded = read.and_then(|()| decoder.finish());
        decoded.map_err(|why| PathError::OuterGradient { module, path, why })?;
        Ok(values)
    }

    /// The weighted contributions of a step, for a momentum that takes them one by one.
    async fn each_contribution(&self, order: &OuterStepOrder) -> Result<Merged, SynchronizerError> {
        if order.shares.is_empty() {
            return Ok(Merged::Nothing);
        }
        let mut gradients = Vec::with_capacity(order.shares.len());
        for share in &order.shares {
            let mut gradient = self.gradient(order.fragment, Some(share)).await?;
            let factor = share.weight * share.reduction;
            // A single path has a factor of 1, which changes no bit of a number.
            if factor != 1.0 {
                gradient.iter_mut().for_each(|value| *value *= factor);
            }
            gradients.push(gradient);
        }
        Ok(Merged::Each(gradients, order.applied))
    }

    /// The weights and the state of the outer optimizer before a step: from memory if this process has made them, else from the
    /// store.
    async fn inputs(&self, order: &OuterStepOrder) -> Result<StepInputs, SynchronizerError> {
        let FragmentId { module, index } = order.fragment;
        let specs = self.layout.fragment(module.level, index)?.specs.clone();
        let outer = self.outer.of_level(module.level);
        if let Some((weights, state)) = self.last_steps.take(order) {
            return Ok(StepInputs { specs, outer, weights, state });
        }
        let read = |object: &ObjectRef, specs| {
            let (store, object) = (self.store.clone(), object.clone());
            // Tasks of their own: reading one does not wait for the other's decoding.
            tokio::spawn(async move { read_module(&store, &object, specs).await })
        };
        let weights = read(&order.weights, specs.clone());
        let momentum = order.momentum.as_ref().map(|object| read(object, OuterState::specs(&outer, &specs)));
        let weights = joined(weights.await)??;
        let state = match momentum {
            Some(momentum) => OuterState::decode(&outer, &specs, joined(momentum.await)??.values),
            None => {
                let (outer, values) = (outer.clone(), weights.values.len());
                blocking(move || OuterState::start(&outer, values)).await?
            }
        };
        Ok(StepInputs { specs, outer, weights, state })
    }

    /// Applies merged contributions to a fragment. Returns `None` if the result is not finite.
    async fn apply(
        &self,
        inputs: StepInputs,
        merged: Merged,
        version: u32,
    ) -> Result<Option<SteppedFragment>, SynchronizerError> {
        let synchronous = self.synchronous.clone();
        let applied = blocking(move || {
            let StepInputs { specs, outer, mut weights, mut state } = inputs;
            let norm = match &merged {
                Merged::Nothing => 0.0,
                Merged::Mean(gradient) => squared_norm(gradient).sqrt(),
                Merged::Each(gradients, _) => gradients.iter().map(|g| squared_norm(g)).sum::<f64>().sqrt(),
            };
            // A change that is not finite can't be encoded.
            let change = match (&synchronous, &merged) {
                (Some(steps), Merged::Mean(gradient)) => {
                    state.synchronous_step(steps, version.into(), &specs, &mut weights.values, gradient);
                    None
                }
                _ => state.step(&outer, &mut weights.values, &merged).ok()?,
            };
            let finite = norm.is_finite() && first_not_finite(&weights.values).is_none() && state.is_finite();
            finite.then_some(SteppedFragment { weights, state, change, norm })
        });
        Ok(applied.await?)
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
        let store = &self.store;
        let inputs = self.inputs(&order).await?;
        let (specs, outer) = (inputs.specs.clone(), inputs.outer.clone());
        let stepped = self.apply(inputs, merged, version).await?;
        let stepped = match stepped {
            Some(stepped) => stepped,
            None => {
                // Every reader would stop at such weights, and so would each restart of this step.
                tracing::error!(%fragment, version, "an outer step makes weights that are not finite; its contributions are left out");
                let mut inputs = self.inputs(&order).await?;
                // What earlier steps have rounded away may be too much for weights that are nearly too large.
                inputs.state.forget_rounding();
                let unchanged = self.apply(inputs, Merged::Nothing, version).await?;
                unchanged.ok_or(SynchronizerError::NotFinite { fragment })?
            }
        };
        let SteppedFragment { weights, state, change, norm } = stepped;
        let made = (Arc::new(weights), Arc::new(state));
        let (weights, state) = (module_files::encode_parts(&made.0)?, made.1.encode(&outer, &specs)?);
        let [of_weights, of_momentum, of_change] =
            [names::weights, names::momentum, names::change].map(|name| name(module, index, version, fence));
        let change = async {
            let Some(bytes) = change else { return Ok(None) };
            store.put_replacing(&of_change, [bytes.into()]).await.map(Some)
        };
        let (weights, momentum, change) = tokio::try_join!(
            store.put_replacing(&of_weights, weights),
            store.put_replacing(&of_momentum, state),
            change
        )?;
        tracing::debug!(%fragment, version, "outer step");
        let seconds = begun.elapsed().as_secs_f64();
        let done =
            OuterStepDone { fragment, version, fence, weights, momentum, change, norm, cosine, seconds };
        // If a line to a remote store still holds the bytes, the next step reads them.
        if let (Some(weights), Some(state)) = (Arc::into_inner(made.0), Arc::into_inner(made.1)) {
            self.last_steps.keep(done.clone(), weights, state);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
