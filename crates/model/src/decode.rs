//! Incremental decoding of one sequence.
//!
//! One block is written down three times: in `dipaco-ops` (`block/forward.rs` and `block/backward.rs`) for training on
//! the CPU, here for decoding with a KV cache, and in `dipaco-cuda` (`passes.rs`) for training on a GPU. Change all
//! three together; the tests of this package and of `dipaco-cuda` compare their results.

use dipaco_ops::kernel::{self, BlockWeights, KeyValues, LinearShape};
use dipaco_ops::with_slice;

use crate::cache::BlockCache;
use crate::scratch::Scratch;
use crate::{KvCache, ModelError, Path};

impl Path {
    /// Appends `tokens` to the sequence in the cache and returns the logits of the next token: after the last position
    /// (V), or with `all_positions` after each position (tokens × V). An error leaves the cache unchanged.
    ///
    /// This is a plain f32 forward pass without a graph. It only reads the weights, so any number of threads may decode
    /// with one path at the same time, each with its own cache.
    ///
    /// # Errors
    /// There are no tokens, the context is exceeded, an id is outside of the vocabulary, or the cache belongs to a path
    /// of another shape.
    pub fn decode(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        all_positions: bool,
    ) -> Result<Vec<f32>, ModelError> {
        let config = &*self.config;
        let (width, attention, start) = (config.hidden_size, config.attention_size(), cache.len());
        self.check_decode(tokens, cache)?;
        let rows = tokens.len();
        cache.make_room(start + rows);
        let KvCache { blocks, scratch, .. } = cache;
        scratch.resize(rows, width, attention, config.ffn_size);
        self.embedding().with(|weight| kernel::embedding(weight, tokens, width, &mut scratch.x))?;
        for (block, past) in self.blocks().iter().zip(blocks) {
            block.with(|weights| {
                let weights = BlockWeights::new(&self.stack.shape, weights);
                self.decode_block(&weights, past, start, scratch);
            })?;
        }
        // Only a whole pass counts, so an error above leaves the old length.
        cache.advance(rows);
        let x = &cache.scratch.x;
        self.logits(if all_positions { &x[..] } else { &x[(rows - 1) * width..] })
    }

    /// Returns the outputs of the head (rows, V) for rows (rows, D) of the last block's output.
    pub(crate) fn logits(&self, x: &[f32]) -> Result<Vec<f32>, ModelError> {
        let (width, place) = (self.config.hidden_size, self.head_place());
        let (rows, outputs) = (x.len() / width, place.vocabulary);
        let mut normed = vec![0.0; x.len()];
        let mut logits = vec![0.0; rows * outputs];
        with_slice(&self.head().flat, |weights| {
            let norm = &weights[place.norm..][..width];
            let projection = &weights[place.projection..][..outputs * width];
            kernel::rms_norm(x, norm, &mut normed, self.config.rms_norm_eps as f32);
            kernel::linear(&normed, projection, &mut logits, LinearShape { rows, inputs: width, outputs });
        })?;
        Ok(logits)
    }

    fn check_decode(&self, tokens: &[u32], cache: &KvCache) -> Result<(), ModelError> {
        let config = &*self.config;
        let positions = cache.len().saturating_add(tokens.len());
        if tokens.is_empty() {
            return Err(ModelError::Batch {
                what: "tokens",
                problem: "there is no token to decode".to_owned(),
            });
        }
        if positions > config.context {
            return Err(ModelError::Context { positions, context: config.context });
        }
        if !cache.fits(config) {
            let problem = "it belongs to a path of another shape".to_owned();
            return Err(ModelError::Batch { what: "cache", problem });
        }
        // The kernel that looks up embeddings panics at an id outside of the vocabulary.
        match tokens.iter().find(|&&token| token as usize >= config.vocab_size) {
            Some(&token) => Err(ModelError::Token { token, vocabulary: config.vocab_size }),
            None => Ok(()),
        }
    }

    /// Runs one block on `scratch.x` (rows, D) in place and appends its keys and values to `past`, which holds `start`
    /// positions.
    fn decode_block(
        &self,
        block: &BlockWeights<'_>,
        past: &mut BlockCache,
        start: usize,
        scratch: &mut Scratch,
    ) {
        let config = &*self.config;
        let (width, ffn, epsilon) = (config.hidden_size, config.ffn_size, config.rms_norm_eps as f32);
        let (heads, head_dim, attention) = (config.heads, config.head_dim, config.attention_size());
        let (kv_heads, kv) = (config.key_value_heads(), config.key_value_size());
        let rope = &self.stack.shape.rope;
        let Scratch { x, h, q, y, gate, up, gated } = scratch;
        let rows = x.len() / width;
        let length = start + rows;
        let new = start * kv..length * kv;
        let (wq, rest) = block.qkv.split_at(attention * width);
        let (wk, wv) = rest.split_at(kv * width);
        let (wgate, wup) = block.gate_up.split_at(ffn * width);

        kernel::rms_norm(x, block.input_norm, h, epsilon);
        kernel::linear(h, wq, q, LinearShape { rows, inputs: width, outputs: attention });
        let key_value = LinearShape { rows, inputs: width, outputs: kv };
        kernel::linear(h, wk, &mut past.keys[new.clone()], key_value);
        kernel::linear(h, wv, &mut past.values[new.clone()], key_value);
        kernel::rope(q, rope, attention, start);
        kernel::rope(&mut past.keys[new], rope, kv, start);
        let past = KeyValues { keys: &past.keys, values: &past.values, length, heads, kv_heads, head_dim };
        kernel::attend(q, past, y);
        kernel::linear(y, block.o, h, LinearShape { rows, inputs: attention, outputs: width });
        kernel::add_assign(x, h);

        kernel::rms_norm(x, block.post_norm, h, epsilon);
        kernel::linear(h, wgate, gate, LinearShape { rows, inputs: width, outputs: ffn });
        kernel::linear(h, wup, up, LinearShape { rows, inputs: width, outputs: ffn });
        kernel::swiglu(gate, up, gated);
        kernel::linear(gated, block.down, h, LinearShape { rows, inputs: ffn, outputs: width });
        kernel::add_assign(x, h);
    }
}
