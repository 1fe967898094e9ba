//! The source of the features that a router reads.

use dipaco_model::Path;
use dipaco_shards::document_number;

use crate::{FeatureExtractor, RouterConfig, RouterKind, RoutingError, Source};

/// Key context that separates this use of BLAKE3 from all others.
const RANDOM: &str = "dipaco 2026 random paths of documents";

/// Features for a kind of router: the mean output of a block of the seed, or for random routing a number from 0 to below 1
/// that is a hash of the tokens.
#[derive(Clone, Debug)]
pub struct RouterFeatures {
    seed: Path,
    source: Feature,
}

#[derive(Clone, Copy, Debug)]
enum Feature {
    /// Output of this block.
    Block(usize),
    /// Hash with this seed.
    Hash(u64),
}

impl RouterFeatures {
    /// The features of `seed` for a router of this kind and these settings.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Config`] if the seed has no such block.
    pub fn new(seed: Path, kind: RouterKind, config: &RouterConfig) -> Result<Self, RoutingError> {
        let blocks = seed.config().blocks;
        let source = match (kind, config.feature_block) {
            (RouterKind::Random, _) => Feature::Hash(config.seed),
            (_, None) => Feature::Block(blocks.saturating_sub(1)),
            (_, Some(block)) if block < blocks => Feature::Block(block),
            (_, Some(block)) => {
                return Err(RoutingError::Config {
                    key: "feature_block",
                    value: block.to_string(),
                    problem: "must be below model.blocks, because blocks are counted from 0",
                });
            }
        };
        Ok(Self { seed, source })
    }
}

impl FeatureExtractor for RouterFeatures {
    fn dimension(&self) -> usize {
        match self.source {
            Feature::Block(_) => self.seed.config().hidden_size,
            Feature::Hash(_) => 1,
        }
    }

    fn context(&self) -> usize {
        self.seed.config().context
    }

    fn features(&self, tokens: &[u32], lengths: &[usize]) -> Result<Vec<f32>, Source> {
        match self.source {
            Feature::Block(block) => Ok(self.seed.block_features(block, tokens, lengths, lengths.len())?),
            Feature::Hash(seed) => {
                let width = tokens.len().checked_div(lengths.len()).unwrap_or(0).max(1);
                let number = |(row, &length): (&[u32], &usize)| {
                    document_number(RANDOM, seed, row.get(..length).unwrap_or(row)) as f32
                };
                Ok(tokens.chunks_exact(width).zip(lengths).map(number).collect())
            }
        }
    }
}
