//! The interface between the engine and a model.

use dipaco_topology::{PathId, Topology};

use crate::BoxError;

/// Decision of the router for an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The path.
    pub path: PathId,
    /// Distance of the input to each path (P), lower is nearer. Empty for a router without distances.
    pub distances: Vec<f32>,
    /// Number of tokens of the input that the router read.
    pub prefix_tokens: usize,
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

    /// Picks the path of an input from its first tokens. `prefix` has 1 to [`prefix_tokens`](Self::prefix_tokens) tokens.
    ///
    /// # Errors
    /// When the features can't be computed.
    fn route(&self, prefix: &[u32]) -> Result<Route, BoxError>;

    /// Begins a sequence on a path, with an empty KV cache.
    ///
    /// # Errors
    /// When the path does not exist or its modules can't be loaded.
    fn begin(&self, path: PathId) -> Result<Box<dyn Sequence>, BoxError>;
}

/// One sequence on one path, with its KV cache.
pub trait Sequence: Send {
    /// Appends T tokens and returns logits in f32: (T, V) row-major if `all_positions` is set, else (V) of the last
    /// position.
    ///
    /// # Errors
    /// When the context is exceeded or the device fails.
    fn feed(&mut self, tokens: &[u32], all_positions: bool) -> Result<Vec<f32>, BoxError>;
}
