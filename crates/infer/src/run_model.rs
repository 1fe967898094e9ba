//! The paths of a run and their router as a model.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_model::{KvCache, ModelConfig, ModelError, Path};
use dipaco_topology::{PathId, Topology};
use thiserror::Error;

use crate::{BoxError, Route, RoutedModel, Sequence};

/// Loads a path, composed of modules that it shares with other paths. May be called from several threads, and again for a
/// path that failed to load before.
pub type LoadPath = Box<dyn Fn(PathId) -> Result<Path, BoxError> + Send + Sync>;

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

/// Picks the path for the first tokens of an input, and returns it with the distance to every path (P).
pub type RoutePrefix = Box<dyn Fn(&[u32]) -> Result<(PathId, Vec<f32>), BoxError> + Send + Sync>;

/// Picks a path from the first tokens of an input (arXiv:2403.10616 §2.4).
pub struct PrefixRouter {
    /// Largest number of tokens that the router reads.
    pub prefix_tokens: usize,
    /// The routing rule.
    pub route: RoutePrefix,
}

/// The paths of a run and their router.
pub struct RunModel {
    config: ModelConfig,
    topology: Topology,
    router: Option<PrefixRouter>,
    load: LoadPath,
    /// A path's lock is held while the path is loaded, so that it is loaded once.
    paths: Vec<Mutex<Option<Path>>>,
}

impl RunModel {
    /// A model of a run, without loading its paths. A run of one path needs no router.
    ///
    /// # Errors
    /// When the topology does not fit the configuration, or there are several paths and no router.
    pub fn new(
        config: ModelConfig,
        topology: Topology,
        router: Option<PrefixRouter>,
        load: LoadPath,
    ) -> Result<Self, RunModelError> {
        config.check_topology(&topology)?;
        if router.is_none() && topology.paths() > 1 {
            return Err(RunModelError::NoRouter { paths: topology.paths() });
        }
        let paths = topology.path_ids().map(|_| Mutex::default()).collect();
        Ok(Self { config, topology, router, load, paths })
    }

    /// Loads every path now, so that no request waits for a path and damaged files are found at the start.
    ///
    /// # Errors
    /// The first path that can't be loaded.
    pub fn load_all(&self) -> Result<(), RunModelError> {
        self.topology.path_ids().try_for_each(|path| self.path(path).map(drop))
    }

    /// Returns a path, which is loaded on first use.
    ///
    /// # Errors
    /// When the path does not exist or can't be loaded.
    pub fn path(&self, id: PathId) -> Result<Path, RunModelError> {
        let paths = self.topology.paths();
        let slot = self.paths.get(id.index()).ok_or(RunModelError::NoPath { path: id, paths })?;
        let mut slot = lock(slot);
        if let Some(path) = &*slot {
            return Ok(path.clone());
        }
        let path = (self.load)(id).map_err(|source| RunModelError::Load { path: id, source })?;
        *slot = Some(path.clone());
        Ok(path)
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

    fn route(&self, prefix: &[u32]) -> Result<Route, BoxError> {
        let Some(router) = &self.router else {
            return Ok(Route { path: PathId(0), distances: Vec::new(), prefix_tokens: 0 });
        };
        let (path, distances) = (router.route)(prefix)?;
        let paths = self.topology.paths();
        if path.0 >= paths {
            return Err(RunModelError::WrongRouter { path, paths }.into());
        }
        Ok(Route { path, distances, prefix_tokens: prefix.len() })
    }

    fn begin(&self, path: PathId) -> Result<Box<dyn Sequence>, BoxError> {
        let path = self.path(path)?;
        let cache = path.new_cache();
        Ok(Box::new(Decoding { path, cache }))
    }
}

struct Decoding {
    path: Path,
    cache: KvCache,
}

impl Sequence for Decoding {
    fn feed(&mut self, tokens: &[u32], all_positions: bool) -> Result<Vec<f32>, BoxError> {
        Ok(self.path.decode(tokens, &mut self.cache, all_positions)?)
    }
}
