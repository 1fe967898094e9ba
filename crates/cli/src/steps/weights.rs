//! Composing paths from what a run's store holds: for routing, evaluating, serving and exporting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use dipaco_config::RunConfig;
use dipaco_model::{Device, ModelConfig, Module, ModuleWeights, Path, TensorSpec, path_specs};
use dipaco_path::Layout;
use dipaco_store::{ObjectRef, RunManifest, RunStore};
use dipaco_topology::{ModuleId, PathId, Topology, TopologyConfig};

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;

/// Which version of its modules a path is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    /// The global weights of the last outer step.
    #[default]
    Current,
    /// The version that was best on the path's held-out documents (arXiv:2403.10616 §2.7).
    Best,
}

/// A module as a path uses it: which one, and the versions of its fragments.
pub(crate) type ModuleVersion = (ModuleId, Vec<u32>);

/// The weights of a run. Modules are loaded once, however many paths use them.
pub(crate) struct Weights {
    config: RunConfig,
    topology: Topology,
    layout: Layout,
    store: RunStore,
    manifest: RunManifest,
    version: Version,
    loaded: Mutex<BTreeMap<ModuleVersion, Arc<Module>>>,
    runtime: tokio::runtime::Handle,
}

impl Weights {
    /// Reads the run's manifest. `config` has its vocabulary.
    pub(crate) async fn open(
        run: &RunDirectory,
        config: &RunConfig,
        version: Version,
    ) -> Result<Self, StepError> {
        if !run.store().exists() {
            return Err(StepError::NoSeed);
        }
        let store = RunStore::open(&run.store().to_string_lossy())?;
        let loaded = store.load::<RunManifest>().await?.ok_or(StepError::NoSeed)?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let topology = Topology::new(&config.topology, config.model.blocks)?;
        Ok(Self {
            layout: Layout::new(&config.model, &topology, &config.sync)?,
            topology,
            config: config.clone(),
            store,
            manifest: loaded.manifest,
            version,
            loaded: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// The run's configuration.
    pub(crate) fn config(&self) -> &RunConfig {
        &self.config
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn model(&self) -> &ModelConfig {
        &self.config.model
    }

    pub(crate) fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// The hash of the seed model's weights.
    pub(crate) fn seed_hash(&self) -> Result<&str, StepError> {
        let seed = self.manifest.seed.as_ref().filter(|seed| seed.finished());
        Ok(&seed.ok_or(StepError::NoSeed)?.weights.hash)
    }

    /// The seed model. Blocks on the store: call it from a thread that may.
    pub(crate) fn seed(&self) -> Result<Path, StepError> {
        let seed = self.manifest.seed.as_ref().filter(|seed| seed.finished()).ok_or(StepError::NoSeed)?;
        let weights = self.read(&seed.weights, path_specs(&self.config.model))?;
        let module = Arc::new(Module::load(&weights, &Device::Cpu)?);
        let dense =
            Topology::new(&TopologyConfig::dense(self.config.model.blocks), self.config.model.blocks)?;
        Ok(Path::compose(&self.config.model, &dense, &[module])?)
    }

    /// A trained path. Blocks on the store: call it from a thread that may.
    pub(crate) fn path(&self, path: PathId) -> Result<Path, StepError> {
        let modules = self.modules_of(path)?;
        let load = |(version, objects): (ModuleVersion, Vec<&ObjectRef>)| self.module(version, &objects);
        self.compose(&modules.into_iter().map(load).collect::<Result<Vec<_>, _>>()?)
    }

    /// The modules of a path, one per level, with the versions that it uses and their fragments.
    pub(crate) fn modules_of(
        &self,
        path: PathId,
    ) -> Result<Vec<(ModuleVersion, Vec<&ObjectRef>)>, StepError> {
        if path.0 >= self.topology.paths() {
            return Err(StepError::NoSuchPath { path, paths: self.topology.paths() });
        }
        let training = self.manifest.training.as_ref().ok_or(StepError::NotTrained)?;
        let best = match self.version {
            Version::Current => None,
            Version::Best => training.path(path).and_then(|record| record.best.as_ref()),
        };
        let mut slots = 0..;
        let mut modules = Vec::new();
        for module in self.topology.modules_of(path) {
            let lacks = || StepError::StoreLacks { what: format!("module {module}") };
            let record = training.module(module).ok_or_else(lacks)?;
            let (mut versions, mut objects) = (Vec::new(), Vec::new());
            for (fragment, slot) in record.fragments.iter().zip(&mut slots) {
                let version: Option<u32> = best.and_then(|best| best.versions.get::<usize>(slot).copied());
                let version = version.unwrap_or(fragment.version);
                objects.push(fragment.weights_at(version).ok_or_else(lacks)?);
                versions.push(version);
            }
            modules.push(((module, versions), objects));
        }
        Ok(modules)
    }

    /// A path of its modules.
    pub(crate) fn compose(&self, modules: &[Arc<Module>]) -> Result<Path, StepError> {
        Ok(Path::compose(&self.config.model, &self.topology, modules)?)
    }

    /// A hash over the current weights of all modules.
    pub(crate) fn modules_hash(&self) -> Result<String, StepError> {
        let training = self.manifest.training.as_ref().ok_or(StepError::NotTrained)?;
        let mut hasher = blake3::Hasher::new();
        for fragment in training.modules.iter().flat_map(|module| &module.fragments) {
            hasher.update(fragment.weights.hash.as_bytes());
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Forgets the modules that a path does not use, for work that takes the paths in turn. Paths that were composed keep
    /// theirs.
    pub(crate) fn keep_only(&self, path: PathId) {
        let used = self.topology.modules_of(path);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(module, _), _| used.contains(module));
    }

    fn module(&self, version: ModuleVersion, objects: &[&ObjectRef]) -> Result<Arc<Module>, StepError> {
        // Held while loading: two paths that want the same module at the same time load it once.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(&version) {
            return Ok(module.clone());
        }
        let weights = self.read_module(version.0, objects)?;
        loaded.insert(version, weights.clone());
        Ok(weights)
    }

    /// Reads a module without remembering it. Blocks on the store: call it from a thread that may.
    pub(crate) fn read_module(
        &self,
        module: ModuleId,
        objects: &[&ObjectRef],
    ) -> Result<Arc<Module>, StepError> {
        let files = objects.iter().map(|object| self.runtime.block_on(self.store.get(object)));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Module::load(&self.layout.assemble(module.level, &files)?, &Device::Cpu)?))
    }

    fn read(&self, object: &ObjectRef, specs: Vec<TensorSpec>) -> Result<ModuleWeights, StepError> {
        let bytes = self.runtime.block_on(self.store.get(object))?;
        Ok(ModuleWeights::from_safetensors(&bytes, specs.into())?)
    }
}
