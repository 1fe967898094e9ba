//! Incremental decoding of one sequence.

use candle_core::Tensor;
use dipaco_ops::kernel::{self, KeyValues};
use dipaco_ops::with_slice;

use crate::cache::BlockCache;
use crate::path::Block;
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
    pub fn decode(&self, tokens: &[u32], cache: &mut KvCache, all_positions: bool) -> Result<Vec<f32>, ModelError> {
        let config = &*self.config;
        let (width, attention, start) = (config.hidden_size, config.attention_size(), cache.len());
        self.check_decode(tokens, cache)?;
        let rows = tokens.len();
        let mut x = vec![0.0; rows * width];
        with_slice(self.embedding(), |weight| kernel::embedding(weight, tokens, width, &mut x))?;
        let mut scratch = Scratch::new(rows, width, attention, config.ffn_size);
        for (i, past) in cache.blocks.iter_mut().enumerate() {
            self.decode_block(&self.block(i), &mut x, past, start, &mut scratch)?;
        }
        cache.advance(rows);
        let x = if all_positions { &x[..] } else { &x[(rows - 1) * width..] };
        let mut normed = vec![0.0; x.len()];
        norm(x, self.final_norm(), &mut normed, config.rms_norm_eps as f32)?;
        let mut logits = vec![0.0; normed.len() / width * config.vocab_size];
        project(&normed, self.head(), &mut logits, (normed.len() / width, width, config.vocab_size))?;
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
        block: &Block<'_>,
        x: &mut [f32],
        past: &mut BlockCache,
        start: usize,
        scratch: &mut Scratch,
    ) -> Result<(), ModelError> {
        let config = &*self.config;
        let (width, ffn, epsilon) = (config.hidden_size, config.ffn_size, config.rms_norm_eps as f32);
        let (heads, head_dim, attention) = (config.heads, config.head_dim, config.attention_size());
        let rows = x.len() / width;
        let length = start + rows;
        let Scratch { h, q, y, gate, up, gated } = scratch;
        let new = start * attention..length * attention;

        norm(x, block.input_norm, h, epsilon)?;
        project(h, block.q, q, (rows, width, attention))?;
        project(h, block.k, &mut past.keys[new.clone()], (rows, width, attention))?;
        project(h, block.v, &mut past.values[new.clone()], (rows, width, attention))?;
        kernel::rope(q, &self.rope, attention, start);
        kernel::rope(&mut past.keys[new], &self.rope, attention, start);
        kernel::attend(q, KeyValues { keys: &past.keys, values: &past.values, length, heads, head_dim }, y);
        project(y, block.o, h, (rows, attention, width))?;
        kernel::add_assign(x, h);

        norm(x, block.post_norm, h, epsilon)?;
        project(h, block.gate, gate, (rows, width, ffn))?;
        project(h, block.up, up, (rows, width, ffn))?;
        kernel::swiglu(gate, up, gated);
        project(gated, block.down, h, (rows, ffn, width))?;
        kernel::add_assign(x, h);
        Ok(())
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

fn project(x: &[f32], weight: &Tensor, y: &mut [f32], sizes: (usize, usize, usize)) -> Result<(), ModelError> {
    Ok(with_slice(weight, |weight| kernel::linear(x, weight, y, sizes))?)
}

fn norm(x: &[f32], weight: &Tensor, y: &mut [f32], epsilon: f32) -> Result<(), ModelError> {
    Ok(with_slice(weight, |weight| kernel::rms_norm(x, weight, y, epsilon))?)
}
