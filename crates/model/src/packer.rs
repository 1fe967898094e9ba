//! Packing a module tensor by tensor.

use std::collections::BTreeMap;

use dipaco_ops::{BlockPacker, BlockPart, BlockShape, PackedRows, WeightFormat};
use dipaco_topology::{Part, Topology};

use crate::packed::{Embedding, PackedHead, block_shape};
use crate::{ModelConfig, ModelError, PackedModule, TensorSpec, level_specs};

/// Where a tensor goes.
#[derive(Clone, Copy, Debug)]
enum PackedPlace {
    /// The table of the embedding (V, D), which a tied head shares.
    Table,
    /// A part of a block that is one tensor.
    Block(usize, BlockPart),
    /// Queries, keys or values of a block, from this element of their common matrix on.
    Qkv(usize, usize),
    /// The final norm (D).
    Norm,
    /// The output projection (V, D).
    Projection,
}

/// Queries, keys and values of a block in f32, until all three are there.
#[derive(Debug)]
struct Qkv {
    values: Vec<f32>,
    missing: usize,
}

/// Packs a module tensor by tensor, in any order. Only the tensor that is added, and queries, keys and values that wait for
/// each other, are in memory as f32.
#[derive(Debug)]
pub struct ModulePacker {
    format: WeightFormat,
    shape: BlockShape,
    tied: bool,
    /// The tensors that are not added yet, by name.
    missing: BTreeMap<String, (PackedPlace, usize)>,
    qkv: BTreeMap<usize, Qkv>,
    /// Values of queries, keys and values of a block.
    qkv_length: usize,
    blocks: BTreeMap<usize, BlockPacker>,
    table: Option<PackedRows>,
    norm: Option<Vec<f32>>,
    projection: Option<PackedRows>,
}

impl ModulePacker {
    /// Begins a module of `level`, with matrices in `format`.
    ///
    /// # Errors
    /// The configuration is incomplete, or the topology does not fit it.
    pub fn new(
        config: &ModelConfig,
        topology: &Topology,
        level: usize,
        format: WeightFormat,
    ) -> Result<Self, ModelError> {
        config.check_complete()?;
        config.check_topology(topology)?;
        let specs = level_specs(config, topology, level);
        let mut missing = BTreeMap::new();
        // The tensors of a part come in the order of `path_specs`.
        for part in specs.chunk_by(|one, other| one.part == other.part) {
            let mut qkv = 0;
            for (number, spec) in part.iter().enumerate() {
                let place = match (spec.part, number) {
                    (Part::Embedding, _) => PackedPlace::Table,
                    (Part::Head, 0) => PackedPlace::Norm,
                    (Part::Head, _) => PackedPlace::Projection,
                    (Part::Block(block), 0) => PackedPlace::Block(block, BlockPart::InputNorm),
                    (Part::Block(block), 1..=3) => {
                        qkv += spec.parameters();
                        PackedPlace::Qkv(block, qkv - spec.parameters())
                    }
                    (Part::Block(block), 4) => PackedPlace::Block(block, BlockPart::O),
                    (Part::Block(block), 5) => PackedPlace::Block(block, BlockPart::PostNorm),
                    (Part::Block(block), 6) => PackedPlace::Block(block, BlockPart::Gate),
                    (Part::Block(block), 7) => PackedPlace::Block(block, BlockPart::Up),
                    (Part::Block(block), _) => PackedPlace::Block(block, BlockPart::Down),
                };
                missing.insert(spec.name.clone(), (place, spec.parameters()));
            }
        }
        Ok(Self {
            format,
            shape: block_shape(config, 1)?,
            tied: config.tie_embeddings,
            missing,
            qkv: BTreeMap::new(),
            qkv_length: (config.attention_size() + 2 * config.key_value_size()) * config.hidden_size,
            blocks: BTreeMap::new(),
            table: None,
            norm: None,
            projection: None,
        })
    }

    /// Packs a tensor from its f32 values, row-major.
    ///
    /// # Errors
    /// The module has no such tensor, or has it already. The number of values is not that of the tensor. The rows of the
    /// matrix are no multiple of the format's blocks.
    pub fn add(&mut self, name: &str, values: &[f32]) -> Result<(), ModelError> {
        let wrong = |problem| ModelError::Weights { tensor: name.to_owned(), problem };
        let Some((place, length)) = self.missing.remove(name) else {
            return Err(wrong("the module does not have it, or it was added twice".to_owned()));
        };
        if values.len() != length {
            return Err(wrong(format!("it has {length} values, but {} were given", values.len())));
        }
        let (width, ends) = (self.shape.width, self.format.of_ends());
        match place {
            PackedPlace::Table => self.table = Some(PackedRows::with_format(values, width, ends)?),
            PackedPlace::Projection => self.projection = Some(PackedRows::with_format(values, width, ends)?),
            PackedPlace::Norm => self.norm = Some(values.to_vec()),
            PackedPlace::Block(block, part) => self.pack(block, part, values)?,
            PackedPlace::Qkv(block, at) => {
                let all = self.qkv_length;
                let qkv = self.qkv.entry(block).or_insert_with(|| Qkv { values: vec![0.0; all], missing: 3 });
                if let Some(to) = qkv.values.get_mut(at..at + length) {
                    to.copy_from_slice(values);
                }
                qkv.missing -= 1;
                if qkv.missing == 0
                    && let Some(Qkv { values, .. }) = self.qkv.remove(&block)
                {
                    self.pack(block, BlockPart::Qkv, &values)?;
                    dipaco_ops::free_values(values);
                }
            }
        }
        Ok(())
    }

    fn pack(&mut self, block: usize, part: BlockPart, values: &[f32]) -> Result<(), ModelError> {
        Ok(self.blocks.entry(block).or_default().add(&self.shape, part, values, self.format)?)
    }

    /// The module.
    ///
    /// # Errors
    /// A tensor is missing.
    pub fn finish(self) -> Result<PackedModule, ModelError> {
        if let Some(tensor) = self.missing.into_keys().next() {
            return Err(ModelError::Weights { tensor, problem: "is missing from the module".to_owned() });
        }
        let whole = |(number, block): (usize, BlockPacker)| Some((number, block.finish()?));
        let blocks: Option<_> = self.blocks.into_iter().map(whole).collect();
        let incomplete = || ModelError::Compose { problem: "a block of a module is incomplete".to_owned() };
        let (embedding, projection) = match (self.table, self.projection) {
            // The level of a tied head also holds the embedding.
            (Some(table), None) if self.tied => (Some(Embedding::Tied), Some(table)),
            (table, projection) => (table.map(Embedding::Table), projection),
        };
        let head = self.norm.zip(projection).map(|(norm, projection)| PackedHead { norm, projection });
        Ok(PackedModule { embedding, blocks: blocks.ok_or_else(incomplete)?, head })
    }
}

/// Returns the most memory of f32 values in bytes while a module of `level` is packed tensor by tensor: the largest tensor,
/// or the queries, keys and values of a block beside another tensor of attention. With `apart`, those of all blocks may wait
/// for each other. Without it the tensors of a block come together, in the order of their names.
#[must_use]
pub fn packing_bytes(config: &ModelConfig, topology: &Topology, level: usize, apart: bool) -> usize {
    let specs = level_specs(config, topology, level);
    let largest = specs.iter().map(TensorSpec::parameters).max().unwrap_or(0);
    let blocks = topology.parts(level).iter().filter(|part| matches!(part, Part::Block(_))).count();
    let (width, queries) = (config.hidden_size, config.attention_size());
    let qkv = (queries + 2 * config.key_value_size()) * width;
    let most = match (blocks, apart) {
        (0, _) => largest,
        (_, true) => blocks * qkv + largest,
        // The output of attention has the size of the queries.
        (_, false) => largest.max(qkv + queries * width),
    };
    most * size_of::<f32>()
}
