//! A tokenizer as the keys of a GGUF file.

use std::collections::BTreeMap;

use candle_core::quantized::gguf_file::Value;
use serde::Deserialize;
use serde_json::Value as Json;
use thiserror::Error;

use crate::ModelError;

/// Kinds of tokens in `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Expression of Llama 3's tokenizer for words.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A tokenizer that a GGUF file can't hold.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The file is no tokenizer of a kind that is known here.
    #[error("the tokenizer can't be read for a GGUF file: it must be a byte-level BPE")]
    Json(#[from] serde_json::Error),
    /// llama.cpp would give other tokens for the same text.
    #[error(
        "the tokenizer's {part} is none that llama.cpp knows by name, so the same text would get other tokens: \
         export without --gguf"
    )]
    Unknown {
        /// The part of the tokenizer.
        part: &'static str,
    },
    /// A merge joins tokens that do not exist, or two tokens have one id.
    #[error("the tokenizer is damaged: {problem}")]
    Damaged {
        /// The damage.
        problem: String,
    },
}

/// The vocabulary, merges and rules of a byte-level BPE tokenizer, as llama.cpp has them.
///
/// llama.cpp knows the rule that cuts a text into words by name. Names are given to the rules of GPT-2 (also the rule of
/// tokenizers that this program trains), SmolLM and Llama 3, whose expressions are the same there. Characters that
/// Unicode classified after the older of both programs was built can be cut differently.
#[derive(Clone, Debug)]
pub struct GgufVocabulary {
    /// Text and kind of each token, by id.
    tokens: BTreeMap<u32, (String, i32)>,
    merges: Vec<String>,
    rule: &'static str,
    end_of_text: u32,
    chat_template: Option<String>,
}

/// The parts of a `tokenizer.json` that matter here.
#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    pre_tokenizer: Json,
    #[serde(default)]
    normalizer: Json,
}

#[derive(Deserialize)]
struct Model {
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    byte_fallback: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair([String; 2]),
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    special: bool,
}

impl GgufVocabulary {
    /// Reads a `tokenizer.json`. `end_of_text` is the token that ends a text.
    ///
    /// # Errors
    /// [`VocabularyError`] when the tokenizer is no byte-level BPE with a rule that llama.cpp has.
    pub fn from_tokenizer_json(json: &[u8], end_of_text: u32) -> Result<Self, VocabularyError> {
        let File { model, added_tokens, pre_tokenizer, normalizer } = serde_json::from_slice(json)?;
        if !normalizer.is_null() {
            return Err(VocabularyError::Unknown { part: "normalizer" });
        }
        let rule = rule(&pre_tokenizer).ok_or(VocabularyError::Unknown { part: "pre-tokenizer" })?;
        // llama.cpp takes a word that is a token as that token with this rule only.
        if model.byte_fallback || model.ignore_merges != (rule == "llama-bpe") {
            return Err(VocabularyError::Unknown { part: "model" });
        }
        let mut tokens = BTreeMap::new();
        for (text, id) in model.vocab {
            if let Some((other, _)) = tokens.insert(id, (text.clone(), NORMAL)) {
                let problem = format!("the tokens {text:?} and {other:?} have the id {id}");
                return Err(VocabularyError::Damaged { problem });
            }
        }
        for Added { id, content, special } in added_tokens {
            tokens.insert(id, (content, if special || id == end_of_text { CONTROL } else { USER_DEFINED }));
        }
        let merges = model.merges.into_iter().map(|merge| match merge {
            Merge::Joined(text) => text,
            Merge::Pair([left, right]) => format!("{left} {right}"),
        });
        Ok(Self { tokens, merges: merges.collect(), rule, end_of_text, chat_template: None })
    }

    /// Adds a chat template in Jinja.
    #[must_use]
    pub fn with_chat_template(self, chat_template: Option<String>) -> Self {
        Self { chat_template, ..self }
    }

    /// The keys of a file of a model with `rows` tokens. Rows without a token get names of their own.
    pub(super) fn metadata(&self, rows: usize) -> Result<Vec<(String, Value)>, ModelError> {
        let known = self.tokens.keys().next_back().copied().unwrap_or(0).max(self.end_of_text);
        if known as usize >= rows {
            return Err(ModelError::Token { token: known, vocabulary: rows });
        }
        let token = |id: usize| {
            let found = u32::try_from(id).ok().and_then(|id| self.tokens.get(&id));
            found.cloned().unwrap_or_else(|| (format!("<unused{id}>"), UNUSED))
        };
        let (texts, kinds): (Vec<_>, Vec<_>) =
            (0..rows).map(token).map(|(text, kind)| (Value::String(text), Value::I32(kind))).unzip();
        let merges = self.merges.iter().cloned().map(Value::String).collect();
        let mut keys = vec![
            ("tokenizer.ggml.model", Value::String("gpt2".into())),
            ("tokenizer.ggml.pre", Value::String(self.rule.into())),
            ("tokenizer.ggml.tokens", Value::Array(texts)),
            ("tokenizer.ggml.token_type", Value::Array(kinds)),
            ("tokenizer.ggml.merges", Value::Array(merges)),
            ("tokenizer.ggml.bos_token_id", Value::U32(self.end_of_text)),
            ("tokenizer.ggml.eos_token_id", Value::U32(self.end_of_text)),
            ("tokenizer.ggml.padding_token_id", Value::U32(self.end_of_text)),
            // No token is added to a text, as in training.
            ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
            ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
            ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ];
        if let Some(template) = &self.chat_template {
            keys.push(("tokenizer.chat_template", Value::String(template.clone())));
        }
        Ok(keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

/// llama.cpp's name of a rule that cuts a text into words.
pub(super) fn rule(pre_tokenizer: &Json) -> Option<&'static str> {
    let byte_level = |part: &Json, own_expression: bool| {
        part["type"] == "ByteLevel"
            && part["add_prefix_space"] == false
            && part["use_regex"].as_bool().unwrap_or(true) == own_expression
    };
    if byte_level(pre_tokenizer, true) {
        return Some("gpt-2");
    }
    let [first, second] = pre_tokenizer["pretokenizers"].as_array()?.as_slice() else { return None };
    if first["type"] == "Digits" && first["individual_digits"] == true && byte_level(second, true) {
        return Some("smollm");
    }
    let split = first["type"] == "Split"
        && first["behavior"] == "Isolated"
        && first["invert"] == false
        && first["pattern"]["Regex"] == LLAMA_3;
    (split && byte_level(second, false)).then_some("llama-bpe")
}
