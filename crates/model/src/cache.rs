//! Keys and values of the tokens of a sequence that were already decoded.

use crate::ModelConfig;
use crate::scratch::Scratch;

/// Keys and values of one sequence, of up to `model.context` positions. The memory grows with the sequence: it is doubled
/// when it is full, up to 2 · blocks · context · Hkv · Dh numbers. The cache also keeps the memory of a pass for the next
/// pass.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(crate) blocks: Vec<BlockCache>,
    pub(crate) scratch: Scratch,
    length: usize,
    context: usize,
    /// Hkv × Dh.
    row: usize,
}

/// Keys and values of one block, (positions, Hkv × Dh) each.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockCache {
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

/// Positions that a cache has room for at least, once it has any.
const FEWEST: usize = 64;

impl KvCache {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            blocks: vec![BlockCache::default(); config.blocks],
            scratch: Scratch::default(),
            length: 0,
            context: config.context,
            row: config.key_value_size(),
        }
    }

    /// Returns true if the cache is one of a path of this shape.
    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        (self.blocks.len(), self.row, self.context)
            == (config.blocks, config.key_value_size(), config.context)
    }

    /// Makes room for `positions` positions, at most the context.
    pub(crate) fn make_room(&mut self, positions: usize) {
        let has = self.blocks.first().map_or(0, |block| block.keys.len() / self.row);
        if positions <= has {
            return;
        }
        // Doubling copies each position about once in all.
        let room = positions.max(2 * has).max(FEWEST).min(self.context) * self.row;
        for BlockCache { keys, values } in &mut self.blocks {
            for numbers in [keys, values] {
                numbers.reserve_exact(room - numbers.len());
                numbers.resize(room, 0.0);
            }
        }
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
