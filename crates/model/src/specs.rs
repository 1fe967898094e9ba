//! The tensors of a path and of a module.

use std::ops::Range;

use dipaco_topology::{Part, Topology};

use crate::{Dtype, ModelConfig};

/// Name and shape of a tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in Hugging Face's Llama.
    pub name: String,
    /// Dimensions. Matrices are (out, in), as in `nn.Linear`.
    pub shape: Vec<usize>,
    /// Part of the transformer that holds the tensor.
    pub part: Part,
    /// True if weight decay applies. It does not apply to norms.
    pub decay: bool,
    /// Type of its numbers in files. In memory they are f32.
    pub file_dtype: Dtype,
}

impl TensorSpec {
    /// Returns the number of elements of the tensor.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes of its numbers in a file.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.parameters().saturating_mul(self.file_dtype.bytes())
    }
}

/// Returns the tensors of a whole path in canonical order: embedding, blocks, final norm, output projection (absent if
/// tied).
#[must_use]
pub fn path_specs(config: &ModelConfig) -> Vec<TensorSpec> {
    let (d, a, f, v) = (config.hidden_size, config.attention_size(), config.ffn_size, config.vocab_size);
    let kv = config.key_value_size();
    let matrix = |name: String, rows, columns, part| TensorSpec {
        name,
        shape: vec![rows, columns],
        part,
        decay: true,
        file_dtype: Dtype::F32,
    };
    let norm =
        |name: String, part| TensorSpec { name, shape: vec![d], part, decay: false, file_dtype: Dtype::F32 };
    let embedding = matrix("model.embed_tokens.weight".into(), v, d, Part::Embedding);
    let mut specs = vec![TensorSpec { decay: config.embedding_decay, ..embedding }];
    for i in 0..config.blocks {
        let part = Part::Block(i);
        let name = |tensor: &str| format!("model.layers.{i}.{tensor}.weight");
        let block = [
            norm(name("input_layernorm"), part),
            matrix(name("self_attn.q_proj"), a, d, part),
            matrix(name("self_attn.k_proj"), kv, d, part),
            matrix(name("self_attn.v_proj"), kv, d, part),
            matrix(name("self_attn.o_proj"), d, a, part),
            norm(name("post_attention_layernorm"), part),
            matrix(name("mlp.gate_proj"), f, d, part),
            matrix(name("mlp.up_proj"), f, d, part),
            matrix(name("mlp.down_proj"), d, f, part),
        ];
        specs.extend(block);
    }
    specs.push(norm("model.norm.weight".into(), Part::Head));
    if !config.tie_embeddings {
        specs.push(matrix("lm_head.weight".into(), config.head_size(), d, Part::Head));
    }
    specs
}

/// Returns the tensors of a module of a level, in the order of [`path_specs`]; none for a level that does not exist.
#[must_use]
pub fn level_specs(config: &ModelConfig, topology: &Topology, level: usize) -> Vec<TensorSpec> {
    let parts = topology.parts(level);
    path_specs(config).into_iter().filter(|spec| parts.contains(&spec.part)).collect()
}

/// Returns the tensors of a path that train, in the order of [`path_specs`]: those of the levels that are not frozen.
#[must_use]
pub fn trained_specs(config: &ModelConfig, topology: &Topology) -> Vec<TensorSpec> {
    path_specs(config).into_iter().filter(|spec| topology.part_trains(spec.part)).collect()
}

/// Returns the blocks that the backward pass of a path reaches: from the lowest part that trains upwards.
#[must_use]
pub fn backward_blocks(config: &ModelConfig, topology: &Topology) -> Range<usize> {
    let trains = |&block: &usize| topology.part_trains(Part::Block(block));
    let lowest = (0..config.blocks).find(trains).unwrap_or(config.blocks);
    if topology.part_trains(Part::Embedding) { 0..config.blocks } else { lowest..config.blocks }
}

/// Returns the number of elements of all these tensors together.
#[must_use]
pub fn parameters(specs: &[TensorSpec]) -> usize {
    specs.iter().map(TensorSpec::parameters).sum()
}
