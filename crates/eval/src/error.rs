//! Errors of an evaluation.

use dipaco_model::BoxError;
use dipaco_settings::SettingError;
use dipaco_topology::PathId;

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A value of `[evaluation]` can't be used.
    #[error(transparent)]
    Config(#[from] SettingError),
    /// A path's model could not be loaded.
    #[error("path {path} could not be loaded")]
    Load {
        /// The path.
        path: PathId,
        /// Error of the source of paths.
        #[source]
        source: BoxError,
    },
    /// The validation shard of a path could not be used.
    #[error("the validation shard of path {path} can't be used")]
    Shard {
        /// The path.
        path: PathId,
        /// Error of the shard.
        #[source]
        source: dipaco_routing::RoutingError,
    },
    /// A token file holds an id outside of its vocabulary.
    #[error(transparent)]
    Tokens(#[from] dipaco_shards::ShardsError),
    /// The model failed on a sequence.
    #[error("{file}: the model failed to score a batch of sequences that starts in document {document}")]
    Model {
        /// The token file.
        file: String,
        /// The first document of the batch.
        document: u64,
        /// The model's error.
        #[source]
        source: BoxError,
    },
    /// The model returned a log-probability that is not finite.
    #[error(
        "{file}: the model gives document {document} a log-probability of {value}: its weights are damaged or its \
         training diverged"
    )]
    NotFinite {
        /// The token file.
        file: String,
        /// The document.
        document: u64,
        /// The log-probability.
        value: f32,
    },
    /// The router failed on a sequence.
    #[error("{file}: the router failed on a batch of sequences that starts in document {document}")]
    Router {
        /// The token file.
        file: String,
        /// The first document of the batch.
        document: u64,
        /// The router's error.
        #[source]
        source: BoxError,
    },
    /// The router returned a score that is not a number.
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
    /// The router reads tokens that count.
    #[error(
        "the router reads {read} tokens but the first {uncounted} tokens of a sequence do not count: raise \
         evaluation.prefix_tokens"
    )]
    RouterPrefix {
        /// Number of tokens that the router reads.
        read: usize,
        /// Number of tokens at the start of a sequence that do not count.
        uncounted: usize,
    },
    /// The router was fitted for another number of paths.
    #[error(
        "the router has {router} paths but the run has {shards} shards: fit the router again for this run"
    )]
    RouterPaths {
        /// Number of paths of the router.
        router: u32,
        /// Number of paths that the shards belong to.
        shards: u32,
    },
    /// The model or the router returned a wrong number of scores.
    #[error(
        "{actual} scores were returned where {expected} were expected: the model or the router has another shape"
    )]
    Shape {
        /// Expected number of scores: B · T for a model, B · positions · P for a router.
        expected: usize,
        /// Returned number of scores.
        actual: usize,
    },
    /// The table of token lengths lacks a token.
    #[error(
        "token {token} is not in the table of {tokens} token lengths: give the lengths of the run's tokenizer"
    )]
    TokenBytes {
        /// The token.
        token: u32,
        /// Number of tokens in the table.
        tokens: usize,
    },
    /// No token was left to count.
    #[error(
        "none of {documents} documents is longer than the {prefix_tokens} tokens that are read and not counted: evaluate \
         on longer documents, or lower evaluation.prefix_tokens"
    )]
    NothingToCount {
        /// Number of documents read.
        documents: u64,
        /// Number of tokens that are read and not counted.
        prefix_tokens: usize,
    },
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
}
