//! A tile of a product, and its results.

use super::{ActivationBlock, Layout, SCALES};
use crate::product::NR;

/// Up to [`TileRows::MOST`] rows of the left operand and a panel of the right one.
#[derive(Debug)]
pub(super) struct QuantizedTile<'a> {
    /// Row by row.
    x: &'a [ActivationBlock],
    /// Blocks of a row.
    pub(super) blocks: usize,
    panel: &'a [u8],
    layout: Layout,
}

impl<'a> QuantizedTile<'a> {
    pub(super) fn new(x: &'a [ActivationBlock], blocks: usize, panel: &'a [u8], layout: Layout) -> Self {
        assert!(
            x.len().is_multiple_of(blocks) && panel.len() == blocks * layout.block(),
            "sizes that do not fit"
        );
        Self { x, blocks, panel, layout }
    }

    pub(super) fn rows(&self) -> usize {
        self.x.len() / self.blocks
    }

    /// Block `b` of row `i`.
    #[inline(always)]
    pub(super) fn x(&self, i: usize, b: usize) -> &ActivationBlock {
        &self.x[i * self.blocks + b]
    }

    /// Block `b` of the panel: scales and vectors.
    #[inline(always)]
    pub(super) fn weights(&self, b: usize) -> (&[u8], &[u8]) {
        let block = self.layout.block();
        self.panel[b * block..][..block].split_at(SCALES)
    }
}

/// The results of a tile.
#[derive(Debug, Default)]
pub(super) struct TileRows(pub(super) [[f32; NR]; Self::MOST]);

impl TileRows {
    /// Most rows of a tile.
    pub(super) const MOST: usize = 4;
}
