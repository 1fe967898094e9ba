//! Keys and values of the tokens of a sequence that were already decoded.

use crate::ModelConfig;
use crate::scratch::Scratch;

/// Keys and values of one sequence, with room for `model.context` positions. All 2 · blocks · context · H · Dh numbers
/// are allocated at once, so appending never moves them. The cache also keeps the memory of a pass for the next pass.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(crate) blocks: Vec<BlockCache>,
    pub(crate) scratch: Scratch,
    length: usize,
    context: usize,
}

/// Keys and values of one block, (context, H × Dh) each.
#[derive(Clone, Debug)]
pub(crate) struct BlockCache {
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

impl KvCache {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let size = config.context * config.attention_size();
        let block = BlockCache { keys: vec![0.0; size], values: vec![0.0; size] };
        let scratch = Scratch::default();
        Self { blocks: vec![block; config.blocks], scratch, length: 0, context: config.context }
    }

    /// Returns the number of positions in the cache.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the cache holds no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the maximum number of positions.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.context
    }

    /// Returns the memory of the keys and values in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| (block.keys.len() + block.values.len()) * size_of::<f32>()).sum()
    }

    /// Drops all positions after the first `length`. Does nothing if the cache has fewer.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(crate) fn advance(&mut self, positions: usize) {
        self.length += positions;
    }
}
