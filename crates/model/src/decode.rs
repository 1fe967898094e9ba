//! Incremental decoding of one sequence.

use dipaco_ops::kernel::{self, BlockWeights, KeyValues, LinearShape};
use dipaco_ops::with_slice;

use crate::cache::BlockCache;
use crate::{KvCache, ModelError, Path};

impl Path {
    /// Reads `tokens` at the cache's end and gives the logits of the next token: of the last position (V), or with
    /// `all_positions` of each one (tokens × V). On an error the cache is as it was.
    ///
    /// A plain f32 forward pass without a graph. The weights are only read, so any number of threads may decode with
    /// one path at the same time, each with a cache of its own.
    ///
    /// # Errors
    /// When there are no tokens, the context is exceeded, an id is not in the vocabulary, or the cache was made by a
    /// path of another shape.
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
        let mut x = vec![0.0; rows * width];
        self.embedding().with(|weight| kernel::embedding(weight, tokens, width, &mut x))?;
        let mut scratch = Scratch::new(rows, width, attention, config.ffn_size);
        for (block, past) in self.blocks().iter().zip(&mut cache.blocks) {
            block.with(|weights| {
                let weights = BlockWeights::new(&self.stack.shape, weights);
                self.decode_block(&weights, &mut x, past, start, &mut scratch);
            })?;
        }
        cache.advance(rows);
        self.logits(if all_positions { &x[..] } else { &x[(rows - 1) * width..] })
    }

    /// The head's outputs (rows, V) for rows of the last block's output (rows, D).
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
            return Err(ModelError::Batch { what: "tokens", problem: "there are none to decode".to_owned() });
        }
        if positions > config.context {
            return Err(ModelError::Context { positions, context: config.context });
        }
        let size = config.context * config.attention_size();
        let fits = |block: &BlockCache| block.keys.len() == size && block.values.len() == size;
        if cache.blocks.len() != config.blocks || !cache.blocks.iter().all(fits) {
            let problem = "it was made by a path of another shape".to_owned();
            return Err(ModelError::Batch { what: "cache", problem });
        }
        self.check_tokens(tokens)
    }

    fn decode_block(
        &self,
        block: &BlockWeights<'_>,
        x: &mut [f32],
        past: &mut BlockCache,
        start: usize,
        scratch: &mut Scratch,
    ) {
        let config = &*self.config;
        let (width, ffn, epsilon) = (config.hidden_size, config.ffn_size, config.rms_norm_eps as f32);
        let (heads, head_dim, attention) = (config.heads, config.head_dim, config.attention_size());
        let rope = &self.stack.shape.rope;
        let rows = x.len() / width;
        let length = start + rows;
        let Scratch { h, q, y, gate, up, gated } = scratch;
        let new = start * attention..length * attention;
        let (wq, rest) = block.qkv.split_at(attention * width);
        let (wk, wv) = rest.split_at(attention * width);
        let (wgate, wup) = block.gate_up.split_at(ffn * width);

        kernel::rms_norm(x, block.input_norm, h, epsilon);
        kernel::linear(h, wq, q, LinearShape { rows, inputs: width, outputs: attention });
        kernel::linear(
            h,
            wk,
            &mut past.keys[new.clone()],
            LinearShape { rows, inputs: width, outputs: attention },
        );
        kernel::linear(
            h,
            wv,
            &mut past.values[new.clone()],
            LinearShape { rows, inputs: width, outputs: attention },
        );
        kernel::rope(q, rope, attention, start);
        kernel::rope(&mut past.keys[new], rope, attention, start);
        kernel::attend(q, KeyValues { keys: &past.keys, values: &past.values, length, heads, head_dim }, y);
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

/// Memory that the blocks use one after the other.
struct Scratch {
    h: Vec<f32>,
    q: Vec<f32>,
    y: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    gated: Vec<f32>,
}

impl Scratch {
    fn new(rows: usize, width: usize, attention: usize, ffn: usize) -> Self {
        let zeros = |columns| vec![0.0; rows * columns];
        Self {
            h: zeros(width),
            q: zeros(attention),
            y: zeros(attention),
            gate: zeros(ffn),
            up: zeros(ffn),
            gated: zeros(ffn),
        }
    }
}
