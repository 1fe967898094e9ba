//! What can go wrong while evaluating.

use dipaco_topology::PathId;

/// An error of another package, kept as the source of ours.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A value of the configuration can't be used.
    #[error("evaluation.{key} = {value}: {problem}")]
    Config {
        /// The key below `[evaluation]`.
        key: &'static str,
        /// Its value.
        value: usize,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// A path's model could not be loaded.
    #[error("path {path} could not be loaded")]
    Load {
        /// The path.
        path: PathId,
        /// Why.
        #[source]
        source: Source,
    },
    /// A path's shard could not be used.
    #[error("the validation shard of path {path} can't be used")]
    Shard {
        /// The path.
        path: PathId,
        /// Why.
        #[source]
        source: dipaco_routing::RoutingError,
    },
    /// The model failed on a sequence.
    #[error("{file}: scoring the sequences from document {document} on failed")]
    Model {
        /// The token file.
        file: String,
        /// The first document of the batch.
        document: u64,
        /// The model's error.
        #[source]
        source: Source,
    },
    /// The model gave a log-probability that is not finite.
    #[error(
        "{file}: the model gives document {document} a log-probability of {value}: its weights are damaged or its \
         training diverged"
    )]
    NotFinite {
        /// The token file.
        file: String,
        /// The document.
        document: u64,
        /// What it gave.
        value: f32,
    },
    /// The router failed on a sequence.
    #[error("{file}: choosing paths during the sequences from document {document} on failed")]
    Router {
        /// The token file.
        file: String,
        /// The first document of the batch.
        document: u64,
        /// The router's error.
        #[source]
        source: Source,
    },
    /// The router gave a score that is not a number.
    #[error(
        "{file}: the router gives document {document} a score that is not a number: it is damaged or its training \
         diverged; fit it again"
    )]
    RouterNotFinite {
        /// The token file.
        file: String,
        /// The document.
        document: u64,
    },
    /// The router was made for other paths.
    #[error(
        "the router that chooses during a text has {router} paths, the shards have {shards}: fit it again for this run"
    )]
    RouterPaths {
        /// Paths of the router.
        router: u32,
        /// Paths of the shards.
        shards: u32,
    },
    /// The model gave another number of scores than it was asked for.
    #[error("the model gave {actual} scores for {expected} positions")]
    Shape {
        /// B · T.
        expected: usize,
        /// What came.
        actual: usize,
    },
    /// A token has no length in bytes.
    #[error(
        "token {token} is outside of the table of {tokens} token lengths: give the lengths of the run's tokenizer"
    )]
    TokenBytes {
        /// The token.
        token: u32,
        /// Length of the table.
        tokens: usize,
    },
    /// Nothing could be counted.
    #[error(
        "none of {documents} documents is longer than the {prefix_tokens} tokens that are not counted: evaluate on longer \
         documents, or lower evaluation.prefix_tokens"
    )]
    NothingToCount {
        /// Documents that were read.
        documents: u64,
        /// The prefix.
        prefix_tokens: usize,
    },
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
}
