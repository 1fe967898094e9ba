//! The shape of a path.

use dipaco_ops::Precision;
use dipaco_topology::{Part, Topology};
use serde::{Deserialize, Serialize};

use crate::ModelError;

/// Type of numbers: of the factors of matrix products (key `model.dtype`), and of moments between leases (key
/// `train.state_dtype`). Sums, weights, gradients, norms, softmax, the loss, and moments in a lease are f32 with every type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit floating point.
    #[default]
    F32,
    /// bfloat16: 8 bits of exponent, like f32, and 8 bits of precision.
    Bf16,
}

impl Dtype {
    /// Returns the bytes of a number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Returns the largest relative error of rounding a normal number of f32 to the type.
    #[must_use]
    pub fn rounding(self) -> f64 {
        match self {
            Self::F32 => 0.0,
            // Half of the last of 8 bits.
            Self::Bf16 => 1.0 / 256.0,
        }
    }

    /// True if this is f32, the default.
    #[must_use]
    pub fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Returns the name in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl From<Dtype> for Precision {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Section `[model]`: the shape of the transformer. All paths have the same shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// D, width of the residual stream (default 256).
    pub hidden_size: usize,
    /// Transformer blocks (default 4). The topology assigns them to levels.
    pub blocks: usize,
    /// H, attention heads (default 4).
    pub heads: usize,
    /// Hkv, heads of keys and values (default none: H). A divisor of H: H / Hkv heads of queries share a head of keys and
    /// values (grouped-query attention, arXiv:2305.13245). Not written if it is not set, so that the text of an older
    /// configuration stays the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<usize>,
    /// Dh, elements per head (default 64). Even, because RoPE rotates pairs. H × Dh may differ from D, but programs of
    /// before 2025 that read an exported checkpoint assume that both are equal.
    pub head_dim: usize,
    /// F, width of the feed-forward layer (default 704: 8/3 D, rounded up to a multiple of 64).
    pub ffn_size: usize,
    /// V, rows of the token embedding (default 0: as many as the tokenizer has entries). Any other value is at least that
    /// number: pretrained models often have more rows.
    pub vocab_size: usize,
    /// Maximum number of tokens of a sequence (default 256): the training length and the size of the KV cache.
    pub context: usize,
    /// Base of the rotary position embedding (default 10000).
    pub rope_theta: f64,
    /// Added to the mean square in RMSNorm (default 1e-5); at least 1e-16.
    pub rms_norm_eps: f64,
    /// True if the output projection is the token embedding (default false). Saves V × D parameters, and requires the
    /// embedding and the head to be in one level.
    pub tie_embeddings: bool,
    /// True if weight decay applies to the token embedding (default true).
    pub embedding_decay: bool,
    /// Standard deviation of the initial matrices (default not set: 1/√(3 · inputs) for each matrix).
    pub init_std: Option<f64>,
    /// Type of the factors of matrix products in training (default f32).
    pub dtype: Dtype,
    /// Number of outputs of the head; 0 for one output per token of the vocabulary. Not a key of the configuration: a
    /// router has one output per path ([`ModelConfig::with_outputs`]).
    #[serde(skip)]
    pub outputs: usize,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            hidden_size: 256,
            blocks: 4,
            heads: 4,
            kv_heads: None,
            head_dim: 64,
            ffn_size: 704,
            vocab_size: 0,
            context: 256,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
            tie_embeddings: false,
            embedding_decay: true,
            init_std: None,
            dtype: Dtype::F32,
            outputs: 0,
        }
    }
}

/// Largest value of a dimension, 2^20: far beyond every known model. It bounds the memory that a damaged configuration
/// can make a reader allocate.
const LARGEST: usize = 1 << 20;

/// Least [`ModelConfig::rms_norm_eps`]. It is f32 in a norm, where less than 1e-45 is 0: a row of zeros would become NaN. The
/// gradient of such a row has the third power of `1 / √eps`, which must fit into f32 too. Known models have 1e-12 or more.
const LEAST_NORM_EPS: f64 = 1e-16;

impl ModelConfig {
    /// Checks the ranges of the values. `vocab_size` may be 0.
    ///
    /// # Errors
    /// A key is out of range; the error names the first such key.
    pub fn check(&self) -> Result<(), ModelError> {
        let error = |key, problem: String| Err(ModelError::Config { key, problem });
        let sizes = [
            ("model.hidden_size", self.hidden_size),
            ("model.blocks", self.blocks),
            ("model.heads", self.heads),
            ("model.head_dim", self.head_dim),
            ("model.ffn_size", self.ffn_size),
            ("model.context", self.context),
        ];
        for (key, size) in sizes {
            if size == 0 || size > LARGEST {
                return error(key, format!("is {size}: it must be from 1 to {LARGEST}"));
            }
        }
        if self.vocab_size > 1 << 24 {
            return error(
                "model.vocab_size",
                format!("is {}: it must be at most {}", self.vocab_size, 1 << 24),
            );
        }
        if self.outputs > LARGEST || (self.outputs > 0 && self.tie_embeddings) {
            let problem = format!("are {}: at most {LARGEST}, and not with tied embeddings", self.outputs);
            return error("the head's outputs", problem);
        }
        let kv_heads = self.key_value_heads();
        if kv_heads == 0 || !self.heads.is_multiple_of(kv_heads) {
            let problem = format!(
                "is {kv_heads}: it must divide model.heads = {}, because each head of keys and values serves the same number \
                 of heads of queries",
                self.heads
            );
            return error("model.kv_heads", problem);
        }
        if !self.head_dim.is_multiple_of(2) {
            let problem =
                format!("is {}: it must be even, because RoPE rotates pairs of elements", self.head_dim);
            return error("model.head_dim", problem);
        }
        if self.heads * self.head_dim > LARGEST {
            let problem =
                format!("are {} × {}: their product must be at most {LARGEST}", self.heads, self.head_dim);
            return error("model.heads × model.head_dim", problem);
        }
        let rope_theta = ("model.rope_theta", self.rope_theta);
        let init_std = self.init_std.map(|number| ("model.init_std", number));
        for (key, number) in [rope_theta].into_iter().chain(init_std) {
            if !number.is_finite() || number <= 0.0 {
                return error(key, format!("is {number}: it must be above 0"));
            }
        }
        let eps = self.rms_norm_eps;
        if !eps.is_finite() || eps < LEAST_NORM_EPS {
            return error("model.rms_norm_eps", format!("is {eps}: it must be at least {LEAST_NORM_EPS:e}"));
        }
        Ok(())
    }

    /// Checks the values against each other and against the topology.
    ///
    /// # Errors
    /// As [`ModelConfig::check`]. Also if tied embeddings are in two levels, or the topology was made for another
    /// number of blocks.
    pub fn check_topology(&self, topology: &Topology) -> Result<(), ModelError> {
        self.check()?;
        let (embedding, head) = (topology.level_of(Part::Embedding), topology.level_of(Part::Head));
        if self.tie_embeddings && embedding != head {
            let problem = "is true, but topology.levels puts the embedding and the head into different levels: \
                           put both into one, or set it to false";
            return Err(ModelError::Config { key: "model.tie_embeddings", problem: problem.to_owned() });
        }
        if topology.level_of(Part::Block(self.blocks.saturating_sub(1))).is_none()
            || topology.level_of(Part::Block(self.blocks)).is_some()
        {
            let problem =
                format!("is {}, but the topology was made for another number of blocks", self.blocks);
            return Err(ModelError::Config { key: "model.blocks", problem });
        }
        Ok(())
    }

    /// Returns the configuration with the vocabulary of the tokenizer.
    ///
    /// # Errors
    /// `vocab_size` is given and below `vocabulary`.
    pub fn with_vocabulary(&self, vocabulary: usize) -> Result<Self, ModelError> {
        if self.vocab_size == 0 {
            return Ok(Self { vocab_size: vocabulary, ..self.clone() });
        }
        if self.vocab_size < vocabulary {
            let problem = format!(
                "is {}, but the tokenizer has {vocabulary} entries: leave it out or give at least the tokenizer's number",
                self.vocab_size
            );
            return Err(ModelError::Config { key: "model.vocab_size", problem });
        }
        Ok(self.clone())
    }

    /// Returns the same transformer with an untied head of `outputs` outputs instead of one output per token.
    #[must_use]
    pub fn with_outputs(&self, outputs: usize) -> Self {
        Self { outputs, tie_embeddings: false, ..self.clone() }
    }

    /// Returns the rows of the head: `outputs` if it is not 0, else V.
    #[must_use]
    pub fn head_size(&self) -> usize {
        if self.outputs == 0 { self.vocab_size } else { self.outputs }
    }

    /// Checks the ranges as [`ModelConfig::check`] does, and that V is known.
    pub(crate) fn check_complete(&self) -> Result<(), ModelError> {
        self.check()?;
        if self.vocab_size == 0 {
            let problem = "is 0: it must be taken from the tokenizer before a model is built".to_owned();
            return Err(ModelError::Config { key: "model.vocab_size", problem });
        }
        Ok(())
    }

    /// Returns H × Dh, the width of queries.
    #[must_use]
    pub fn attention_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns Hkv: [`ModelConfig::kv_heads`], or H.
    #[must_use]
    pub fn key_value_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// Returns Hkv × Dh, the width of keys and of values.
    #[must_use]
    pub fn key_value_size(&self) -> usize {
        self.key_value_heads() * self.head_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_eps(rms_norm_eps: f64) -> ModelConfig {
        ModelConfig { rms_norm_eps, ..ModelConfig::default() }
    }

    #[test]
    fn a_row_of_zeros_is_no_nan_with_any_norm_that_is_allowed() {
        // 1e-46 is 0 in f32.
        for eps in [0.0, -1e-5, 1e-46, 1e-30, 9e-17, f64::NAN, f64::INFINITY] {
            let error = with_eps(eps).check().unwrap_err().to_string();
            assert!(error.starts_with("model.rms_norm_eps: is "), "{error}");
            assert!(error.ends_with("it must be at least 1e-16"), "{error}");
        }
        // GGUF files have them as f32.
        for eps in [1e-5, 1e-6, 1e-8, 1e-12, f64::from(1e-12f32), 1e-16] {
            with_eps(eps).check().unwrap();
            let mut y = [f32::NAN; 4];
            dipaco_ops::kernel::rms_norm(&[0.0; 4], &[1.0; 4], &mut y, eps as f32);
            assert_eq!(y, [0.0; 4], "{eps}");
        }
    }
}
