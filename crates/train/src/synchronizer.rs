//! Owns the modules: folds outer gradients as they arrive and takes the outer steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_config::OuterConfig;
use dipaco_model::{ModuleWeights, TensorSpec, level_specs, parameters};
use dipaco_optim::{nesterov_step, squared_norm};
use dipaco_store::{ObjectRef, RunStore, names};
use dipaco_sync::{Fold, merge_weights};
use dipaco_telemetry::Event;
use dipaco_topology::{ModuleId, PathId, Topology};
use tokio::sync::{Mutex, Notify, mpsc};

use crate::desk::Desk;
use crate::ledger::Ledger;
use crate::run_progress::RunProgress;
use crate::{TrainError, module_files};

/// The outer steps of all modules (arXiv:2403.10616, algorithm 1, lines 13 and 14, with the weights and the rescaling
/// of §2.7).
pub(crate) struct Synchronizer {
    ledger: Arc<Mutex<Ledger>>,
    store: RunStore,
    outer: OuterConfig,
    topology: Topology,
    /// The tensors of a module of each level.
    specs: Vec<Arc<[TensorSpec]>>,
    /// Modules with at least one contribution to their current round.
    folds: BTreeMap<ModuleId, Fold>,
    arrived: BTreeMap<(ModuleId, PathId), ObjectRef>,
    /// Woken whenever a module has a new version.
    changed: Arc<Notify>,
    progress: Arc<RunProgress>,
}

impl Synchronizer {
    /// The synchronizer of the run that `desk` gives out.
    pub(crate) fn new(desk: &Desk, outer: OuterConfig) -> Self {
        let topology = desk.topology.clone();
        let specs = (0..topology.levels())
            .map(|level| level_specs(&desk.plan.model, &topology, level).into())
            .collect();
        Self {
            ledger: desk.ledger.clone(),
            store: desk.store.clone(),
            outer,
            topology,
            specs,
            folds: BTreeMap::new(),
            arrived: BTreeMap::new(),
            changed: desk.changed.clone(),
            progress: desk.progress.clone(),
        }
    }

    /// Folds what committed paths have contributed, beginning with what the manifest already holds, until the sender
    /// is gone.
    pub(crate) async fn run(mut self, mut committed: mpsc::Receiver<PathId>) -> Result<(), TrainError> {
        for path in self.topology.path_ids() {
            self.fold(path).await?;
        }
        while let Some(path) = committed.recv().await {
            self.fold(path).await?;
        }
        Ok(())
    }

    async fn fold(&mut self, path: PathId) -> Result<(), TrainError> {
        let contribution =
            self.ledger.lock().await.training()?.paths.get(path.index()).and_then(|p| p.contribution.clone());
        for gradient in contribution.iter().flat_map(|contribution| &contribution.gradients) {
            let module = gradient.module;
            if self.arrived.contains_key(&(module, path)) {
                continue;
            }
            if !self.folds.contains_key(&module) {
                let fold = self.start(module).await?;
                self.folds.insert(module, fold);
            }
            let Some(fold) = self.folds.get_mut(&module) else { continue };
            fold.announce(path)?;
            self.arrived.insert((module, path), gradient.object.clone());
            self.merge(module).await?;
        }
        Ok(())
    }

    fn specs(&self, module: ModuleId) -> Result<Arc<[TensorSpec]>, TrainError> {
        let lacks = || TrainError::ManifestLacks { what: format!("level {}", module.level) };
        self.specs.get(usize::from(module.level)).cloned().ok_or_else(lacks)
    }

    async fn start(&self, module: ModuleId) -> Result<Fold, TrainError> {
        // Read for each round: the shards change with the phase.
        let shards: Vec<_> = {
            let ledger = self.ledger.lock().await;
            let shards = &ledger.training()?.shards;
            let tokens = |path: PathId| shards.get(path.index()).map_or(0, |shard| shard.tokens);
            self.topology.paths_through(module).map(|path| (path, tokens(path))).collect()
        };
        let weights = merge_weights(self.outer.weighting, &shards)?;
        Ok(Fold::new(parameters(&self.specs(module)?), weights, self.outer.rescale))
    }

    /// Merges every contribution whose turn has come, and steps the module when it was the last.
    async fn merge(&mut self, module: ModuleId) -> Result<(), TrainError> {
        let specs = self.specs(module)?;
        let paths = self.topology.paths_through(module).count();
        let Some(mut fold) = self.folds.remove(&module) else { return Ok(()) };
        let mut merged_last = false;
        while let Some(path) = fold.next() {
            let object = self.arrived.get(&(module, path)).cloned();
            let object = object
                .ok_or_else(|| TrainError::ManifestLacks { what: format!("path {path}'s outer gradient") })?;
            let (bytes, specs) = (self.store.get(&object).await?, specs.clone());
            let merged = blocking(move || {
                fold.merge(path, &module_files::decode_gradient(path, module, &specs, &bytes)?)?;
                Ok::<_, TrainError>(fold)
            });
            fold = merged.await??;
            merged_last = self.topology.paths_through(module).last() == Some(path);
        }
        if !merged_last {
            self.folds.insert(module, fold);
            return Ok(());
        }
        self.arrived.retain(|&(held, _), _| held != module);
        let (cosine, gradient) = blocking(move || (fold.cosine(), fold.finish())).await?;
        self.step(module, specs, gradient?, paths, cosine).await
    }

    async fn step(
        &self,
        module: ModuleId,
        specs: Arc<[TensorSpec]>,
        gradient: Vec<f32>,
        paths: usize,
        cosine: Option<f64>,
    ) -> Result<(), TrainError> {
        let record = self.ledger.lock().await.training()?.module(module).cloned();
        let record = record.ok_or_else(|| TrainError::ManifestLacks { what: format!("module {module}") })?;
        let mut weights = module_files::read(&self.store, &record.weights, specs.clone()).await?;
        let mut momentum = match &record.momentum {
            Some(object) => module_files::read(&self.store, object, specs.clone()).await?,
            None => ModuleWeights { specs, values: vec![0.0; gradient.len()] },
        };
        let nesterov = self.outer.nesterov.clone();
        let (weights, momentum, norm) = blocking(move || {
            let norm = squared_norm(&gradient).sqrt();
            nesterov_step(&mut weights.values, &gradient, &mut momentum.values, &nesterov);
            (weights, momentum, norm)
        })
        .await?;
        let version = record.version + 1;
        let weights = module_files::encode(&weights)?;
        let weights = self.store.put_replacing(&names::module(module, version), weights).await?;
        let momentum = module_files::encode(&momentum)?;
        let momentum = self.store.put_replacing(&names::momentum(module, version), momentum).await?;
        // A task of its own: the books must not be left ahead of the disk when the coordinator is stopped here.
        let mut books = self.ledger.clone().lock_owned().await;
        let stepping = tokio::spawn(async move { books.stepped(module, weights, momentum).await });
        let version = stepping.await.map_err(|source| TrainError::Thread { source })??;
        tracing::debug!(%module, version, "outer step");
        self.progress.event(Event::ModuleStepped {
            module,
            version: version.into(),
            paths: u32::try_from(paths).unwrap_or(u32::MAX),
            outer_gradient_norm: norm,
            cosine,
        })?;
        self.progress.stepped(module, version)?;
        self.changed.notify_waiters();
        Ok(())
    }
}

/// Runs arithmetic beside the event loop.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TrainError> {
    tokio::task::spawn_blocking(work).await.map_err(|source| TrainError::Thread { source })
}
