//! The router that chooses paths within a text.

use serde::{Deserialize, Serialize};

/// The router that chooses paths within a text, by the tokens before a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RerouteBy {
    /// The transformer router, which reads all tokens before the chunk. It has to be fitted first.
    #[default]
    Transformer,
    /// The router of documents, of any kind but `"labels"`. It reads the features of the last `routing.prefix_tokens` tokens
    /// before the chunk, or of all of them if they are fewer.
    Features,
}
