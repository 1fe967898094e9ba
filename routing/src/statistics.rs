//! Statistics of the shards of a folder.

use std::fmt;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::{RoutingError, ShardSet};

/// Sizes, balance and examples of all shards; its `Display` is a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardStatistics {
    /// Hash of the router.
    pub router_hash: String,
    /// Number of documents in all shards; a document in several shards counts several times.
    pub documents: u64,
    /// Number of tokens in all shards.
    pub tokens: u64,
    /// Entropy of the shares of documents, divided by the entropy of equal shares: 1 if all shards are equally large, 0 if
    /// a single shard has all documents.
    pub balance: f64,
    /// Documents of the largest shard, divided by the mean.
    pub largest_over_mean: f64,
    /// Number of shards of a document.
    pub overlap: u32,
    /// Number of documents that are reserved for the router and go to no shard.
    pub reserved_documents: u64,
    /// Paths without a document.
    pub empty_paths: Vec<PathId>,
    /// One row for each path, in their order.
    pub rows: Vec<ShardStatisticsRow>,
}

/// One shard of [`ShardStatistics`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardStatisticsRow {
    /// The path.
    pub path: PathId,
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// Share of all documents, 0 to 1.
    pub share: f64,
    /// Share of all tokens, 0 to 1.
    pub token_share: f64,
    /// Mean of the path's scores of its documents: for k-means the negative distance to the centroid; 0 for an empty shard.
    pub mean_score: f64,
    /// The documents with the best scores.
    pub examples: Vec<ShardExample>,
}

/// The beginning of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardExample {
    /// Its number in the shard.
    pub document: u64,
    /// The path's score of the document.
    pub score: f32,
    /// Its first tokens.
    pub tokens: Vec<u32>,
}

/// Describes the shards of a folder, with up to `examples` documents of each (the manifest has at most 16), cut to
/// `example_tokens` tokens.
///
/// # Errors
///
/// A shard can't be opened or does not match the manifest, as in [`ShardSet::open_shard`].
pub fn inspect(
    shards: &ShardSet,
    examples: usize,
    example_tokens: usize,
) -> Result<ShardStatistics, RoutingError> {
    let all = shards.shards();
    let documents: u64 = all.iter().map(|shard| shard.documents).sum();
    let tokens: u64 = all.iter().map(|shard| shard.tokens).sum();
    let mut rows = Vec::with_capacity(all.len());
    for shard in all {
        let file = shards.open_shard(shard.path)?;
        let beginning = |document| file.document(document).slice(0..example_tokens as u64).to_vec();
        rows.push(ShardStatisticsRow {
            path: shard.path,
            documents: shard.documents,
            tokens: shard.tokens,
            share: ratio(shard.documents as f64, documents as f64),
            token_share: ratio(shard.tokens as f64, tokens as f64),
            mean_score: ratio(shard.score, shard.documents as f64),
            examples: shard
                .nearest
                .iter()
                .take(examples)
                .map(|example| ShardExample {
                    document: example.document,
                    score: example.score,
                    tokens: beginning(example.document),
                })
                .collect(),
        });
    }
    let largest = all.iter().map(|shard| shard.documents).max().unwrap_or(0);
    Ok(ShardStatistics {
        router_hash: shards.manifest().router_hash.clone(),
        documents,
        tokens,
        overlap: shards.manifest().overlap,
        reserved_documents: shards.manifest().reserved.as_ref().map_or(0, |reserved| reserved.documents),
        balance: balance(rows.iter().map(|row| row.share)),
        largest_over_mean: ratio(largest as f64 * all.len() as f64, documents as f64),
        empty_paths: shards.empty_paths().collect(),
        rows,
    })
}

/// The entropy of shares, divided by the largest possible; 1 for a single share.
fn balance(shares: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = shares.len();
    let entropy: f64 = shares.filter(|&share| share > 0.0).map(|share| -share * share.ln()).sum();
    if count <= 1 { 1.0 } else { entropy.max(0.0) / (count as f64).ln() }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl fmt::Display for ShardStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>5} {:>12} {:>8} {:>14} {:>8} {:>10} {:>11}",
            "path", "documents", "share", "tokens", "share", "tokens/doc", "mean score"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:>5} {:>12} {:>6.1} % {:>14} {:>6.1} % {:>10.0} {:>11.4}",
                row.path,
                row.documents,
                100.0 * row.share,
                row.tokens,
                100.0 * row.token_share,
                ratio(row.tokens as f64, row.documents as f64),
                row.mean_score
            )?;
        }
        write!(
            f,
            "{:>5} {:>12} {:>8} {:>14}\nbalance {:.3} (1 = even), largest shard {:.2} × the mean, {} of {} paths empty",
            "all",
            self.documents,
            "",
            self.tokens,
            self.balance,
            self.largest_over_mean,
            self.empty_paths.len(),
            self.rows.len()
        )?;
        if self.overlap > 1 {
            write!(f, "\neach document is in the shards of its {} best paths", self.overlap)?;
        }
        if self.reserved_documents > 0 {
            write!(
                f,
                "\n{} documents are in no shard: they are reserved for the router",
                self.reserved_documents
            )?;
        }
        Ok(())
    }
}
