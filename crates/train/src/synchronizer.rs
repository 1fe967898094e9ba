//! Folds contributions into the outer steps of modules.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_config::OuterConfig;
use dipaco_optim::squared_norm;
use dipaco_store::{ObjectRef, names};
use dipaco_sync::{Contribution, Fold, OuterStep, Unit, Weighting, merge_weights};
use dipaco_telemetry::Event;
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::desk::Desk;
use crate::layout::Fragment;
use crate::outer_step::{Merged, OuterState};
use crate::{TrainError, module_files};

/// The outer steps of all modules (arXiv:2403.10616, algorithm 1, lines 13 and 14, with the weights and the rescaling
/// of §2.7).
pub(crate) struct Synchronizer {
    desk: Arc<Desk>,
    outer: OuterConfig,
    /// Units whose next outer step takes the contributions of all learners, and has some: folded as they arrive.
    folds: BTreeMap<Unit, Folding>,
}

/// A fold and the contributions that have been announced to it.
struct Folding {
    /// The version that the outer step makes.
    version: u32,
    fold: Fold,
    arrived: BTreeMap<PathId, Contribution>,
}

impl Synchronizer {
    /// The synchronizer of the run that `desk` gives out.
    pub(crate) fn new(desk: Arc<Desk>, outer: OuterConfig) -> Self {
        Self { desk, outer, folds: BTreeMap::new() }
    }

    /// Folds what is contributed and takes the outer steps that are due, beginning with what the manifest already holds.
    pub(crate) async fn run(mut self) -> Result<(), TrainError> {
        loop {
            if self.folds_early() {
                self.fold_what_arrived().await?;
            }
            let due = self.desk.ledger.lock().await.due(self.desk.now());
            // A grace period may have begun.
            self.desk.deadlines.notify_one();
            let idle = due.is_empty();
            for step in due {
                self.step(step).await?;
            }
            if idle {
                self.desk.contributed.notified().await;
            }
        }
    }

    /// Whether it is known beforehand who contributes to an outer step, and with which weight.
    fn folds_early(&self) -> bool {
        self.desk.plan.sync.scheme().waits() && self.outer.weighting != Weighting::Tokens
    }

    /// Merges every contribution whose turn has come.
    async fn fold_what_arrived(&mut self) -> Result<(), TrainError> {
        let (versions, pending) = {
            let ledger = self.desk.ledger.lock().await;
            let progress = ledger.rounds().progress();
            (progress.versions.clone(), progress.pending.clone())
        };
        for (unit, contributions) in pending {
            let version = versions.get(&unit).copied().unwrap_or(0) + 1;
            for contribution in contributions.into_iter().filter(|c| c.number == version) {
                self.announce(unit, version, contribution).await?;
            }
        }
        Ok(())
    }

    async fn announce(
        &mut self,
        unit: Unit,
        version: u32,
        contribution: Contribution,
    ) -> Result<(), TrainError> {
        let mut folding = match self.folds.remove(&unit).filter(|folding| folding.version == version) {
            Some(folding) => folding,
            None => {
                let schedule = self.desk.plan.schedule()?;
                let dropped = |path| schedule.dropped(path, unit.fragment, u64::from(version));
                let learners = self.desk.topology.paths_through(unit.module);
                let learners: Vec<_> = learners.filter(|&path| !dropped(path)).collect();
                let sizes = self.shard_sizes(&learners).await?;
                let sizes: Vec<_> = learners.into_iter().zip(sizes).collect();
                let weights = merge_weights(self.outer.weighting, &sizes)?;
                let fold = Fold::new(self.fragment(unit)?.values(), weights, self.outer.rescale);
                Folding { version, fold, arrived: BTreeMap::new() }
            }
        };
        if folding.arrived.insert(contribution.path, contribution).is_none() {
            folding.fold.announce(contribution.path)?;
        }
        while let Some(path) = folding.fold.next() {
            let number = folding.arrived.get(&path).map_or(version, |contribution| contribution.number);
            let gradient = self.gradient(unit, path, number).await?;
            let Folding { mut fold, .. } = folding;
            fold = blocking(move || fold.merge(path, &gradient).map(|()| fold)).await??;
            folding = Folding { fold, ..folding };
        }
        self.folds.insert(unit, folding);
        Ok(())
    }

    fn fragment(&self, unit: Unit) -> Result<&Fragment, TrainError> {
        self.desk.layout.fragment(unit.module.level, unit.fragment)
    }

    /// Tokens in the shards of these paths. Read for each round: the shards change with the phase.
    async fn shard_sizes(&self, paths: &[PathId]) -> Result<Vec<u64>, TrainError> {
        let ledger = self.desk.ledger.lock().await;
        let shards = &ledger.training()?.shards;
        Ok(paths.iter().map(|path| shards.get(path.index()).map_or(0, |shard| shard.tokens)).collect())
    }

    /// Reads an outer gradient that counts.
    async fn gradient(&self, unit: Unit, path: PathId, number: u32) -> Result<Vec<f32>, TrainError> {
        let object = {
            let ledger = self.desk.ledger.lock().await;
            let mut gradients =
                ledger.training()?.path(path).into_iter().flat_map(|record| &record.gradients);
            let found =
                gradients.find(|g| (g.module, g.fragment, g.number) == (unit.module, unit.fragment, number));
            found.map(|gradient| gradient.object.clone())
        };
        let object = object.ok_or_else(|| TrainError::ManifestLacks {
            what: format!("outer gradient {number} of path {path} to {unit}"),
        })?;
        let bytes = self.desk.store.get(&object).await?;
        let specs = self.fragment(unit)?.specs.clone();
        blocking(move || module_files::decode_gradient(path, unit.module, &specs, &bytes)).await?
    }

    /// The fold of a step whose contributions were not waited for.
    async fn fold_now(&self, step: &OuterStep) -> Result<Fold, TrainError> {
        let sizes = match self.outer.weighting {
            Weighting::Tokens => step.contributions.iter().map(Contribution::amount).collect(),
            Weighting::ShardSize | Weighting::Uniform => {
                let paths: Vec<_> = step.contributions.iter().map(|contribution| contribution.path).collect();
                self.shard_sizes(&paths).await?
            }
        };
        // A path may have contributed more than once: each contribution is a learner of its own here.
        let sizes: Vec<_> = (0..).map(PathId).zip(sizes).collect();
        let weights = merge_weights(self.outer.weighting, &sizes)?;
        let mut fold = Fold::new(self.fragment(step.unit)?.values(), weights, self.outer.rescale);
        for (place, contribution) in (0..).map(PathId).zip(&step.contributions) {
            let gradient = self.gradient(step.unit, contribution.path, contribution.number).await?;
            fold.announce(place)?;
            fold = blocking(move || fold.merge(place, &gradient).map(|()| fold)).await??;
        }
        Ok(fold)
    }

    /// The contributions of a step, each with its weight, for a momentum that takes them one by one.
    async fn each(&self, step: &OuterStep) -> Result<Merged, TrainError> {
        let unit = step.unit;
        let learners: Vec<_> = self.desk.topology.paths_through(unit.module).collect();
        let count = learners.len();
        let sizes = self.shard_sizes(&learners).await?;
        let sizes: Vec<_> = learners.into_iter().zip(sizes).collect();
        let weights: BTreeMap<PathId, f32> =
            merge_weights(self.outer.weighting, &sizes)?.into_iter().collect();
        // What has been sent and does not wait has been applied.
        let received = {
            let ledger = self.desk.ledger.lock().await;
            let progress = ledger.rounds().progress();
            let slot = unit.slot(self.desk.plan.sync.fragments);
            let sent = sizes.iter().filter_map(|(path, _)| progress.paths.get(path.index())?.sent.get(slot));
            let pending = progress.pending.get(&unit).map_or(0, Vec::len) as u64;
            sent.map(|&sent| u64::from(sent)).sum::<u64>().saturating_sub(pending)
        };
        let mut gradients = Vec::with_capacity(step.contributions.len());
        for contribution in &step.contributions {
            let mut gradient = self.gradient(unit, contribution.path, contribution.number).await?;
            // The number of paths is at most 2^20, which f32 holds exactly.
            #[allow(clippy::cast_precision_loss)]
            let scale = weights.get(&contribution.path).copied().unwrap_or(0.0)
                * count as f32
                * self.outer.rescale.factor(count);
            gradient.iter_mut().for_each(|value| *value *= scale);
            gradients.push(gradient);
        }
        Ok(Merged::Each(gradients, received))
    }

    /// The merged contributions of a step, and how alike they are.
    async fn mean(&mut self, step: &OuterStep) -> Result<(Merged, Option<f64>), TrainError> {
        let unit = step.unit;
        if self.folds_early() {
            // Some may have arrived since the last look.
            for &contribution in &step.contributions {
                self.announce(unit, step.version, contribution).await?;
            }
        }
        let folded = self.folds.remove(&unit).filter(|folding| folding.version == step.version);
        let fold = match folded {
            Some(folding) => folding.fold,
            None => self.fold_now(step).await?,
        };
        let (cosine, gradient) = blocking(move || (fold.cosine(), fold.finish())).await?;
        Ok((Merged::Mean(gradient?), cosine))
    }

    async fn step(&mut self, step: OuterStep) -> Result<(), TrainError> {
        let begun = Instant::now();
        let unit = step.unit;
        let (merged, cosine) = match self.outer.delayed() {
            _ if step.contributions.is_empty() => (Merged::Nothing, None),
            Some(_) => (self.each(&step).await?, None),
            None => self.mean(&step).await?,
        };
        let record = self.desk.ledger.lock().await.training()?.fragment(unit.module, unit.fragment).cloned();
        let record = record.ok_or_else(|| TrainError::ManifestLacks { what: format!("fragment {unit}") })?;
        let specs = self.fragment(unit)?.specs.clone();
        let store = &self.desk.store;
        let mut weights = module_files::read(store, &record.weights, specs.clone()).await?;
        let outer = self.outer.clone();
        let mut state = match &record.momentum {
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
                .map_err(|why| TrainError::Broadcast { module: unit.module, why })?;
            let state = state.encode(&outer, &specs)?;
            Ok::<_, TrainError>((weights, state, change, norm))
        })
        .await??;
        let Unit { module, fragment } = unit;
        let weights = module_files::encode(&weights)?;
        let weights = store.put_replacing(&names::weights(module, fragment, step.version), weights).await?;
        let name = names::momentum(module, fragment, step.version);
        let momentum: ObjectRef = store.put_replacing(&name, state).await?;
        let change = match change {
            Some(bytes) => {
                let name = names::change(module, fragment, step.version);
                Some(store.put_replacing(&name, bytes.into()).await?)
            }
            None => None,
        };
        let (paths, version) = (step.contributions.len(), step.version);
        self.desk.ledger.lock().await.stepped(&step, weights, momentum, change, begun.elapsed())?;
        tracing::debug!(%unit, version, "outer step");
        self.desk.progress.event(Event::ModuleStepped {
            module,
            fragment,
            version: version.into(),
            paths: u32::try_from(paths).unwrap_or(u32::MAX),
            outer_gradient_norm: norm,
            cosine,
        })?;
        self.desk.changed.notify_waiters();
        Ok(())
    }
}

/// Runs arithmetic beside the event loop.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TrainError> {
    tokio::task::spawn_blocking(work).await.map_err(|source| TrainError::Thread { source })
}
