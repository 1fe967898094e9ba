//! Import of a pretrained Llama in a GGUF file, as llama.cpp has it.
//!
//! The small files that Hugging Face's format has beside the weights are made of the keys, so all further steps are those
//! of a folder in that format.

mod header;
mod numbers;
mod tokenizer;

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::{ImportError, PretrainedSettings, PretrainedWeights};
use crate::ModuleWeights;
use crate::gguf::{ALL_ENDS, FRACTIONS, TOP_K, file_name, halves};
use header::{Header, Value};

/// Largest number of tokens that end a text.
const MOST_ENDS: u64 = 256;
/// Key of the name of the rule that cuts a text into words.
const PRE_TOKENIZER: &str = "tokenizer.ggml.pre";
/// Keys below `llama.rope.scaling`: three with a value that changes nothing, and two that nobody reads without a scaling.
const SCALING_KEYS: [&str; 5] = ["type", "factor", "attn_factor", "original_context_length", "finetuned"];
/// The name of the rule of Llama 3.
const LLAMA_3: &str = "llama-bpe";

/// A pretrained Llama in the bytes of a GGUF file.
#[derive(Clone, Debug)]
pub struct GgufModel<'a> {
    keys: Keys<'a>,
}

/// The header with the name of the file for messages.
#[derive(Clone, Debug)]
struct Keys<'a> {
    file: &'a str,
    header: Header<'a>,
}

impl<'a> GgufModel<'a> {
    /// True for bytes that begin as a GGUF file does.
    #[must_use]
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(header::MAGIC)
    }

    /// Reads the header of a file. Errors call the file `file`.
    ///
    /// # Errors
    /// [`ImportError::Gguf`] for a damaged header, and [`ImportError::Unsupported`] for a model with a part that this
    /// program does not compute.
    pub fn parse(bytes: &'a [u8], file: &'a str) -> Result<Self, ImportError> {
        let keys = Keys { file, header: Header::parse(bytes, file)? };
        keys.check_parts()?;
        Ok(Self { keys })
    }

    /// Returns name and content of the files that Hugging Face's format has beside the weights: `config.json`,
    /// `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` for a model with a template, and
    /// `generation_config.json` for a model with sampling settings.
    ///
    /// # Errors
    /// A key is missing or makes no sense, or the tokenizer is not a byte-level BPE that cuts words by a known rule.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, ImportError> {
        let keys = &self.keys;
        let rows = keys.rows()?;
        let special = keys.special_tokens(rows)?;
        let text = |file: &str, value: &Json| {
            let failed = |source| ImportError::Json { file: file.to_owned(), source: Some(source) };
            serde_json::to_vec_pretty(value).map_err(failed)
        };
        let mut config = keys.config(rows)?;
        config.extend(special.clone());
        let tokenizer = tokenizer::tokenizer(keys, rows)?;
        let mut files = vec![
            ("config.json", text("config.json", &Json::Object(config))?),
            ("tokenizer.json", tokenizer.json),
        ];
        let mut tokens = Map::new();
        tokens.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
        tokens.insert("clean_up_tokenization_spaces".to_owned(), false.into());
        for key in ["bos", "eos", "pad"] {
            let id = special.get(&format!("{key}_token_id"));
            let id = id.and_then(|id| id.as_array().and_then(|ids| ids.first()).unwrap_or(id).as_u64());
            if let Some(text) = id.and_then(|id| tokenizer.texts.get(usize::try_from(id).ok()?)) {
                tokens.insert(format!("{key}_token"), (*text).into());
            }
        }
        files.push(("tokenizer_config.json", text("tokenizer_config.json", &Json::Object(tokens))?));
        if let Some(template) = keys.text("tokenizer.chat_template")? {
            files.push(("chat_template.jinja", template.as_bytes().to_vec()));
        }
        let mut sampling = keys.sampling()?;
        if !sampling.is_empty() {
            // transformers takes no special tokens from config.json where this file exists.
            sampling.extend(special);
            files.push(("generation_config.json", text("generation_config.json", &Json::Object(sampling))?));
        }
        Ok(files)
    }

    /// Returns true if the model's own programs write its begin token before each text: the file says so, or llama.cpp does
    /// it with this rule for words.
    ///
    /// # Errors
    /// The key is no truth value, or the name of the rule is no text.
    pub fn adds_begin_token(&self) -> Result<bool, ImportError> {
        let key = "tokenizer.ggml.add_bos_token";
        match self.keys.get(key) {
            None => Ok(self.keys.text(PRE_TOKENIZER)? == Some(LLAMA_3)),
            Some(Value::Bool(adds)) => Ok(adds),
            Some(_) => Err(self.keys.wrong(key, "is not true or false")),
        }
    }

    /// Returns the number of tensors.
    #[must_use]
    pub fn tensors(&self) -> usize {
        self.keys.header.tensors.len()
    }

    /// Returns the weights, dequantised. `settings` are those of [`GgufModel::files`].
    ///
    /// # Errors
    /// A tensor is missing, unknown, of another shape or of an unknown type, ends behind the end of the file, shares bytes with
    /// another one, or has a number that is not finite.
    pub fn weights(&self, settings: &PretrainedSettings) -> Result<ModuleWeights, ImportError> {
        self.keys.check_places()?;
        let Keys { file, header } = &self.keys;
        let mut weights = PretrainedWeights::new(settings, header.tensors.len(), None)?;
        let names: HashMap<String, String> =
            weights.names().filter_map(|name| Some((file_name(name)?, name.to_owned()))).collect();
        for (name, tensor) in &header.tensors {
            if *name == "rope_freqs.weight" {
                let supported = "only rotary positions without scaling are";
                return Err(self.keys.unsupported(format!("the tensor {name}"), supported));
            }
            let own = names.get(*name).map_or(*name, String::as_str);
            weights.take(own, &tensor.shape, file, || {
                let mut values = numbers::numbers(header, tensor)?;
                if let Some("attn_q" | "attn_k") = name.rsplit('.').nth(1) {
                    let columns = tensor.shape.last().copied().unwrap_or(1);
                    values = halves(&values, settings.model.head_dim, columns);
                }
                Ok(values)
            })?;
        }
        weights.finish()
    }
}

impl<'a> Keys<'a> {
    fn wrong(&self, key: &str, problem: impl Into<String>) -> ImportError {
        ImportError::Value { file: self.file.to_owned(), key: key.to_owned(), problem: problem.into() }
    }

    fn unsupported(&self, what: String, supported: &'static str) -> ImportError {
        ImportError::Unsupported { file: self.file.to_owned(), what, supported }
    }

    fn get(&self, key: &str) -> Option<Value<'a>> {
        self.header.keys.get(key).copied()
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Whole(number)) => Ok(Some(number)),
            Some(_) => Err(self.wrong(key, "is not a whole number")),
        }
    }

    fn required(&self, key: &str) -> Result<u64, ImportError> {
        self.whole(key)?.ok_or_else(|| self.wrong(key, "is missing"))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        let number = match self.get(key) {
            None => return Ok(None),
            // The shortest decimal number: 1e-5, and not the f32 nearest to it.
            Some(Value::F32(number)) => number.to_string().parse().unwrap_or(f64::NAN),
            Some(Value::F64(number)) => number,
            Some(Value::Whole(number)) => number as f64,
            Some(_) => return Err(self.wrong(key, "is not a number")),
        };
        // JSON has no such numbers. They would become null, which stands for a default.
        if number.is_finite() { Ok(Some(number)) } else { Err(self.wrong(key, "is not finite")) }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => match std::str::from_utf8(text) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.wrong(key, "is not UTF-8")),
            },
            Some(_) => Err(self.wrong(key, "is not a text")),
        }
    }

    /// Refuses parts of a model that a path does not have.
    fn check_parts(&self) -> Result<(), ImportError> {
        let architecture = self.text("general.architecture")?;
        let architecture = architecture.ok_or_else(|| self.wrong("general.architecture", "is missing"))?;
        if architecture != "llama" {
            let what = format!("the architecture {architecture:?}");
            return Err(self.unsupported(what, "only \"llama\" is"));
        }
        let scaling = self.text("llama.rope.scaling.type")?;
        if let Some(kind) = scaling.filter(|kind| *kind != "none") {
            let supported = "only rotary positions without scaling are";
            return Err(self.unsupported(format!("llama.rope.scaling.type = {kind:?}"), supported));
        }
        for (key, plain, supported) in [
            ("llama.rope.scaling.factor", 1.0, "only rotary positions without scaling are"),
            ("llama.rope.scaling.attn_factor", 1.0, "only rotary positions without scaling are"),
            ("llama.rope.scale_linear", 1.0, "only rotary positions without scaling are"),
            ("llama.attention.scale", 0.0, "only the usual scale of attention is"),
        ] {
            if let Some(other) = self.number(key)?.filter(|&number| number != plain) {
                return Err(self.unsupported(format!("{key} = {other}"), supported));
            }
        }
        for (key, most, supported) in [
            ("llama.expert_count", 0, "only a model without experts is"),
            ("split.count", 1, "only a model in one file is: join the parts with llama-gguf-split --merge"),
        ] {
            if let Some(other) = self.whole(key)?.filter(|&number| number > most) {
                return Err(self.unsupported(format!("{key} = {other}"), supported));
            }
        }
        let is_unknown = |key: &&str| {
            key.strip_prefix("llama.rope.scaling.").is_some_and(|name| !SCALING_KEYS.contains(&name))
        };
        match self.header.keys.keys().filter(|key| is_unknown(key)).min() {
            Some(key) => {
                let supported = "only rotary positions without scaling are";
                Err(self.unsupported(format!("the key {key}"), supported))
            }
            None => Ok(()),
        }
    }

    /// Refuses tensors that share bytes of the file. The memory of such tensors would have nothing to do with the file's length.
    fn check_places(&self) -> Result<(), ImportError> {
        let wrong = |name: &str, problem: String| ImportError::Tensor {
            file: self.file.to_owned(),
            tensor: name.to_owned(),
            problem,
        };
        let mut places = Vec::with_capacity(self.header.tensors.len());
        for (&name, tensor) in &self.header.tensors {
            let length = numbers::length(tensor).map_err(|problem| wrong(name, problem))?;
            places.push((tensor.offset, tensor.offset.saturating_add(length as u64), name));
        }
        places.sort_unstable();
        for ((_, end, name), (start, _, next)) in places.iter().zip(places.iter().skip(1)) {
            if start < end {
                return Err(wrong(next, format!("begins before the end of {name}")));
            }
        }
        Ok(())
    }

    /// The number of rows of the embedding.
    fn rows(&self) -> Result<u64, ImportError> {
        let embedding = self.header.tensors.get("token_embd.weight").map(|tensor| tensor.shape.as_slice());
        match embedding {
            Some(&[rows, _]) => Ok(rows as u64),
            _ => Err(ImportError::Tensor {
                file: self.file.to_owned(),
                tensor: "token_embd.weight".to_owned(),
                problem: "is missing, or is no matrix".to_owned(),
            }),
        }
    }

    /// The shape of the transformer, as `config.json` has it.
    fn config(&self, rows: u64) -> Result<Map<String, Json>, ImportError> {
        let (width, heads) =
            (self.required("llama.embedding_length")?, self.required("llama.attention.head_count")?);
        let kv_heads = self.whole("llama.attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = match self.whole("llama.attention.key_length")? {
            Some(length) => length,
            None => width.checked_div(heads).unwrap_or_default(),
        };
        for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
            if let Some(other) = self.whole(key)?.filter(|&other| other != head_dim) {
                let supported = "it must be the width of a head, llama.attention.key_length";
                return Err(self.unsupported(format!("{key} = {other}"), supported));
            }
        }
        let epsilon = "llama.attention.layer_norm_rms_epsilon";
        let epsilon = self.number(epsilon)?.ok_or_else(|| self.wrong(epsilon, "is missing"))?;
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": rows,
            "hidden_size": width,
            "intermediate_size": self.required("llama.feed_forward_length")?,
            "num_hidden_layers": self.required("llama.block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.required("llama.context_length")?,
            "rms_norm_eps": epsilon,
            "rope_theta": self.number("llama.rope.freq_base")?.unwrap_or(10_000.0),
            "tie_word_embeddings": !self.header.tensors.contains_key("output.weight"),
        });
        Ok(config.as_object().cloned().unwrap_or_default())
    }

    /// The keys of `config.json` that name special tokens. Several tokens may end a text.
    fn special_tokens(&self, rows: u64) -> Result<Map<String, Json>, ImportError> {
        let id = |key: &str| {
            let key = format!("tokenizer.ggml.{key}_token_id");
            let id = self.whole(&key)?;
            match id.filter(|&id| id >= rows) {
                Some(id) => Err(self.wrong(&key, format!("is {id}, but the embedding has {rows} rows"))),
                None => Ok(id),
            }
        };
        let mut ends: Vec<u64> = Vec::new();
        for key in ["eos", "eot", "eom"] {
            ends.extend(id(key)?.filter(|id| !ends.contains(id)));
        }
        for end in self.all_ends(rows)? {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        let mut special = Map::new();
        let ends = match *ends {
            [] => None,
            [end] => Some(Json::from(end)),
            _ => Some(Json::from(ends)),
        };
        let named = [
            ("bos_token_id", id("bos")?.map(Json::from)),
            ("eos_token_id", ends),
            ("pad_token_id", id("padding")?.map(Json::from)),
        ];
        special.extend(named.into_iter().filter_map(|(key, id)| Some((key.to_owned(), id?))));
        Ok(special)
    }

    /// The list of all tokens that end a text, which few files have.
    fn all_ends(&self, rows: u64) -> Result<Vec<u64>, ImportError> {
        let list = match self.get(ALL_ENDS) {
            None => return Ok(Vec::new()),
            Some(Value::Array(array)) if array.count() <= MOST_ENDS => array.numbers(),
            Some(_) => None,
        };
        let id = |id: i64| u64::try_from(id).ok().filter(|&id| id < rows);
        let ends = list.and_then(|list| list.into_iter().map(id).collect());
        ends.ok_or_else(|| {
            self.wrong(ALL_ENDS, format!("is no list of at most {MOST_ENDS} token ids below {rows}"))
        })
    }

    /// The sampling settings, as `generation_config.json` has them.
    fn sampling(&self) -> Result<Map<String, Json>, ImportError> {
        let mut settings = Map::new();
        for (name, key) in FRACTIONS {
            settings.extend(self.number(key)?.map(|number| (name.to_owned(), number.into())));
        }
        let (name, key) = TOP_K;
        // llama.cpp takes all tokens if the number is below 1.
        let count = if let Some(Value::Negative(_)) = self.get(key) { Some(0) } else { self.whole(key)? };
        settings.extend(count.map(|count| (name.to_owned(), count.into())));
        // transformers draws tokens only with this key. Without it, version 4 refuses to save settings that only draws read. It
        // refuses a temperature of 0 either way, which stays: without it, a server would draw.
        let are_for_draws =
            ["temperature", "top_p", "top_k", "min_p"].iter().any(|&name| settings.contains_key(name));
        let is_greedy = settings.get("temperature").and_then(Json::as_f64) == Some(0.0);
        if are_for_draws && !is_greedy {
            settings.insert("do_sample".to_owned(), true.into());
        }
        Ok(settings)
    }
}
