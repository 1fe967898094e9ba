//! Composing paths from the store of a run: for routing, evaluating, serving and exporting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use dipaco_config::RunConfig;
use dipaco_model::{
    Device, ModelConfig, Module, ModulePacker, ModuleWeights, PackedModule, Path, TensorSpec, WeightFormat,
    WeightStream, path_specs,
};
use dipaco_path::Layout;
use dipaco_store::{ObjectRef, RunManifest, RunStore, SeedRecord, TrainingRecord};
use dipaco_topology::{ModuleId, PathId, Topology, TopologyConfig};

use crate::error::PipelineError;
use crate::pinned::{PinnedManifest, ReaderPin};
use crate::run_directory::RunDirectory;
use crate::store::{existing_store, manifest_in};
use crate::version::Version;

/// A version of a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleVersion {
    /// The module.
    pub module: ModuleId,
    /// Versions of its fragments, in order.
    pub fragments: Vec<u32>,
}

/// A module of a path.
#[derive(Clone, Debug)]
pub struct PathModule<'a> {
    /// The module and its version.
    pub version: ModuleVersion,
    /// The weights of its fragments in the store, in order.
    pub objects: Vec<&'a ObjectRef>,
}

/// The weights of a run. A module is loaded once, however many paths use it.
pub struct Weights {
    config: RunConfig,
    topology: Topology,
    layout: Layout,
    store: RunStore,
    manifest: RunManifest,
    /// Keeps the weights in the store while a training replaces them.
    _pin: Option<ReaderPin>,
    version: Version,
    loaded: Mutex<BTreeMap<ModuleVersion, Arc<Module>>>,
    runtime: tokio::runtime::Handle,
}

impl Weights {
    /// Reads the run's manifest. `config` has its vocabulary. Call it on a tokio runtime; the blocking functions below
    /// read the store on that runtime.
    ///
    /// # Errors
    /// [`PipelineError::NoSeed`] when the run has no store or no manifest, [`PipelineError::NoBest`] for [`Version::Best`] of
    /// trained paths that have none, and the errors of store and topology.
    pub async fn open(
        run: &RunDirectory,
        config: &RunConfig,
        version: Version,
    ) -> Result<Self, PipelineError> {
        Self::of_store(existing_store(run)?.ok_or(PipelineError::NoSeed)?, config, version).await
    }

    /// [`Weights::open`] for a store that is open.
    ///
    /// # Errors
    /// As [`Weights::open`].
    pub async fn of_store(
        store: RunStore,
        config: &RunConfig,
        version: Version,
    ) -> Result<Self, PipelineError> {
        let PinnedManifest { manifest, warnings, pin } =
            PinnedManifest::load(&store, version).await?.ok_or(PipelineError::NoSeed)?;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let weights = Self::of_manifest(store, manifest, pin, config, version)?;
        weights.check_best()?;
        Ok(weights)
    }

    /// [`Weights::open`] without a pin, to look at what the manifest says: nothing is written into the store, and a training
    /// may delete the weights at any time. The paths may lack best versions.
    pub(crate) async fn unpinned(
        run: &RunDirectory,
        config: &RunConfig,
        version: Version,
    ) -> Result<Self, PipelineError> {
        let store = existing_store(run)?.ok_or(PipelineError::NoSeed)?;
        let manifest = manifest_in(&store).await?.ok_or(PipelineError::NoSeed)?;
        Self::of_manifest(store, manifest, None, config, version)
    }

    fn of_manifest(
        store: RunStore,
        manifest: RunManifest,
        pin: Option<ReaderPin>,
        config: &RunConfig,
        version: Version,
    ) -> Result<Self, PipelineError> {
        let topology = Topology::new(&config.topology, config.model.blocks)?;
        Ok(Self {
            layout: Layout::new(&config.model, &topology, &config.sync)?,
            topology,
            config: config.clone(),
            store,
            manifest,
            _pin: pin,
            version,
            loaded: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// Refuses best versions where no path has one: they would be the last weights under another name. Warns where some paths
    /// have none.
    fn check_best(&self) -> Result<(), PipelineError> {
        let Some(training) = self.manifest.training.as_ref().filter(|_| self.version == Version::Best) else {
            return Ok(());
        };
        let lacks = |path: &PathId| training.path(*path).is_none_or(|record| record.best.is_none());
        let trained = self.topology.trained_paths();
        let paths = trained.len();
        let lacking: Vec<PathId> = trained.filter(lacks).collect();
        if lacking.len() == paths {
            return Err(PipelineError::NoBest { store: self.store.address().to_owned() });
        }
        if !lacking.is_empty() {
            const NAMED: usize = 8;
            let named: Vec<String> = lacking.iter().take(NAMED).map(ToString::to_string).collect();
            tracing::warn!(
                "{} of {paths} paths have no held-out loss: they keep their last weights (path {}{})",
                lacking.len(),
                named.join(", "),
                if lacking.len() > NAMED { ", …" } else { "" }
            );
        }
        Ok(())
    }

    /// The run's configuration.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The run's topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Dimensions of a path.
    pub fn model(&self) -> &ModelConfig {
        &self.config.model
    }

    /// The manifest as it was when the weights were opened.
    pub fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// The training of the paths.
    fn training(&self) -> Result<&TrainingRecord, PipelineError> {
        self.manifest.training.as_ref().ok_or(PipelineError::NotTrained)
    }

    /// The hash of the seed model's weights.
    ///
    /// # Errors
    /// [`PipelineError::NoSeed`] when the seed is not finished.
    pub fn seed_hash(&self) -> Result<&str, PipelineError> {
        Ok(&self.seed_record()?.weights.hash)
    }

    /// The manifest's record of the seed.
    ///
    /// # Errors
    /// [`PipelineError::NoSeed`] when the seed is not finished.
    pub fn seed_record(&self) -> Result<&SeedRecord, PipelineError> {
        self.manifest.seed.as_ref().filter(|seed| seed.finished()).ok_or(PipelineError::NoSeed)
    }

    /// The seed model. Blocks on the store.
    ///
    /// # Errors
    /// [`PipelineError::NoSeed`] when the seed is not finished, and the errors of the store.
    pub fn seed(&self) -> Result<Path, PipelineError> {
        self.dense(&self.seed_record()?.weights)
    }

    /// The imported model that the seed began with, if steps of pretraining changed it. Blocks on the store.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn imported(&self) -> Result<Option<Path>, PipelineError> {
        self.imported_object().map(|object| self.dense(object)).transpose()
    }

    /// True if the seed is an imported model with further steps.
    pub fn has_imported(&self) -> bool {
        self.imported_object().is_some()
    }

    fn imported_object(&self) -> Option<&ObjectRef> {
        let seed = self.manifest.seed.as_ref()?;
        seed.imported.as_ref().filter(|imported| **imported != seed.weights)
    }

    fn dense(&self, object: &ObjectRef) -> Result<Path, PipelineError> {
        dense_path(&self.config.model, &self.read(object, path_specs(&self.config.model))?)
    }

    /// A trained path. Blocks on the store.
    ///
    /// # Errors
    /// [`PipelineError::NoSuchPath`], [`PipelineError::NotTrained`], and the errors of the store.
    pub fn path(&self, path: PathId) -> Result<Path, PipelineError> {
        let modules = self.modules_of(path)?;
        let load = |module: PathModule<'_>| self.module(module.version, &module.objects);
        self.compose(&modules.into_iter().map(load).collect::<Result<Vec<_>, _>>()?)
    }

    /// The modules of a path, one per level.
    ///
    /// # Errors
    /// [`PipelineError::NoSuchPath`], [`PipelineError::NotTrained`], and [`PipelineError::StoreLacks`] when the manifest
    /// does not list a module.
    pub fn modules_of(&self, path: PathId) -> Result<Vec<PathModule<'_>>, PipelineError> {
        if path.0 >= self.topology.paths() {
            return Err(PipelineError::NoSuchPath { path, paths: self.topology.paths() });
        }
        let training = self.training()?;
        let best = match self.version {
            Version::Current => None,
            Version::Best => training.path(path).and_then(|record| record.best.as_ref()),
        };
        let mut slots = 0..;
        let mut modules = Vec::new();
        for module in self.topology.modules_of(path) {
            let lacks = || PipelineError::StoreLacks { module };
            let record = training.module(module).ok_or_else(lacks)?;
            let (mut fragments, mut objects) = (Vec::new(), Vec::new());
            for (fragment, slot) in record.fragments.iter().zip(&mut slots) {
                let version: Option<u32> = best.and_then(|best| best.versions.get::<usize>(slot).copied());
                let version = version.unwrap_or(fragment.version);
                objects.push(fragment.weights_at(version).ok_or_else(lacks)?);
                fragments.push(version);
            }
            modules.push(PathModule { version: ModuleVersion { module, fragments }, objects });
        }
        Ok(modules)
    }

    /// Composes a path of its modules.
    ///
    /// # Errors
    /// [`PipelineError::Model`] when the modules do not fit together.
    pub fn compose(&self, modules: &[Arc<Module>]) -> Result<Path, PipelineError> {
        Ok(Path::compose(&self.config.model, &self.topology, modules)?)
    }

    /// A hash over the current weights of all modules, whatever [`Version`] was opened.
    ///
    /// # Errors
    /// [`PipelineError::NotTrained`] when the paths have not been trained.
    pub fn modules_hash(&self) -> Result<String, PipelineError> {
        Ok(hash_of(current(self.training()?)))
    }

    /// A hash over the weights that the paths are composed of. It equals [`Self::modules_hash`] when every path uses the
    /// current version of its modules.
    ///
    /// # Errors
    /// As [`Self::modules_of`].
    pub fn served_hash(&self) -> Result<String, PipelineError> {
        let served = self.served()?;
        let current: BTreeSet<_> = current(self.training()?).map(|object| &object.hash).collect();
        if served.iter().all(|object| current.contains(&object.hash)) {
            return self.modules_hash();
        }
        Ok(hash_of(served.into_iter()))
    }

    /// The time when the newest of the weights that the paths are composed of was written. `None` when the store does not
    /// record it.
    ///
    /// # Errors
    /// As [`Self::modules_of`].
    pub async fn served_since(&self) -> Result<Option<SystemTime>, PipelineError> {
        let distinct: BTreeMap<_, _> =
            self.served()?.into_iter().map(|object| (&object.name, object)).collect();
        let mut newest = None;
        for object in distinct.into_values() {
            newest = newest.max(self.store.written(object).await);
        }
        Ok(newest)
    }

    /// The weights that the paths are composed of, path by path.
    fn served(&self) -> Result<Vec<&ObjectRef>, PipelineError> {
        let mut served = Vec::new();
        for path in self.topology.path_ids() {
            served.extend(self.modules_of(path)?.into_iter().flat_map(|module| module.objects));
        }
        Ok(served)
    }

    /// Forgets the modules that `path` does not use, for work that takes the paths in turn. Composed paths keep theirs.
    pub fn keep_only(&self, path: PathId) {
        let used = self.topology.modules_of(path);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|version, _| used.contains(&version.module));
    }

    fn module(&self, version: ModuleVersion, objects: &[&ObjectRef]) -> Result<Arc<Module>, PipelineError> {
        // The lock is held while loading: two paths that want the same module at the same time load it once.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(&version) {
            return Ok(module.clone());
        }
        let weights = self.read_module(version.module, objects)?;
        loaded.insert(version, weights.clone());
        Ok(weights)
    }

    /// Reads a module without remembering it. Blocks on the store.
    ///
    /// # Errors
    /// The errors of the store, and [`PipelineError::Path`] when the fragments do not fit the module.
    pub fn read_module(
        &self,
        module: ModuleId,
        objects: &[&ObjectRef],
    ) -> Result<Arc<Module>, PipelineError> {
        Ok(Arc::new(Module::load(&self.assemble(module.level, objects)?, &Device::Cpu)?))
    }

    /// The weights of a module. Blocks on the store.
    pub(crate) fn assemble(
        &self,
        level: u16,
        objects: &[&ObjectRef],
    ) -> Result<ModuleWeights, PipelineError> {
        let files = objects.iter().map(|object| self.runtime.block_on(self.store.get(object)));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Ok(self.layout.assemble(level, &files)?)
    }

    /// Reads a module and packs it tensor by tensor: it is never in memory as f32. Blocks on the store.
    ///
    /// # Errors
    /// The errors of the store, also when the content of an object is not what its hash says. [`PipelineError::Path`] and
    /// [`PipelineError::Model`] when the objects do not fit the module.
    pub(crate) fn pack(
        &self,
        level: u16,
        objects: &[&ObjectRef],
        format: WeightFormat,
    ) -> Result<PackedModule, PipelineError> {
        let fragments = self.layout.fragments_of(level, objects.len())?;
        let mut packer = ModulePacker::new(self.model(), &self.topology, level.into(), format)?;
        for (object, fragment) in objects.iter().zip(fragments) {
            let length = usize::try_from(object.bytes).unwrap_or(usize::MAX);
            let mut stream = WeightStream::new(fragment.specs.clone(), length);
            let pack = |part: &[u8]| stream.read(part, |spec, values| packer.add(&spec.name, values));
            let read = self.runtime.block_on(self.store.parts(object).read(pack))?;
            read.and_then(|()| stream.finish())?;
        }
        Ok(packer.finish()?)
    }

    fn read(&self, object: &ObjectRef, specs: Vec<TensorSpec>) -> Result<ModuleWeights, PipelineError> {
        let bytes = self.runtime.block_on(self.store.get(object))?;
        Ok(ModuleWeights::from_safetensors(&bytes, specs.into())?)
    }
}

/// A path through one module of all parameters.
pub(crate) fn dense_path(config: &ModelConfig, weights: &ModuleWeights) -> Result<Path, PipelineError> {
    let module = Arc::new(Module::load(weights, &Device::Cpu)?);
    let dense = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks)?;
    Ok(Path::compose(config, &dense, &[module])?)
}

/// The current weights of all fragments.
fn current(training: &TrainingRecord) -> impl Iterator<Item = &ObjectRef> {
    training.modules.iter().flat_map(|module| &module.fragments).map(|fragment| &fragment.weights)
}

fn hash_of<'a>(objects: impl Iterator<Item = &'a ObjectRef>) -> String {
    let mut hasher = blake3::Hasher::new();
    for object in objects {
        hasher.update(object.hash.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
