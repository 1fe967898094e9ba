//! Rotary position embedding (arXiv:2104.09864), the rotate-half form of Hugging Face's Llama.

use std::sync::{Arc, OnceLock};

use crate::OpsError;
use crate::error::shape;

/// Numbers in a block of the table. A block has at least one position.
const BLOCK: usize = 1 << 16;

/// The cosines and sines of all positions of a model. Clones share them.
///
/// The table is made in blocks of positions, each at its first use. So a model with room for a million positions takes memory
/// for those that its texts have.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    positions: usize,
    theta: f64,
    /// Positions in a block.
    rows: usize,
    /// For each position of a block Dh / 2 cosines, then Dh / 2 sines.
    blocks: Arc<[OnceLock<Box<[f32]>>]>,
}

impl RopeTable {
    /// The table for `positions` positions, heads of `head_dim` elements (even) and base `theta`:
    /// angle(t, j) = t · theta^(-2j / Dh).
    ///
    /// # Errors
    /// When `head_dim` is 0 or odd.
    pub fn new(positions: usize, head_dim: usize, theta: f64) -> Result<Self, OpsError> {
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(shape(
                "rope",
                format!("a head can't have {head_dim} elements: rotations need an even number above 0"),
            ));
        }
        let rows = (BLOCK / head_dim).max(1);
        let blocks = (0..positions.div_ceil(rows)).map(|_| OnceLock::new()).collect();
        Ok(Self { half: head_dim / 2, positions, theta, rows, blocks })
    }

    /// The numbers of a block.
    #[cold]
    fn block(&self, number: usize) -> Box<[f32]> {
        let first = number * self.rows;
        let last = self.positions.min(first + self.rows);
        let mut numbers = Vec::with_capacity((last - first) * 2 * self.half);
        for position in first..last {
            let angle =
                |j: usize| position as f64 * self.theta.powf(-2.0 * j as f64 / (2 * self.half) as f64);
            numbers.extend((0..self.half).map(|j| angle(j).cos() as f32));
            numbers.extend((0..self.half).map(|j| angle(j).sin() as f32));
        }
        numbers.into()
    }

    /// The cosines and the sines of a position; `None` past the table.
    #[inline(always)]
    fn at(&self, position: usize) -> Option<(&[f32], &[f32])> {
        if position >= self.positions {
            return None;
        }
        let number = position / self.rows;
        let block = self.blocks.get(number)?.get_or_init(|| self.block(number));
        let begin = (position % self.rows) * 2 * self.half;
        Some(block.get(begin..begin + 2 * self.half)?.split_at(self.half))
    }

    /// Number of positions in the table.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Dh.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Rotates all heads of one position, which lie one after the other in `row`. A `sign` of 1 rotates, -1 rotates back.
    /// A position past the table leaves the row as it is.
    #[inline(always)]
    pub(crate) fn rotate(&self, row: &mut [f32], position: usize, sign: f32) {
        let Some((cos, sin)) = self.at(position) else { return };
        for head in row.chunks_exact_mut(2 * self.half) {
            let (low, high) = head.split_at_mut(self.half);
            for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                let (a, b, sin) = (*low, *high, sign * sin);
                *low = a * cos - b * sin;
                *high = b * cos + a * sin;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_memory_for_the_positions_in_use() {
        let table = RopeTable::new(1 << 20, 128, 1e4).unwrap();
        let made = |table: &RopeTable| table.blocks.iter().filter(|block| block.get().is_some()).count();
        let mut row = [1.0; 128];
        table.rotate(&mut row, 511, 1.0);
        assert_eq!((table.rows, made(&table)), (512, 1));
        table.rotate(&mut row, (1 << 20) - 1, 1.0);
        assert_eq!(made(&table.clone()), 2);
        table.rotate(&mut row, 1 << 20, 1.0);
        assert_eq!(made(&table), 2, "past the table");
        // A block of at least one position.
        assert_eq!(RopeTable::new(3, 1 << 19, 1e4).unwrap().blocks.len(), 3);
    }

    #[test]
    fn a_position_beside_the_end_of_a_block_has_its_own_angles() {
        // Blocks of two positions.
        let table = RopeTable::new(5, BLOCK / 2, 1e4).unwrap();
        for position in 0..5 {
            let (cos, sin) = table.at(position).unwrap();
            assert_eq!((cos.len(), sin.len()), (BLOCK / 4, BLOCK / 4));
            assert_eq!((cos[0], sin[0]), ((position as f64).cos() as f32, (position as f64).sin() as f32));
        }
        assert!(table.at(5).is_none());
    }
}
