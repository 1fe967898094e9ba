//! The settings of a pretrained Llama (`config.json`).

use serde_json::{Map, Value};

use super::ImportError;
use crate::ModelConfig;

/// Settings of a pretrained model.
#[derive(Clone, Debug, PartialEq)]
pub struct PretrainedSettings {
    /// Shape and numbers of the transformer. Values that a checkpoint does not have are defaults.
    pub model: ModelConfig,
    /// Ids of the tokens that end a text; empty if the file names none.
    pub end_tokens: Vec<u32>,
}

/// Values of `rope_type` without any scaling.
const PLAIN_ROPE: &str = "default";
/// Largest number of tokens that end a text. Known models have up to ten.
const MOST_TOKENS: usize = 256;

impl PretrainedSettings {
    /// Reads a `config.json`; errors call it `file`. Keys that are absent have the defaults of transformers.
    ///
    /// # Errors
    /// The bytes are no JSON object, a value makes no sense, or the model has a part that this program does not compute.
    pub fn parse(json: &[u8], file: &str) -> Result<Self, ImportError> {
        let failed = |source| ImportError::Json { file: file.to_owned(), source };
        let value: Value = serde_json::from_slice(json).map_err(|source| failed(Some(source)))?;
        let map = value.as_object().ok_or_else(|| failed(None))?;
        let keys = Keys { file, map };
        keys.check_architecture()?;
        keys.check_parts()?;
        let heads = keys.required("num_attention_heads")?;
        let hidden_size = keys.required("hidden_size")?;
        let kv_heads = keys.size("num_key_value_heads")?.unwrap_or(heads);
        let head_dim = match keys.size("head_dim")? {
            Some(head_dim) => head_dim,
            None => hidden_size.checked_div(heads).unwrap_or_default(),
        };
        let default = ModelConfig::default();
        let model = ModelConfig {
            hidden_size,
            blocks: keys.required("num_hidden_layers")?,
            heads,
            kv_heads: (kv_heads != heads).then_some(kv_heads),
            head_dim,
            ffn_size: keys.required("intermediate_size")?,
            vocab_size: keys.required("vocab_size")?,
            context: keys.size("max_position_embeddings")?.unwrap_or(2048),
            rope_theta: keys.rope_theta()?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            tie_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            init_std: keys.number("initializer_range")?.filter(|&std| std > 0.0),
            ..default
        };
        model.check_complete()?;
        Ok(Self { end_tokens: keys.tokens("eos_token_id")?, model })
    }

    /// Reads the end tokens of a `generation_config.json`; errors call it `file`.
    ///
    /// # Errors
    /// The bytes are no JSON object, or the ids are no numbers.
    pub fn end_tokens_of(json: &[u8], file: &str) -> Result<Vec<u32>, ImportError> {
        let failed = |source| ImportError::Json { file: file.to_owned(), source };
        let value: Value = serde_json::from_slice(json).map_err(|source| failed(Some(source)))?;
        let map = value.as_object().ok_or_else(|| failed(None))?;
        Keys { file, map }.tokens("eos_token_id")
    }
}

/// The keys of a JSON file.
struct Keys<'a> {
    file: &'a str,
    map: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn wrong(&self, key: &str, problem: impl Into<String>) -> ImportError {
        ImportError::Value { file: self.file.to_owned(), key: key.to_owned(), problem: problem.into() }
    }

    fn unsupported(&self, what: String, supported: &'static str) -> ImportError {
        ImportError::Unsupported { file: self.file.to_owned(), what, supported }
    }

    /// The value of a key; `None` if it is absent or null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ImportError> {
        let size = |value: &Value| {
            let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
            size.ok_or_else(|| self.wrong(key, format!("is {value}: it must be a whole number")))
        };
        self.get(key).map(size).transpose()
    }

    fn required(&self, key: &str) -> Result<usize, ImportError> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "is missing"))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        let number = |value: &Value| {
            value.as_f64().ok_or_else(|| self.wrong(key, format!("is {value}: it must be a number")))
        };
        self.get(key).map(number).transpose()
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ImportError> {
        let flag = |value: &Value| {
            value.as_bool().ok_or_else(|| self.wrong(key, format!("is {value}: it must be true or false")))
        };
        self.get(key).map(flag).transpose()
    }

    /// One id or a list of ids.
    fn tokens(&self, key: &str) -> Result<Vec<u32>, ImportError> {
        let id = |value: &Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| self.wrong(key, format!("has {value}: a token id is a whole number")))
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() > MOST_TOKENS => {
                Err(self
                    .wrong(key, format!("has {} tokens: more than {MOST_TOKENS} make no sense", list.len())))
            }
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(value) => Ok(vec![id(value)?]),
        }
    }

    fn check_architecture(&self) -> Result<(), ImportError> {
        let supported = "only Llama is (`model_type` \"llama\", `LlamaForCausalLM`)";
        let kind = self.get("model_type").ok_or_else(|| self.wrong("model_type", "is missing"))?;
        if kind != "llama" {
            return Err(self.unsupported(format!("the architecture {kind}"), supported));
        }
        let classes = self.get("architectures").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        match classes.iter().find(|class| *class != "LlamaForCausalLM") {
            Some(class) => Err(self.unsupported(format!("the architecture {class}"), supported)),
            None => Ok(()),
        }
    }

    /// Refuses parts of a Llama that a path does not have.
    fn check_parts(&self) -> Result<(), ImportError> {
        if self.get("quantization_config").is_some() {
            let supported = "give weights in f32, f16 or bf16";
            return Err(self.unsupported("quantization_config".to_owned(), supported));
        }
        let activation = self.get("hidden_act");
        if let Some(other) = activation.filter(|value| *value != "silu" && *value != "swish") {
            return Err(self.unsupported(format!("the activation hidden_act = {other}"), "only silu is"));
        }
        for (key, supported) in [
            ("attention_bias", "only matrices without biases are"),
            ("mlp_bias", "only matrices without biases are"),
            ("rope_interleaved", "only the rotation of halves is"),
        ] {
            if self.flag(key)? == Some(true) {
                return Err(self.unsupported(format!("{key} = true"), supported));
            }
        }
        match self.number("partial_rotary_factor")?.filter(|&factor| factor != 1.0) {
            Some(other) => {
                let supported = "only the rotation of whole heads is";
                Err(self.unsupported(format!("partial_rotary_factor = {other}"), supported))
            }
            None => Ok(()),
        }
    }

    /// The base of the rotations, in the spelling of transformers 5 (`rope_parameters`) or of earlier versions
    /// (`rope_theta` and `rope_scaling`).
    fn rope_theta(&self) -> Result<f64, ImportError> {
        let mut theta = self.number("rope_theta")?;
        for key in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.get(key) else { continue };
            let map = value.as_object().ok_or_else(|| self.wrong(key, "is not an object"))?;
            let inner = Keys { file: self.file, map };
            let supported = "only rotary positions without scaling are (rope_type \"default\")";
            // Two spellings of one key: versions of transformers differ in which of them wins.
            let kinds = ["rope_type", "type"].map(|key| inner.get(key));
            let kind = kinds.into_iter().flatten().find(|kind| *kind != PLAIN_ROPE);
            if let Some(kind) = kind {
                return Err(self.unsupported(format!("the scaling {key} of type {kind}"), supported));
            }
            if key == "rope_scaling" && kinds == [None, None] {
                return Err(self.unsupported(format!("the scaling {key} without a type"), supported));
            }
            if let Some((layers, _)) = map.iter().find(|(_, value)| value.is_object()) {
                let supported = "only the same rotary positions in all blocks are";
                return Err(self.unsupported(format!("{key} with settings of {layers:?}"), supported));
            }
            inner.check_parts()?;
            if let Some(found) = inner.number("rope_theta")? {
                if let Some(other) = theta.filter(|&theta| theta != found) {
                    let problem = format!("is {other}, but rope_theta in {key} is {found}");
                    return Err(self.wrong("rope_theta", problem));
                }
                theta = Some(found);
            } else if key == "rope_parameters" && theta.is_none() {
                return Err(self.wrong(key, "has no rope_theta"));
            }
        }
        Ok(theta.unwrap_or(10_000.0))
    }
}
