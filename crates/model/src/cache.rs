//! Keys and values of the tokens that a sequence has already read.

use crate::ModelConfig;

/// The keys and values of one sequence, with room for `model.context` positions: 2 · blocks · context · H · Dh
/// numbers, reserved at once, so that appending never moves them.
#[derive(Clone, Debug)]
pub struct KvCache {
    /// Per block, (context, H × Dh).
    pub(crate) blocks: Vec<BlockCache>,
    length: usize,
    context: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct BlockCache {
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

impl KvCache {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let size = config.context * config.attention_size();
        let block = BlockCache { keys: vec![0.0; size], values: vec![0.0; size] };
        Self { blocks: vec![block; config.blocks], length: 0, context: config.context }
    }

    /// Positions in the cache.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing was read yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The most positions that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.context
    }

    /// Memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| (block.keys.len() + block.values.len()) * size_of::<f32>()).sum()
    }

    /// Forgets what follows the first `length` positions; does nothing when there are no more.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(crate) fn advance(&mut self, positions: usize) {
        self.length += positions;
    }
}
