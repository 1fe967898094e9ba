//! Places of the tensors in the flat arrays of a path.

use dipaco_model::{ModelConfig, parameters, path_specs};

/// Places of the tensors of a block, counted in numbers from the first number of the block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockOffsets {
    /// Input norm (D).
    pub(crate) input_norm: usize,
    /// Queries, keys and values ((H + 2 · Hkv) · Dh, D): three consecutive tensors.
    pub(crate) qkv: usize,
    /// Output projection of the attention (D, H · Dh).
    pub(crate) output: usize,
    /// Norm before the feed-forward layer (D).
    pub(crate) post_norm: usize,
    /// Gate and up projection (2F, D): two consecutive tensors.
    pub(crate) gate_up: usize,
    /// Down projection (D, F).
    pub(crate) down: usize,
}

/// Places of the tensors of a path in its flat arrays, in the order of [`path_specs`].
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Places within a block.
    pub(crate) block: BlockOffsets,
    /// Final norm (D).
    pub(crate) final_norm: usize,
    /// Output projection (V, D); with tied embeddings the token embedding.
    pub(crate) head: usize,
    /// Numbers of the path.
    pub(crate) parameters: usize,
    /// First number of block 0.
    first_block: usize,
    /// Numbers of a block.
    block_length: usize,
}

/// Consecutive numbers that weight decay treats alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecayRun {
    pub(crate) first: usize,
    pub(crate) length: usize,
    /// True if weight decay applies.
    pub(crate) decays: bool,
}

impl Layout {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let (d, a, f) = (config.hidden_size, config.attention_size(), config.ffn_size);
        let input_norm = 0;
        let qkv = d;
        let output = qkv + (a + 2 * config.key_value_size()) * d;
        let post_norm = output + d * a;
        let gate_up = post_norm + d;
        let down = gate_up + 2 * f * d;
        let block_length = down + d * f;
        let first_block = config.vocab_size * d;
        let final_norm = first_block + config.blocks * block_length;
        Self {
            block: BlockOffsets { input_norm, qkv, output, post_norm, gate_up, down },
            final_norm,
            head: if config.tie_embeddings { 0 } else { final_norm + d },
            parameters: parameters(&path_specs(config)),
            first_block,
            block_length,
        }
    }

    /// Returns the first number of block `i`.
    pub(crate) fn block_start(&self, i: usize) -> usize {
        self.first_block + i * self.block_length
    }
}

/// Returns the runs of all parameters, in their order. Norms are not decayed.
pub(crate) fn decay_runs(config: &ModelConfig) -> Vec<DecayRun> {
    let mut runs: Vec<DecayRun> = Vec::with_capacity(4 * config.blocks + 3);
    for spec in path_specs(config) {
        match runs.last_mut() {
            Some(run) if run.decays == spec.decay => run.length += spec.parameters(),
            last => {
                let first = last.map_or(0, |run| run.first + run.length);
                runs.push(DecayRun { first, length: spec.parameters(), decays: spec.decay });
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_are_those_of_the_tensors_of_a_path() {
        for tie_embeddings in [false, true] {
            let config = ModelConfig { vocab_size: 50, tie_embeddings, ..ModelConfig::default() };
            let layout = Layout::new(&config);
            let mut next = 0;
            for spec in path_specs(&config) {
                let (block, name) = match spec.name.strip_prefix("model.layers.") {
                    Some(rest) => rest.split_once('.').unwrap(),
                    None => ("0", spec.name.as_str()),
                };
                let start = layout.block_start(block.parse().unwrap());
                let place = match name {
                    "input_layernorm.weight" => start + layout.block.input_norm,
                    "self_attn.q_proj.weight" => start + layout.block.qkv,
                    "self_attn.o_proj.weight" => start + layout.block.output,
                    "post_attention_layernorm.weight" => start + layout.block.post_norm,
                    "mlp.gate_proj.weight" => start + layout.block.gate_up,
                    "mlp.down_proj.weight" => start + layout.block.down,
                    "model.norm.weight" => layout.final_norm,
                    "lm_head.weight" => layout.head,
                    _ => next,
                };
                assert_eq!(place, next, "{}", spec.name);
                next += spec.parameters();
            }
            assert_eq!(layout.parameters, next);
            let runs = decay_runs(&config);
            assert!(runs.windows(2).all(|pair| pair[0].first + pair[0].length == pair[1].first));
            assert!(runs.windows(2).all(|pair| pair[0].decays != pair[1].decays));
            assert_eq!(runs.iter().map(|run| run.length).sum::<usize>(), next);
        }
    }
}
