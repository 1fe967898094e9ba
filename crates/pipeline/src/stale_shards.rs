//! The error of shards that are older than a file or a setting of their run.

use std::path::PathBuf;

use thiserror::Error;

/// Shards that were made before the router, the tokenizer, the seed, the text or the settings of their run.
#[derive(Debug, Error)]
#[error(
    "the shards in {} are older than {newer}: they were made with {then}, and it is {now} now: {remedy}",
    folder.display()
)]
pub struct StaleShards {
    /// The folder of the shards.
    pub folder: PathBuf,
    /// The newer one, with its file.
    pub newer: String,
    /// Its hash or its value when the shards were made.
    pub then: String,
    /// Its hash or its value now.
    pub now: String,
    /// The remedy.
    pub remedy: String,
}
