//! Weights of modules for serving.

use std::collections::BTreeMap;

use dipaco_ops::{BlockShape, PackedBlock, PackedRows, RopeTable, WeightFormat};
use dipaco_topology::{Part, Topology};

use crate::split::require_specs;
use crate::{ModelConfig, ModelError, ModulePacker, ModuleWeights, level_specs};

/// A module whose matrices are rounded to a format and packed once, when it is loaded, for products with any number of rows.
/// There is no other copy of them. All paths through the module share it.
#[derive(Debug)]
pub struct PackedModule {
    pub(crate) embedding: Option<Embedding>,
    /// By the number of the block.
    pub(crate) blocks: BTreeMap<usize, PackedBlock>,
    pub(crate) head: Option<PackedHead>,
}

/// The token embedding of a module.
#[derive(Debug)]
pub(crate) enum Embedding {
    /// A table (V, D).
    Table(PackedRows),
    /// The projection of the module's head.
    Tied,
}

/// The final norm and the output projection.
#[derive(Debug)]
pub(crate) struct PackedHead {
    pub(crate) norm: Vec<f32>,
    pub(crate) projection: PackedRows,
}

impl PackedModule {
    /// Packs the weights of a module of `level`, with matrices in `format`. They are those of an exported GGUF file of this
    /// format.
    ///
    /// # Errors
    /// The configuration is incomplete, the weights are not those of a module of this level, or the rows of a matrix are no
    /// multiple of the format's blocks.
    pub fn new(
        config: &ModelConfig,
        topology: &Topology,
        level: usize,
        weights: &ModuleWeights,
        format: WeightFormat,
    ) -> Result<Self, ModelError> {
        let mut packer = ModulePacker::new(config, topology, level, format)?;
        weights.view().check()?;
        require_specs(&weights.specs, &level_specs(config, topology, level))?;
        for (spec, values) in weights.tensors() {
            packer.add(&spec.name, values)?;
        }
        packer.finish()
    }

    /// Returns the memory of a module of `level` in bytes, before it is packed.
    ///
    /// # Errors
    /// The configuration is incomplete.
    pub fn bytes_of(
        config: &ModelConfig,
        topology: &Topology,
        level: usize,
        format: WeightFormat,
    ) -> Result<usize, ModelError> {
        config.check_complete()?;
        let (shape, width) = (block_shape(config, 1)?, config.hidden_size);
        let table = |rows| PackedRows::bytes_of(rows, width, format.of_ends());
        let bytes = topology.parts(level).iter().map(|part| match part {
            // A tied embedding is the projection of the head.
            Part::Embedding if config.tie_embeddings => 0,
            Part::Embedding => table(config.vocab_size),
            Part::Block(_) => PackedBlock::bytes_of(&shape, format),
            Part::Head => width * size_of::<f32>() + table(config.head_size()),
        });
        Ok(bytes.sum())
    }

    /// Returns the memory of the weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let table = match &self.embedding {
            Some(Embedding::Table(table)) => table.bytes(),
            _ => 0,
        };
        let head = self.head.as_ref().map_or(0, |head| head.projection.bytes() + size_of_val(&*head.norm));
        table + head + self.blocks.values().map(PackedBlock::bytes).sum::<usize>()
    }

    /// Copies the embeddings of `tokens` into x (tokens, D). Does nothing if the module has no embedding.
    ///
    /// # Panics
    /// When a token is outside of the vocabulary.
    pub(crate) fn embed(&self, tokens: &[u32], width: usize, x: &mut [f32]) {
        let table = match (&self.embedding, &self.head) {
            (Some(Embedding::Table(table)), _) => table,
            (Some(Embedding::Tied), Some(head)) => &head.projection,
            _ => return,
        };
        for (x, &token) in x.chunks_exact_mut(width).zip(tokens) {
            table.copy_row(token as usize, x);
        }
    }
}

/// The shape of a block, with rotations for `positions` positions.
pub(crate) fn block_shape(config: &ModelConfig, positions: usize) -> Result<BlockShape, ModelError> {
    Ok(BlockShape {
        width: config.hidden_size,
        heads: config.heads,
        kv_heads: config.key_value_heads(),
        ffn: config.ffn_size,
        epsilon: config.rms_norm_eps as f32,
        rope: RopeTable::new(positions, config.head_dim, config.rope_theta)?,
    })
}
