//! The model as the engine needs it.

use dipaco_topology::{PathId, Topology};

use crate::BoxError;

/// Where the router sends an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path.
    pub path: PathId,
    /// The router's distance of the input to each path, lower is nearer. Empty when the router gives none.
    pub distances: Vec<f32>,
    /// How many tokens of the input the router read.
    pub prefix_tokens: usize,
}

/// Many paths and the router that picks one.
pub trait RoutedModel: Send + Sync {
    /// The largest number of tokens of a sequence, prompt and continuation together.
    fn context(&self) -> usize;

    /// V, the number of logits of a position.
    fn vocab_size(&self) -> usize;

    /// The paths and their modules.
    fn topology(&self) -> &Topology;

    /// How many tokens of an input the router reads at most.
    fn prefix_tokens(&self) -> usize;

    /// Picks the path of an input by its first tokens; `prefix` has 1 to [`prefix_tokens`](Self::prefix_tokens) tokens.
    ///
    /// # Errors
    /// When the features can't be computed.
    fn route(&self, prefix: &[u32]) -> Result<Route, BoxError>;

    /// Begins a sequence with an empty KV cache on a path.
    ///
    /// # Errors
    /// When the path does not exist or its modules can't be loaded.
    fn begin(&self, path: PathId) -> Result<Box<dyn Sequence>, BoxError>;
}

/// One sequence on one path, with its KV cache.
pub trait Sequence: Send {
    /// Appends T tokens and gives logits in f32: (T, V) row-major when `all_positions`, else (V) of the last position.
    ///
    /// # Errors
    /// When the context is exceeded or the device fails.
    fn feed(&mut self, tokens: &[u32], all_positions: bool) -> Result<Vec<f32>, BoxError>;
}
