//! Takes up the weights of a training that goes on beside a server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_infer::{BoxError, Generation, RunModel, RunPaths};
use dipaco_server::Preload;

use crate::error::PipelineError;
use crate::fingerprint::{FixedParts, fingerprint};
use crate::run_directory::RunDirectory;
use crate::served_modules::ServedModules;
use crate::version::Version;
use crate::weights::Weights;

/// Where the weights of a server come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) run: RunDirectory,
    pub(crate) config: RunConfig,
    pub(crate) version: Version,
    pub(crate) modules: ServedModules,
    /// The phase of the server's router.
    pub(crate) phase: u32,
    /// Tokenizer and routers, for the fingerprints.
    pub(crate) fixed: FixedParts,
}

impl Source {
    /// All paths with these weights, as far as `serve.preload` and `serve.memory` have them loaded. Blocks on the store.
    pub(crate) fn load(&self, weights: Weights) -> Result<RunPaths, PipelineError> {
        let fingerprint = fingerprint(&self.config, &weights, &self.fixed)?;
        let paths = self.modules.paths(weights, &fingerprint)?;
        if self.config.serve.preload == Preload::All {
            paths.preload()?;
        }
        Ok(paths)
    }

    /// Looks for weights that are newer than the `served` ones. Loads them only if the server `may_load` them.
    async fn look(self: &Arc<Self>, served: &str, may_load: bool) -> Result<Found, PipelineError> {
        // Most looks find what is served. Only weights that will be read are worth a pin.
        if !self.is_new(&Weights::unpinned(&self.run, &self.config, self.version).await?, served)? {
            return Ok(Found::Served);
        }
        if !may_load {
            return Ok(Found::Waiting);
        }
        let weights = Weights::open(&self.run, &self.config, self.version).await?;
        if !self.is_new(&weights, served)? {
            return Ok(Found::Served);
        }
        let own = Arc::clone(self);
        let load = tokio::task::spawn_blocking(move || own.load(weights));
        Ok(Found::New(load.await.map_err(|source| PipelineError::Task { source })??))
    }

    /// True if these are other weights than the `served` ones.
    fn is_new(&self, weights: &Weights, served: &str) -> Result<bool, PipelineError> {
        if fingerprint(&self.config, weights, &self.fixed)? == served {
            return Ok(false);
        }
        match weights.manifest().phase() {
            phase if phase == self.phase => Ok(true),
            phase => Err(PipelineError::OtherPhase { phase, served: self.phase }),
        }
    }
}

/// What a look at the manifest found.
enum Found {
    /// The weights that are served.
    Served,
    /// New weights, which the server may not load yet.
    Waiting,
    /// New weights.
    New(RunPaths),
}

/// Gives the model new weights whenever the run has some. Ends when the model is gone. A failure leaves the weights that are
/// served, and the next look comes as usual.
///
/// New weights wait until all sequences with older weights than the served ones have ended. So the modules of two rounds at
/// most are in memory, however long a sequence runs.
pub(crate) async fn follow(source: Arc<Source>, model: Weak<RunModel>, every: Duration) {
    let mut told = false;
    loop {
        tokio::time::sleep(every).await;
        let now = model.upgrade().map(|model| (model.newest().fingerprint(), model.is_settled()));
        let Some((served, settled)) = now else { return };
        match source.look(&served, settled).await {
            Ok(Found::Served) => {}
            Ok(Found::Waiting) if told => {}
            Ok(Found::Waiting) => {
                told = true;
                tracing::info!(fingerprint = %served, "new weights wait until the requests with older weights than the served ones have ended");
            }
            Ok(Found::New(paths)) => {
                let Some(model) = model.upgrade() else { return };
                told = false;
                tracing::info!(fingerprint = %paths.fingerprint(), "new weights are served");
                model.replace(paths);
            }
            Err(error) => {
                let error: BoxError = error.into();
                tracing::warn!(%error, source = ?error.source(), "the served weights stay: new ones can't be loaded");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dipaco_server::LoadProgress;
    use dipaco_store::{
        FragmentRecord, ManifestSequence, ModuleRecord, ObjectRef, RunManifest, RunStore, TrainingRecord,
        names,
    };
    use dipaco_topology::{ModuleId, Topology};

    use super::*;
    use crate::pinned::pins_ended;
    use crate::served_format::format;

    /// A manifest whose modules have this version. Nothing reads their weights.
    fn manifest(topology: &Topology, version: u32) -> RunManifest {
        let object = |module: ModuleId| ObjectRef {
            name: names::weights(module, 0, version, 0),
            hash: format!("{module} {version}"),
            bytes: 1,
        };
        let fragment = |module| FragmentRecord {
            version,
            weights: object(module),
            momentum: None,
            changes: Vec::new(),
            kept: Vec::new(),
            norms: Vec::new(),
            norm_paths: Vec::new(),
        };
        let module = |module| ModuleRecord { module, fragments: vec![fragment(module)] };
        let training = TrainingRecord {
            rounds: 2,
            inner_steps: 1,
            modules: topology.module_ids().map(module).collect(),
            ..TrainingRecord::default()
        };
        RunManifest { training: Some(training), ..RunManifest::new("run".to_owned()) }
    }

    #[tokio::test]
    async fn only_new_weights_that_may_be_loaded_are_pinned() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        let mut config = RunConfig::default();
        config.model.vocab_size = 64;
        config.serve.preload = Preload::None;
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        let store = RunStore::create(&run.store()).unwrap();
        let first = store.replace(&manifest(&topology, 1), ManifestSequence::NONE).await.unwrap();
        let readers = Path::new(&run.store()).join("readers");
        let fixed = FixedParts {
            tokenizer: String::new(),
            end_tokens: Vec::new(),
            router: String::new(),
            transformer_router: None,
        };
        let modules = ServedModules::new(format(config.serve.format), None, LoadProgress::default());
        let source = Arc::new(Source { run, config, version: Version::Current, modules, phase: 0, fixed });

        let weights = Weights::unpinned(&source.run, &source.config, source.version).await.unwrap();
        let served = fingerprint(&source.config, &weights, &source.fixed).unwrap();
        assert!(matches!(source.look(&served, true).await.unwrap(), Found::Served));
        store.replace(&manifest(&topology, 2), first).await.unwrap();
        assert!(matches!(source.look(&served, false).await.unwrap(), Found::Waiting));
        assert!(!readers.exists(), "a look wrote a pin");
        let Found::New(paths) = source.look(&served, true).await.unwrap() else {
            panic!("they may be loaded")
        };
        assert_ne!(*paths.fingerprint(), *served);
        assert_eq!(std::fs::read_dir(&readers).unwrap().count(), 1);
        drop(paths);
        pins_ended().await;
        assert_eq!(std::fs::read_dir(&readers).map_or(0, Iterator::count), 0);
    }
}
