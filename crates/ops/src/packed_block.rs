//! A transformer block for serving: weights packed once, rows of many sequences.
//!
//! A block is implemented three times, and the three must change together: see `block/forward.rs`.

use rayon::prelude::*;

use crate::attention::paged::{PagedQueries, attend};
use crate::block::BlockShape;
use crate::buffer::Workspace;
use crate::element::Element;
use crate::kv_pages::{KvShape, SequencePages, SharedMemory};
use crate::packed_rows::{PackedRows, Target, gated_products};
use crate::product::Shared;
use crate::{OpsError, WeightFormat, rms_norm, vector};

/// The weights of a block, packed for products with any number of rows.
#[derive(Debug)]
pub struct PackedBlock {
    input_norm: Vec<f32>,
    qkv: PackedRows,
    o: PackedRows,
    post_norm: Vec<f32>,
    gate: PackedRows,
    up: PackedRows,
    down: PackedRows,
}

/// A part of a block's weights. Neighbours that multiply the same input are one matrix, but for gate and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPart {
    /// The norm before attention (D).
    InputNorm,
    /// Queries, keys and values ((H + 2 · Hkv)·Dh, D).
    Qkv,
    /// The output of attention (D, H·Dh).
    O,
    /// The norm after attention (D).
    PostNorm,
    /// The gate of the feed-forward layer (F, D).
    Gate,
    /// The other factor of the feed-forward layer (F, D).
    Up,
    /// The output of the feed-forward layer (D, F).
    Down,
}

/// Packs a block part by part, in any order, so that one part at a time need be in memory as f32.
#[derive(Debug, Default)]
pub struct BlockPacker {
    input_norm: Option<Vec<f32>>,
    qkv: Option<PackedRows>,
    o: Option<PackedRows>,
    post_norm: Option<Vec<f32>>,
    gate: Option<PackedRows>,
    up: Option<PackedRows>,
    down: Option<PackedRows>,
}

impl BlockPacker {
    /// Packs a part from f32 values, row-major. A matrix is rounded to `format`. A norm stays f32. The last of two equal
    /// parts counts.
    ///
    /// # Errors
    /// The number of values is not that of the part, or the rows of a matrix are no multiple of the format's blocks.
    pub fn add(
        &mut self,
        shape: &BlockShape,
        part: BlockPart,
        values: &[f32],
        format: WeightFormat,
    ) -> Result<(), OpsError> {
        let (width, attention, ffn) = (shape.width, shape.attention(), shape.ffn);
        let (rows, depth) = match part {
            BlockPart::InputNorm | BlockPart::PostNorm => (1, width),
            BlockPart::Qkv => (shape.qkv(), width),
            BlockPart::O => (width, attention),
            BlockPart::Gate | BlockPart::Up => (ffn, width),
            BlockPart::Down => (width, ffn),
        };
        if values.len() != rows * depth {
            let problem = format!("{part:?} has {rows} x {depth} values, and {} were given", values.len());
            return Err(crate::error::shape("packed block", problem));
        }
        let packed = || PackedRows::with_format(values, depth, format).map(Some);
        match part {
            BlockPart::InputNorm => self.input_norm = Some(values.to_vec()),
            BlockPart::Qkv => self.qkv = packed()?,
            BlockPart::O => self.o = packed()?,
            BlockPart::PostNorm => self.post_norm = Some(values.to_vec()),
            BlockPart::Gate => self.gate = packed()?,
            BlockPart::Up => self.up = packed()?,
            BlockPart::Down => self.down = packed()?,
        }
        Ok(())
    }

    /// The block; `None` if a part is missing.
    #[must_use]
    pub fn finish(self) -> Option<PackedBlock> {
        Some(PackedBlock {
            input_norm: self.input_norm?,
            qkv: self.qkv?,
            o: self.o?,
            post_norm: self.post_norm?,
            gate: self.gate?,
            up: self.up?,
            down: self.down?,
        })
    }
}

impl PackedBlock {
    /// Memory of the weights of a block in bytes, before it is packed.
    #[must_use]
    pub fn bytes_of(shape: &BlockShape, format: WeightFormat) -> usize {
        let matrices = matrices(shape).map(|(rows, depth)| PackedRows::bytes_of(rows, depth, format));
        2 * shape.width * size_of::<f32>() + matrices.iter().sum::<usize>()
    }

    /// True if the weights have the sizes of a block of this shape.
    #[must_use]
    pub fn fits(&self, shape: &BlockShape) -> bool {
        let own = [&self.qkv, &self.o, &self.gate, &self.up, &self.down];
        own.map(|matrix| (matrix.rows(), matrix.depth())) == matrices(shape)
            && [&self.input_norm, &self.post_norm].iter().all(|norm| norm.len() == shape.width)
    }

    /// Memory of the weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let products = [&self.qkv, &self.o, &self.gate, &self.up, &self.down];
        let norms = size_of_val(&*self.input_norm) + size_of_val(&*self.post_norm);
        norms + products.map(PackedRows::bytes).iter().sum::<usize>()
    }

    /// Runs block number `block` of a model on x (rows, D) in place, with all threads of the current pool. The rows belong
    /// to `sequences`, one after the other. Their keys and values are added to the pages.
    ///
    /// A row's result has the same bits whatever other rows there are, and with any number of threads.
    ///
    /// # Panics
    /// When the sizes of x, the pages and the shape do not fit together.
    pub fn run(
        &self,
        shape: &BlockShape,
        block: usize,
        x: &mut [f32],
        sequences: &mut [&mut SequencePages<'_>],
        workspace: &Workspace,
    ) {
        let rows = x.len() / shape.width;
        let given: usize = sequences.iter().map(|sequence| sequence.rows()).sum();
        assert_eq!(rows, given, "rows that do not fit the sequences");
        // The tasks of attention rely on both: each of them writes the pages of its sequence, and the heads of its group.
        assert!(shape.heads.is_multiple_of(shape.kv_heads), "heads that do not divide into groups");
        let fits = |KvShape { blocks, kv_heads, head_dim }| {
            block < blocks && kv_heads == shape.kv_heads && head_dim == shape.rope.head_dim()
        };
        assert!(sequences.iter().all(|sequence| fits(sequence.shape)), "pages of another shape");
        let mut h = workspace.take(rows * shape.width);
        rms_norm::forward(x, &self.input_norm, &mut h, shape.epsilon);
        let mut qkv = workspace.take(rows * shape.qkv());
        self.qkv.products_by_columns(&h, &mut qkv, Target::Replace);
        let mut y = workspace.take(rows * shape.attention());
        attention(shape, block, &mut qkv, sequences, &mut y);
        self.o.products_by_columns(&y, x, Target::Add);

        rms_norm::forward(x, &self.post_norm, &mut h, shape.epsilon);
        let mut gated = workspace.take(rows * shape.ffn);
        gated_products(&self.gate, &self.up, &h, &mut gated);
        self.down.products_by_columns(&gated, x, Target::Add);
        for buffer in [h, qkv, y, gated] {
            workspace.give(buffer);
        }
    }
}

/// Rows and depths of queries, keys and values together, the output of attention, gate, up and down.
fn matrices(shape: &BlockShape) -> [(usize, usize); 5] {
    let (width, attention, ffn) = (shape.width, shape.attention(), shape.ffn);
    [(shape.qkv(), width), (width, attention), (ffn, width), (ffn, width), (width, ffn)]
}

/// Rotates queries and keys, appends keys and values to the pages, and writes the results of attention to y (rows, H × Dh).
fn attention(
    shape: &BlockShape,
    block: usize,
    qkv: &mut [f32],
    sequences: &mut [&mut SequencePages<'_>],
    y: &mut [f32],
) {
    let stride = shape.qkv();
    let mut rest = &mut *qkv;
    let own = sequences.iter_mut().map(|sequence| {
        let (own, after) = std::mem::take(&mut rest).split_at_mut(sequence.rows() * stride);
        rest = after;
        (&mut **sequence, own)
    });
    own.collect::<Vec<_>>().into_par_iter().for_each(|(sequence, qkv)| append(shape, block, sequence, qkv));

    let mut first = 0;
    let mut tasks = Vec::with_capacity(sequences.len() * shape.kv_heads);
    for sequence in &*sequences {
        tasks.extend((0..shape.kv_heads).map(|head| (&**sequence, head, first)));
        first += sequence.rows();
    }
    let queries = PagedQueries { qkv, stride, heads: shape.heads, y: Shared::new(y) };
    // SAFETY: the sequences are borrowed exclusively, and nothing writes their pages here. Each task writes the heads of
    // its group in the rows of its sequence.
    tasks.into_par_iter().for_each(|(sequence, head, first)| unsafe {
        attend(&queries, sequence, block, head, first);
    });
}

/// Rotates the queries and keys of a sequence's rows (rows, (H + 2 · Hkv) × Dh) and appends keys and values to its pages.
fn append(shape: &BlockShape, block: usize, sequence: &mut SequencePages<'_>, qkv: &mut [f32]) {
    let start = sequence.place.start;
    let kv = shape.kv_heads * shape.rope.head_dim();
    for (i, row) in qkv.chunks_exact_mut(shape.qkv()).enumerate() {
        let (rotated, values) = row.split_at_mut(shape.attention() + kv);
        vector::dispatch(
            #[inline(always)]
            || shape.rope.rotate(rotated, start + i, 1.0),
        );
        let keys = &rotated[shape.attention()..];
        match sequence.memory {
            SharedMemory::F32(memory) => write(sequence, &memory, block, start + i, keys, values),
            SharedMemory::Bf16(memory) => write(sequence, &memory, block, start + i, keys, values),
        }
    }
}

fn write<E: Element>(
    sequence: &mut SequencePages<'_>,
    memory: &Shared<E>,
    block: usize,
    position: usize,
    keys: &[f32],
    values: &[f32],
) {
    sequence.write(memory, block, position, keys, values);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvPages, Precision, RopeTable, SequencePlace};

    fn shape() -> BlockShape {
        let rope = RopeTable::new(4, 2, 1e4).unwrap();
        BlockShape { width: 4, heads: 2, kv_heads: 1, ffn: 3, epsilon: 1e-5, rope }
    }

    fn packed(shape: &BlockShape) -> PackedBlock {
        let mut packer = BlockPacker::default();
        let [qkv, o, gate, up, down] = matrices(shape).map(|(rows, depth)| rows * depth);
        for (part, length) in [
            (BlockPart::InputNorm, shape.width),
            (BlockPart::Qkv, qkv),
            (BlockPart::O, o),
            (BlockPart::PostNorm, shape.width),
            (BlockPart::Gate, gate),
            (BlockPart::Up, up),
            (BlockPart::Down, down),
        ] {
            packer.add(shape, part, &vec![0.5; length], WeightFormat::F32).unwrap();
        }
        packer.finish().unwrap()
    }

    /// Runs rows of two sequences whose pages have a shape of their own.
    fn run(block: usize, kv: KvShape) {
        let mut pages = KvPages::new(kv, 2, Precision::F32);
        let place = |pages, rows| SequencePlace { pages, start: 0, rows };
        let mut opened = pages.open(&[place(&[0], 1), place(&[1], 2)]).unwrap();
        let mut sequences: Vec<_> = opened.iter_mut().collect();
        let mut x = [1.0; 12];
        packed(&shape()).run(&shape(), block, &mut x, &mut sequences, &Workspace::default());
        assert!(x.iter().all(|x| x.is_finite() && *x != 1.0), "{x:?}");
    }

    #[test]
    fn pages_of_the_shape_are_taken() {
        run(1, KvShape { blocks: 2, kv_heads: 1, head_dim: 2 });
    }

    #[test]
    #[should_panic(expected = "pages of another shape")]
    fn pages_with_other_heads_are_refused() {
        run(1, KvShape { blocks: 2, kv_heads: 2, head_dim: 2 });
    }

    #[test]
    #[should_panic(expected = "pages of another shape")]
    fn pages_with_heads_of_another_width_are_refused() {
        run(1, KvShape { blocks: 2, kv_heads: 1, head_dim: 4 });
    }

    #[test]
    #[should_panic(expected = "pages of another shape")]
    fn pages_without_the_block_are_refused() {
        run(2, KvShape { blocks: 2, kv_heads: 1, head_dim: 2 });
    }

    #[test]
    fn a_block_fits_its_own_shape_only() {
        let block = packed(&shape());
        assert!(block.fits(&shape()));
        for other in [
            BlockShape { width: 6, ..shape() },
            BlockShape { heads: 4, ..shape() },
            BlockShape { kv_heads: 2, ..shape() },
            BlockShape { ffn: 4, ..shape() },
        ] {
            assert!(!block.fits(&other), "{other:?}");
        }
    }
}
