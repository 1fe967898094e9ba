//! A tokenizer of a GGUF file in Hugging Face's format.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::header::Value;
use super::{Keys, LLAMA_3, PRE_TOKENIZER};
use crate::gguf::{TokenKind, pre_tokenizer};
use crate::import::ImportError;

/// A tokenizer.
pub(super) struct Tokenizer<'a> {
    /// The content of a `tokenizer.json`.
    pub(super) json: Vec<u8>,
    /// The texts of all tokens by id. Tokens of text have a character for each byte.
    pub(super) texts: Vec<&'a str>,
}

/// The parts of a `tokenizer.json`.
#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    added_tokens: Vec<Added<'a>>,
    normalizer: Option<()>,
    pre_tokenizer: Json,
    post_processor: Option<()>,
    decoder: Json,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Added<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Model<'a> {
    r#type: &'static str,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: BTreeMap<&'a str, usize>,
    merges: Vec<&'a str>,
}

/// Makes the `tokenizer.json` of a model with `rows` rows of its embedding.
pub(super) fn tokenizer<'a>(keys: &Keys<'a>, rows: u64) -> Result<Tokenizer<'a>, ImportError> {
    let model = keys.text("tokenizer.ggml.model")?.unwrap_or("none");
    if model != "gpt2" {
        let supported = "only a byte-level BPE is (tokenizer.ggml.model \"gpt2\")";
        return Err(keys.unsupported(format!("tokenizer.ggml.model = {model:?}"), supported));
    }
    let rule = keys.text(PRE_TOKENIZER)?.unwrap_or("none");
    let pre_tokenizer = pre_tokenizer(rule).ok_or_else(|| {
        let supported = "only the rules \"gpt-2\", \"smollm\", \"llama-bpe\" and \"default\" are: \
             import the model's folder in Hugging Face's format";
        keys.unsupported(format!("{PRE_TOKENIZER} = {rule:?}"), supported)
    })?;
    if let Some(Value::Array(array)) = keys.get("tokenizer.ggml.tokens")
        && array.count() > rows
    {
        let problem = format!("has {} tokens, but the embedding has {rows} rows", array.count());
        return Err(keys.wrong("tokenizer.ggml.tokens", problem));
    }
    let texts = texts(keys, "tokenizer.ggml.tokens")?;
    let mut vocab = BTreeMap::new();
    let mut added_tokens = Vec::new();
    for (id, (&content, kind)) in texts.iter().zip(kinds(keys, texts.len())?).enumerate() {
        // Rows without a token have a text of the exporting program's invention.
        if kind == TokenKind::Unused {
            continue;
        }
        if let Some(other) = vocab.insert(content, id) {
            let problem = format!("has {content:?} as token {other} and as token {id}");
            return Err(keys.wrong("tokenizer.ggml.tokens", problem));
        }
        if kind != TokenKind::Normal {
            let special = kind == TokenKind::Control;
            let [single_word, lstrip, rstrip, normalized] = [false; 4];
            added_tokens.push(Added { id, content, single_word, lstrip, rstrip, normalized, special });
        }
    }
    let file = File {
        version: "1.0",
        added_tokens,
        normalizer: None,
        pre_tokenizer,
        post_processor: None,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
        model: Model {
            r#type: "BPE",
            byte_fallback: false,
            // As llama.cpp does with this rule.
            ignore_merges: rule == LLAMA_3,
            vocab,
            merges: self::texts(keys, "tokenizer.ggml.merges")?,
        },
    };
    let json = serde_json::to_vec(&file)
        .map_err(|source| ImportError::Json { file: "tokenizer.json".to_owned(), source: Some(source) })?;
    Ok(Tokenizer { json, texts })
}

fn texts<'a>(keys: &Keys<'a>, key: &str) -> Result<Vec<&'a str>, ImportError> {
    let texts = match keys.get(key) {
        Some(Value::Array(array)) => array.texts(),
        _ => None,
    };
    texts.ok_or_else(|| keys.wrong(key, "is missing, or is no list of texts in UTF-8"))
}

/// The kind of each token. Without the key all are tokens of text.
fn kinds(keys: &Keys<'_>, tokens: usize) -> Result<Vec<TokenKind>, ImportError> {
    let key = "tokenizer.ggml.token_type";
    let numbers = match keys.get(key) {
        None => return Ok(vec![TokenKind::Normal; tokens]),
        // A number takes one byte of the file and eight of memory.
        Some(Value::Array(array)) if array.count() == tokens as u64 => array.numbers(),
        Some(_) => None,
    };
    let numbers = numbers.ok_or_else(|| keys.wrong(key, format!("is no list of {tokens} numbers")))?;
    let kind = |number: i64| {
        TokenKind::from_number(number)
            .ok_or_else(|| keys.unsupported(format!("{key} {number}"), "a byte-level BPE has no such token"))
    };
    numbers.into_iter().map(kind).collect()
}
