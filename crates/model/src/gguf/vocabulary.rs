//! A tokenizer as the keys of a GGUF file.

use std::collections::BTreeMap;

use candle_core::quantized::gguf_file::Value;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use thiserror::Error;

use super::sampling::sampling_keys;
use super::special_tokens::GgufTokens;
use crate::ModelError;

/// A kind of tokens in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A part of text.
    Normal = 1,
    /// Never comes out of text.
    Control = 3,
    /// A text that is one token wherever it stands.
    UserDefined = 4,
    /// A row without a token.
    Unused = 5,
}

impl TokenKind {
    /// The kind of a number; `None` for kinds that a byte-level BPE does not have.
    pub(crate) fn from_number(number: i64) -> Option<Self> {
        match number {
            1 => Some(Self::Normal),
            // 2 is the unknown token. It comes out of text as little as 3 does.
            2 | 3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            5 => Some(Self::Unused),
            _ => None,
        }
    }
}

/// Expression of Llama 3's tokenizer for words.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Expressions of llama.cpp's own rule, one after the other.
const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

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
    /// An added token takes the spaces beside it, or is one only as a whole word. llama.cpp would give other tokens for the same
    /// text.
    #[error(
        "the tokenizer's added token {text:?} has lstrip, rstrip or single_word, which a GGUF file can't say, so the same text \
         would get other tokens: export without --gguf"
    )]
    AddedToken {
        /// The text of the token.
        text: String,
    },
    /// A merge joins tokens that do not exist, or two tokens have one id.
    #[error("the tokenizer is damaged: {problem}")]
    Damaged {
        /// The damage.
        problem: String,
    },
    /// A sampling setting of the model makes no sense.
    #[error("generation_config.json: {key} is {value}: it must be {kind}")]
    Sampling {
        /// The setting.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// What it must be.
        kind: &'static str,
    },
}

/// The vocabulary, merges and rules of a byte-level BPE tokenizer, as llama.cpp has them, with the other keys of a file
/// that programs need to generate text.
///
/// llama.cpp knows the rule that cuts a text into words by name. Names are given to the rules of GPT-2 (also the rule of
/// tokenizers that this program trains), SmolLM and Llama 3, whose expressions are the same there. Characters that
/// Unicode classified after the older of both programs was built can be cut differently.
#[derive(Clone, Debug)]
pub struct GgufVocabulary {
    /// Text and kind of each token, by id.
    tokens: BTreeMap<u32, (String, TokenKind)>,
    merges: Vec<String>,
    rule: &'static str,
    special: GgufTokens,
    chat_template: Option<String>,
    sampling: Vec<(String, Value)>,
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
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
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
            if let Some((other, _)) = tokens.insert(id, (text.clone(), TokenKind::Normal)) {
                let problem = format!("the tokens {text:?} and {other:?} have the id {id}");
                return Err(VocabularyError::Damaged { problem });
            }
        }
        for Added { id, content, special, lstrip, rstrip, single_word } in added_tokens {
            if lstrip || rstrip || single_word {
                return Err(VocabularyError::AddedToken { text: content });
            }
            tokens.insert(
                id,
                (
                    content,
                    if special || id == end_of_text { TokenKind::Control } else { TokenKind::UserDefined },
                ),
            );
        }
        let merges = model.merges.into_iter().map(|merge| match merge {
            Merge::Joined(text) => text,
            Merge::Pair([left, right]) => format!("{left} {right}"),
        });
        let special = GgufTokens::of_end(end_of_text);
        let merges = merges.collect();
        Ok(Self { tokens, merges, rule, special, chat_template: None, sampling: Vec::new() })
    }

    /// Names other special tokens than the end-of-text token.
    #[must_use]
    pub fn with_special_tokens(self, special: GgufTokens) -> Self {
        Self { special, ..self }
    }

    /// Adds a chat template in Jinja.
    #[must_use]
    pub fn with_chat_template(self, chat_template: Option<String>) -> Self {
        Self { chat_template, ..self }
    }

    /// Adds the sampling settings of a `generation_config.json`: `temperature`, `top_k`, `top_p`, `min_p` and
    /// `repetition_penalty`. A GGUF file has no keys for other settings.
    ///
    /// # Errors
    /// [`VocabularyError::Sampling`] when such a setting is no number.
    pub fn with_sampling(self, settings: &Map<String, Json>) -> Result<Self, VocabularyError> {
        Ok(Self { sampling: sampling_keys(settings)?, ..self })
    }

    /// Returns the id of a token by its text.
    #[must_use]
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.tokens.iter().find(|(_, (own, _))| own == text).map(|(&id, _)| id)
    }

    /// Returns the end tokens at which llama.cpp goes on: a file has three keys for end tokens, and llama.cpp does not know
    /// these tokens by their text either.
    #[must_use]
    pub fn lost_end_tokens(&self) -> Vec<u32> {
        self.special.lost(|id| self.text_of(id))
    }

    fn text_of(&self, id: u32) -> Option<&str> {
        self.tokens.get(&id).map(|(text, _)| text.as_str())
    }

    /// The keys of a file of a model with `rows` tokens. Rows without a token get names of their own.
    pub(super) fn metadata(&self, rows: usize) -> Result<Vec<(String, Value)>, ModelError> {
        let known = self.tokens.keys().next_back().copied().unwrap_or(0).max(self.special.largest());
        if known as usize >= rows {
            return Err(ModelError::Token { token: known, vocabulary: rows });
        }
        let token = |id: usize| {
            let found = u32::try_from(id).ok().and_then(|id| self.tokens.get(&id));
            found.cloned().unwrap_or_else(|| (format!("<unused{id}>"), TokenKind::Unused))
        };
        let (texts, kinds): (Vec<_>, Vec<_>) =
            (0..rows).map(token).map(|(text, kind)| (Value::String(text), Value::I32(kind as i32))).unzip();
        let merges = self.merges.iter().cloned().map(Value::String).collect();
        let mut keys = vec![
            ("tokenizer.ggml.model", Value::String("gpt2".into())),
            ("tokenizer.ggml.pre", Value::String(self.rule.into())),
            ("tokenizer.ggml.tokens", Value::Array(texts)),
            ("tokenizer.ggml.token_type", Value::Array(kinds)),
            ("tokenizer.ggml.merges", Value::Array(merges)),
            // No token is added to a text, as in training.
            ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
            ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
            ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ];
        keys.extend(self.special.keys(|id| self.text_of(id)));
        if let Some(template) = &self.chat_template {
            keys.push(("tokenizer.chat_template", Value::String(template.clone())));
        }
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
        Ok(keys.chain(self.sampling.iter().cloned()).collect())
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
    if *pre_tokenizer == self::pre_tokenizer("default")? {
        return Some("default");
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

/// The rule that llama.cpp gives this name. The inverse of [`rule`].
pub(crate) fn pre_tokenizer(rule: &str) -> Option<Json> {
    let byte_level = |own_expression: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": own_expression});
    let split = |expression: &str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
    let sequence = |parts: Vec<Json>| json!({"type": "Sequence", "pretokenizers": parts});
    match rule {
        "gpt-2" => Some(byte_level(true)),
        "smollm" => {
            Some(sequence(vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)]))
        }
        "llama-bpe" => Some(sequence(vec![split(LLAMA_3), byte_level(false)])),
        "default" => {
            let parts = DEFAULT.iter().map(|expression| split(expression)).chain([byte_level(false)]);
            Some(sequence(parts.collect()))
        }
        _ => None,
    }
}
