//! The paths of a run and their router as a model.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dipaco_model::{ModelConfig, ModelError, PackedModule, StepPages, StepSequence, Stepper};
use dipaco_topology::{PathId, Topology};
use thiserror::Error;

use crate::model::Held;
use crate::{
    BoxError, Dtype, Executor, Generation, ModuleCache, ModuleKey, ModuleMemory, PageCopy, PathVersion,
    Route, RoutedModel, SequenceRows, ServedPath,
};

/// Loads the module of a path on a level. May be called from several threads, and again for a module that failed to load or
/// left the memory.
pub type LoadModule = Box<dyn Fn(PathId, u16) -> Result<PackedModule, BoxError> + Send + Sync>;

/// Errors of a run's model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunModelError {
    /// A run of several paths without a router.
    #[error("the run has {paths} paths but no router: run `dipaco route fit` first")]
    NoRouter {
        /// P.
        paths: u32,
    },
    /// A router that picked a path that does not exist.
    #[error("the router picked path {path} of {paths}: it was fitted for another run")]
    WrongRouter {
        /// The path.
        path: PathId,
        /// P.
        paths: u32,
    },
    /// A router that gave too few or too many routes.
    #[error("the router gave {given} routes for {asked} inputs: it and the engine disagree")]
    Routes {
        /// Number of routes.
        given: usize,
        /// Number of inputs.
        asked: usize,
    },
    /// A path could not be loaded.
    #[error("path {path} can't be loaded")]
    Load {
        /// The path.
        path: PathId,
        /// Error of the loader.
        #[source]
        source: BoxError,
    },
    /// A path that does not exist.
    #[error("path {path} does not exist: the run has {paths} paths")]
    NoPath {
        /// The path.
        path: PathId,
        /// P.
        paths: u32,
    },
    /// An error of the model.
    #[error("the model failed")]
    Model(#[from] ModelError),
}

/// Picks the path for the first tokens of each input. The model sets the number of tokens of the routes.
pub type RoutePrefixes = Box<dyn Fn(&[&[u32]]) -> Result<Vec<Route>, BoxError> + Send + Sync>;

/// Picks a path from the first tokens of an input (arXiv:2403.10616 §2.4).
pub struct PrefixRouter {
    /// Largest number of tokens that the router reads.
    pub prefix_tokens: usize,
    /// The routing rule. An input's path does not depend on the other inputs.
    pub route: RoutePrefixes,
}

/// The modules of a path with the weights of one moment, which need not be in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathModules {
    /// A hash of the modules.
    pub version: PathVersion,
    /// One module for each level.
    pub modules: Vec<ModuleKey>,
}

/// Picks the path that continues a text, from all its tokens (arXiv:2403.10616 §2.4.3).
pub type ChunkRouter = Box<dyn Fn(&[u32]) -> Result<PathId, BoxError> + Send + Sync>;

/// The paths of a run with the weights of one moment.
pub struct RunPaths {
    fingerprint: Arc<str>,
    cache: Arc<ModuleCache>,
    paths: Vec<PathModules>,
    load: LoadModule,
}

impl RunPaths {
    /// Paths whose modules are in `cache` when they are needed, without loading them. `fingerprint` is that of the weights
    /// and of the program.
    #[must_use]
    pub fn new(
        fingerprint: &str,
        cache: &Arc<ModuleCache>,
        paths: Vec<PathModules>,
        load: LoadModule,
    ) -> Self {
        cache.name(paths.iter().flat_map(|path| &path.modules).copied());
        Self { fingerprint: fingerprint.into(), cache: Arc::clone(cache), paths, load }
    }

    /// Loads the paths in order, as many as fit the cache's limit, so that no request waits for them and damaged files are
    /// found now. Returns their number.
    ///
    /// # Errors
    /// The first path that can't be loaded.
    pub fn preload(&self) -> Result<usize, RunModelError> {
        for (number, (id, path)) in (0..).map(PathId).zip(&self.paths).enumerate() {
            if !self.cache.has_room(&path.modules) {
                return Ok(number);
            }
            self.path(id)?;
        }
        Ok(self.paths.len())
    }

    /// Returns a path. Loads the modules that are not in memory, and waits until there is room for them.
    ///
    /// # Errors
    /// When the path does not exist, can't be loaded or never fits.
    pub fn path(&self, id: PathId) -> Result<ServedPath, RunModelError> {
        self.wanted_path(id, &AtomicBool::new(false))
    }

    /// As [`Self::path`], and an error if `unwanted` becomes true before the path is there.
    fn wanted_path(&self, id: PathId, unwanted: &AtomicBool) -> Result<ServedPath, RunModelError> {
        let PathModules { version, modules } = self.modules(id)?;
        let load = |level| (self.load)(id, level);
        let held = self.cache.hold(modules, &load, unwanted);
        let (loaded, held) = held.map_err(|source| RunModelError::Load { path: id, source })?;
        Ok(ServedPath::of_cache(loaded, *version, modules, Held::new(held)))
    }

    fn modules(&self, id: PathId) -> Result<&PathModules, RunModelError> {
        let missing = || RunModelError::NoPath { path: id, paths: self.paths.len() as u32 };
        self.paths.get(id.index()).ok_or_else(missing)
    }
}

impl Drop for RunPaths {
    fn drop(&mut self) {
        self.cache.forget(self.paths.iter().flat_map(|path| &path.modules).copied());
    }
}

impl Generation for RunPaths {
    fn fingerprint(&self) -> Arc<str> {
        Arc::clone(&self.fingerprint)
    }

    fn loaded(&self, path: PathId) -> Option<ServedPath> {
        let PathModules { version, modules } = self.modules(path).ok()?;
        let (loaded, held) = self.cache.loaded(modules)?;
        Some(ServedPath::of_cache(loaded, *version, modules, Held::new(held)))
    }

    fn prepare(&self, path: PathId, unwanted: &AtomicBool) -> Result<ServedPath, BoxError> {
        Ok(self.wanted_path(path, unwanted)?)
    }

    fn look_again(&self) {
        self.cache.look_again();
    }
}

/// The paths of a run and their router.
pub struct RunModel {
    config: ModelConfig,
    topology: Topology,
    stepper: Stepper,
    router: Option<PrefixRouter>,
    token_router: Option<ChunkRouter>,
    newest: Mutex<Arc<RunPaths>>,
}

impl RunModel {
    /// A model of a run. A run of one path needs no router.
    ///
    /// # Errors
    /// When the topology does not fit the configuration, or there are several paths and no router.
    pub fn new(
        config: ModelConfig,
        topology: Topology,
        router: Option<PrefixRouter>,
        paths: RunPaths,
    ) -> Result<Self, RunModelError> {
        let stepper = Stepper::new(&config, &topology)?;
        if router.is_none() && topology.paths() > 1 {
            return Err(RunModelError::NoRouter { paths: topology.paths() });
        }
        let newest = Mutex::new(Arc::new(paths));
        Ok(Self { config, topology, stepper, router, token_router: None, newest })
    }

    /// The same model, which can also choose paths within a text.
    #[must_use]
    pub fn with_token_router(self, router: ChunkRouter) -> Self {
        Self { token_router: Some(router), ..self }
    }

    /// The paths that new sequences use.
    #[must_use]
    pub fn newest(&self) -> Arc<RunPaths> {
        Arc::clone(&lock(&self.newest))
    }

    /// True if all sequences with older modules than the newest have ended: no other module is in memory, and none can be
    /// loaded any more. Then [`Self::replace`] leaves at most two versions of each module.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let newest = self.newest();
        let keys: BTreeSet<ModuleKey> = newest.paths.iter().flat_map(|path| &path.modules).copied().collect();
        newest.cache.has_only(&keys)
    }

    /// Gives new sequences other paths. Sequences that were submitted before keep theirs.
    pub fn replace(&self, paths: RunPaths) {
        let old = std::mem::replace(&mut *lock(&self.newest), Arc::new(paths));
        // Freed outside of the lock.
        drop(old);
    }
}

/// Locks a mutex. Values behind these locks are replaced as a whole, so a poisoned lock holds a valid value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RoutedModel for RunModel {
    fn context(&self) -> usize {
        self.config.context
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn prefix_tokens(&self) -> usize {
        // A run without a router has one path. `route` still needs a prefix of at least one token.
        self.router.as_ref().map_or(1, |router| router.prefix_tokens.clamp(1, self.config.context))
    }

    fn route(&self, prefixes: &[&[u32]]) -> Result<Vec<Route>, BoxError> {
        let Some(router) = &self.router else {
            let only = Route::new(PathId(0), Vec::new());
            return Ok(vec![only; prefixes.len()]);
        };
        let routes = (router.route)(prefixes)?;
        let (given, asked, paths) = (routes.len(), prefixes.len(), self.topology.paths());
        if given != asked {
            return Err(RunModelError::Routes { given, asked }.into());
        }
        let route = |(route, prefix): (Route, &&[u32])| {
            if route.path.0 >= paths {
                return Err(RunModelError::WrongRouter { path: route.path, paths }.into());
            }
            Ok(Route { prefix_tokens: prefix.len(), ..route })
        };
        routes.into_iter().zip(prefixes).map(route).collect()
    }

    fn reroutes(&self) -> bool {
        self.token_router.is_some()
    }

    fn reroute(&self, tokens: &[u32]) -> Result<PathId, BoxError> {
        let Some(router) = &self.token_router else {
            return Err("the run has no router that chooses paths within a text".into());
        };
        let (path, paths) = (router(tokens)?, self.topology.paths());
        if path.0 < paths { Ok(path) } else { Err(RunModelError::WrongRouter { path, paths }.into()) }
    }

    fn stages(&self, modules: &[ModuleKey]) -> Vec<Vec<ModuleKey>> {
        let levels = self.stepper.stage_levels();
        // Pages without borders give their stages all together.
        let together = if self.reroutes() { 0 } else { levels.len().saturating_sub(1) };
        let of = |levels: &Vec<usize>| levels.iter().map(|&level| modules.get(level).copied()).collect();
        levels[together..].iter().map(of).collect::<Option<_>>().unwrap_or_default()
    }

    fn generation(&self) -> Arc<dyn Generation> {
        self.newest()
    }

    fn module_memory(&self) -> ModuleMemory {
        self.newest().cache.memory()
    }

    fn page_bytes(&self, kv: Dtype) -> usize {
        self.stepper.page_bytes(kv) + if self.reroutes() { self.stepper.border_bytes() } else { 0 }
    }

    fn executor(&self, pages: usize, kv: Dtype) -> Box<dyn Executor + '_> {
        let pages = if self.reroutes() {
            self.stepper.pages_with_borders(pages, kv)
        } else {
            self.stepper.pages(pages, kv)
        };
        Box::new(Steps { model: self, pages })
    }
}

struct Steps<'a> {
    model: &'a RunModel,
    pages: StepPages,
}

impl Executor for Steps<'_> {
    fn step(&mut self, rows: &[SequenceRows<'_>]) -> Result<Vec<Vec<f32>>, BoxError> {
        let batch = rows.iter().map(|rows| {
            let SequenceRows { served, tokens, start, stage, pages, logits, .. } = *rows;
            StepSequence { modules: &served.modules, tokens, start, stage, pages, logits }
        });
        let batch: Vec<StepSequence<'_>> = batch.collect();
        Ok(self.model.stepper.step(&batch, &mut self.pages)?)
    }

    fn copy_page(&mut self, &PageCopy { from, to, stage }: &PageCopy) -> Result<(), BoxError> {
        Ok(self.model.stepper.copy_page(&mut self.pages, from, to, stage)?)
    }
}
