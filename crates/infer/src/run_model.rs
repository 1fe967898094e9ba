//! The paths of a run and their router as a model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dipaco_model::{KvPages, ModelConfig, ModelError, StepSequence, Stepper};
use dipaco_topology::{PathId, Topology};
use thiserror::Error;

use crate::{BoxError, Executor, Generation, KvType, Route, RoutedModel, SequenceRows, ServedPath};

/// Loads a path, composed of modules that it shares with other paths. May be called from several threads, and again for a
/// path that failed to load before.
pub type LoadPath = Box<dyn Fn(PathId) -> Result<ServedPath, BoxError> + Send + Sync>;

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

/// Picks the path for the first tokens of each input, and returns it with the distance to every path (P).
pub type RoutePrefixes = Box<dyn Fn(&[&[u32]]) -> Result<Vec<(PathId, Vec<f32>)>, BoxError> + Send + Sync>;

/// Picks a path from the first tokens of an input (arXiv:2403.10616 §2.4).
pub struct PrefixRouter {
    /// Largest number of tokens that the router reads.
    pub prefix_tokens: usize,
    /// The routing rule. An input's path does not depend on the other inputs.
    pub route: RoutePrefixes,
}

/// The paths of a run with the weights of one moment.
pub struct RunPaths {
    fingerprint: Arc<str>,
    load: LoadPath,
    /// A path's lock is held while the path is loaded, so that it is loaded once.
    paths: Vec<Mutex<Option<ServedPath>>>,
}

impl RunPaths {
    /// `paths` paths, without loading them. `fingerprint` is that of the weights and of the program.
    #[must_use]
    pub fn new(paths: u32, fingerprint: &str, load: LoadPath) -> Self {
        Self { fingerprint: fingerprint.into(), load, paths: (0..paths).map(|_| Mutex::default()).collect() }
    }

    /// Loads every path now, so that no request waits for a path and damaged files are found at the start.
    ///
    /// # Errors
    /// The first path that can't be loaded.
    pub fn load_all(&self) -> Result<(), RunModelError> {
        (0..).take(self.paths.len()).try_for_each(|path| self.path(PathId(path)).map(drop))
    }

    /// Returns a path, which is loaded on first use.
    ///
    /// # Errors
    /// When the path does not exist or can't be loaded.
    pub fn path(&self, id: PathId) -> Result<ServedPath, RunModelError> {
        let missing = || RunModelError::NoPath { path: id, paths: self.paths.len() as u32 };
        let mut slot = lock(self.paths.get(id.index()).ok_or_else(missing)?);
        if let Some(path) = &*slot {
            return Ok(path.clone());
        }
        let path = (self.load)(id).map_err(|source| RunModelError::Load { path: id, source })?;
        *slot = Some(path.clone());
        Ok(path)
    }

    /// Memory of the loaded modules in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let loaded = self.paths.iter().filter_map(|path| lock(path).clone());
        // Paths share modules: each is counted once.
        let modules = loaded.flat_map(|path| path.modules).map(|module| (Arc::as_ptr(&module), module));
        modules.collect::<BTreeMap<_, _>>().values().map(|module| module.bytes()).sum()
    }
}

impl Generation for RunPaths {
    fn fingerprint(&self) -> Arc<str> {
        Arc::clone(&self.fingerprint)
    }

    fn prepare(&self, path: PathId) -> Result<ServedPath, BoxError> {
        Ok(self.path(path)?)
    }
}

/// The paths of a run and their router.
pub struct RunModel {
    config: ModelConfig,
    topology: Topology,
    stepper: Stepper,
    router: Option<PrefixRouter>,
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
        Ok(Self { config, topology, stepper, router, newest: Mutex::new(Arc::new(paths)) })
    }

    /// The paths that new sequences use.
    #[must_use]
    pub fn newest(&self) -> Arc<RunPaths> {
        Arc::clone(&lock(&self.newest))
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
            let only = Route { path: PathId(0), distances: Vec::new(), prefix_tokens: 0 };
            return Ok(vec![only; prefixes.len()]);
        };
        let routes = (router.route)(prefixes)?;
        let (given, asked, paths) = (routes.len(), prefixes.len(), self.topology.paths());
        if given != asked {
            return Err(RunModelError::Routes { given, asked }.into());
        }
        let route = |((path, distances), prefix): ((PathId, Vec<f32>), &&[u32])| {
            if path.0 >= paths {
                return Err(RunModelError::WrongRouter { path, paths }.into());
            }
            Ok(Route { path, distances, prefix_tokens: prefix.len() })
        };
        routes.into_iter().zip(prefixes).map(route).collect()
    }

    fn generation(&self) -> Arc<dyn Generation> {
        self.newest()
    }

    fn weight_bytes(&self) -> usize {
        self.newest().bytes()
    }

    fn page_bytes(&self, kv: KvType) -> usize {
        self.stepper.page_bytes(kv)
    }

    fn executor(&self, pages: usize, kv: KvType) -> Box<dyn Executor + '_> {
        Box::new(Steps { model: self, pages: self.stepper.pages(pages, kv) })
    }
}

struct Steps<'a> {
    model: &'a RunModel,
    pages: KvPages,
}

impl Executor for Steps<'_> {
    fn step(&mut self, rows: &[SequenceRows<'_>]) -> Result<Vec<Vec<f32>>, BoxError> {
        let batch = rows.iter().map(|rows| {
            let SequenceRows { served, tokens, start, pages, logits, .. } = *rows;
            StepSequence { modules: &served.modules, tokens, start, pages, logits }
        });
        let batch: Vec<StepSequence<'_>> = batch.collect();
        Ok(self.model.stepper.step(&batch, &mut self.pages)?)
    }
}
