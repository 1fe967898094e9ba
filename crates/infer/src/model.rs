//! The interface between the engine and a model.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dipaco_model::{PackedModule, Positions};
use dipaco_topology::{PathId, Topology};

use crate::{BoxError, Dtype, ModuleKey, ModuleMemory};

/// The meaning of a router's distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Euclidean distances of features to centroids, less a bias of each path.
    #[default]
    Euclidean,
    /// -ln of the probability that the router gives to each path.
    Surprise,
}

/// Decision of the router for an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path.
    pub path: PathId,
    /// Distance of the input to each path (P), lower is nearer. Empty for a router without distances.
    pub distances: Vec<f32>,
    /// The meaning of the distances.
    pub measure: Measure,
    /// Distance of the input to the path's module of each level (L), where the router chooses the module of the level by a
    /// part of the features. Empty for a router that chooses paths as a whole.
    pub level_distances: Vec<Option<f32>>,
    /// Number of tokens of the input that the router read.
    pub prefix_tokens: usize,
}

impl Route {
    /// The decision of a router that chooses paths as a whole, by Euclidean distances.
    #[must_use]
    pub fn new(path: PathId, distances: Vec<f32>) -> Self {
        Self { path, distances, measure: Measure::default(), level_distances: Vec::new(), prefix_tokens: 0 }
    }
}

/// The versions of a path's modules: a hash of their contents. Keys and values of equal tokens under equal versions are
/// equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathVersion(pub [u8; 32]);

/// A path that is ready to run.
#[derive(Clone, Debug)]
pub struct ServedPath {
    /// One module for each level. Paths share modules.
    pub modules: Vec<Arc<PackedModule>>,
    /// The versions of the modules.
    pub version: PathVersion,
    /// The modules' keys, one for each level; none if no cache has the modules.
    pub keys: Vec<ModuleKey>,
    /// Keeps the modules in memory.
    pub(crate) _held: Held,
}

/// Keeps the modules of a path in memory until its last clone is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    _guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl Held {
    /// `guard` holds the modules until it is dropped.
    pub(crate) fn new(guard: impl Any + Send + Sync) -> Self {
        Self { _guard: Some(Arc::new(guard)) }
    }
}

impl ServedPath {
    /// A path of these modules, one for each level, that no cache has.
    #[must_use]
    pub fn new(modules: Vec<Arc<PackedModule>>, version: PathVersion) -> Self {
        Self { modules, version, keys: Vec::new(), _held: Held::default() }
    }

    /// A path of modules that a cache has under these keys, for as long as they are held.
    pub(crate) fn of_cache(
        modules: Vec<Arc<PackedModule>>,
        version: PathVersion,
        keys: &[ModuleKey],
        held: Held,
    ) -> Self {
        Self { modules, version, keys: keys.to_vec(), _held: held }
    }

    /// Memory of the path's modules in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.modules.iter().map(|module| module.bytes()).sum()
    }
}

/// The paths with the weights of one moment. A training may replace them by a new generation while sequences run; those keep
/// theirs.
pub trait Generation: Send + Sync {
    /// Fingerprint of the weights and of the program: the same fingerprint and seed give the same text.
    fn fingerprint(&self) -> Arc<str>;

    /// The path, if its modules are in memory. Never waits.
    fn loaded(&self, path: PathId) -> Option<ServedPath>;

    /// Makes a path ready to run. Loads what is not in memory, and may wait for room until other sequences have ended.
    /// `unwanted` becomes true when nobody waits for the path any more.
    ///
    /// # Errors
    /// When the path does not exist, its modules can't be loaded, or it is `unwanted` before it is ready.
    fn prepare(&self, path: PathId, unwanted: &AtomicBool) -> Result<ServedPath, BoxError>;

    /// Lets calls of [`prepare`](Self::prepare) that wait see that their `unwanted` became true. Never waits for them.
    fn look_again(&self) {}
}

/// The paths of a model and their router.
pub trait RoutedModel: Send + Sync {
    /// Largest number of tokens of a sequence, prompt and continuation together.
    fn context(&self) -> usize;

    /// V, the number of logits of a position.
    fn vocab_size(&self) -> usize;

    /// The paths and their modules.
    fn topology(&self) -> &Topology;

    /// Largest number of tokens of an input that the router reads.
    fn prefix_tokens(&self) -> usize;

    /// Picks the path of each input from its first tokens, 1 to [`prefix_tokens`](Self::prefix_tokens) of them. A route does
    /// not depend on the other inputs.
    ///
    /// # Errors
    /// When the features can't be computed.
    fn route(&self, prefixes: &[&[u32]]) -> Result<Vec<Route>, BoxError>;

    /// True if the model can choose paths within a text.
    fn reroutes(&self) -> bool {
        false
    }

    /// Picks the path that continues a text. The choice depends on nothing but these tokens.
    ///
    /// # Errors
    /// When the model can't choose paths within a text, or the router fails.
    fn reroute(&self, _tokens: &[u32]) -> Result<PathId, BoxError> {
        Err("this model can't choose paths within a text".into())
    }

    /// The modules that the keys and values of a path depend on, for the first stage, for the first two, and so on, up to
    /// those of all stages. A stage is a run of consecutive blocks of one level. Paths with equal modules of the first
    /// stages share what these have computed of a text. Only the last entry is there if rows can't begin in a later stage.
    /// Without entries, paths with equal versions share all stages, and others share none.
    fn stages(&self, _modules: &[ModuleKey]) -> Vec<Vec<ModuleKey>> {
        Vec::new()
    }

    /// The newest generation of the paths.
    fn generation(&self) -> Arc<dyn Generation>;

    /// Returns the memory of the modules.
    fn module_memory(&self) -> ModuleMemory;

    /// Returns the memory of a page of keys and values in bytes.
    fn page_bytes(&self, kv: Dtype) -> usize;

    /// Reserves `pages` pages of keys and values, and returns the runner of steps with them.
    fn executor(&self, pages: usize, kv: Dtype) -> Box<dyn Executor + '_>;
}

/// Runs steps on a model, with its pages of keys and values.
pub trait Executor: Send {
    /// Appends the tokens of each sequence and returns, for each, the logits (positions, V) that it asks for. A sequence's
    /// logits have the same bits whatever other sequences the step has. Rows may be repeated with the same result.
    ///
    /// # Errors
    /// When a sequence can't run. The rows of the others may have run.
    fn step(&mut self, rows: &[SequenceRows<'_>]) -> Result<Vec<Vec<f32>>, BoxError>;

    /// Copies from one page to another what the first stages have left in it.
    ///
    /// # Errors
    /// When a page or a stage does not exist.
    fn copy_page(&mut self, copy: &PageCopy) -> Result<(), BoxError>;
}

/// A copy of what the stages below `stage` have left in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The page that is read.
    pub from: u32,
    /// The page that is written.
    pub to: u32,
    /// The first stage that is left out.
    pub stage: usize,
}

/// The rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRows<'a> {
    /// The path.
    pub path: PathId,
    /// Its modules.
    pub served: &'a ServedPath,
    /// The tokens to append.
    pub tokens: &'a [u32],
    /// Number of tokens before them.
    pub start: usize,
    /// The first stage that the rows go through. The stages below it have left their keys and values in the pages.
    pub stage: usize,
    /// Numbers of the sequence's pages, in the order of its tokens.
    pub pages: &'a [u32],
    /// The positions whose logits are wanted.
    pub logits: Positions,
}
