//! The special tokens that a GGUF file names.

use candle_core::quantized::gguf_file::Value;

/// Texts of tokens at which llama.cpp ends a generated text without a key (`special_eog_ids` in `src/llama-vocab.cpp`).
/// Its versions since 2025 have all of these and later ones know more, so a key for any other text does no harm.
const ENDS_BY_TEXT: [&str; 9] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
];

/// Keys of single tokens that end a text, beside the usual one.
const FURTHER_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Key of all tokens that end a text. Ollama and this program read it; llama.cpp does not.
pub(crate) const ALL_ENDS: &str = "tokenizer.ggml.eos_token_ids";

/// Ids of the special tokens that a GGUF file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTokens {
    /// The token that begins a text, as a chat template may write it.
    pub begin: u32,
    /// The usual token that ends a text.
    pub end: u32,
    /// Further tokens that end a text.
    pub further_ends: Vec<u32>,
    /// The token that pads a text.
    pub padding: u32,
}

impl GgufTokens {
    /// The tokens of a tokenizer with one special token.
    #[must_use]
    pub fn of_end(end: u32) -> Self {
        Self { begin: end, end, further_ends: Vec::new(), padding: end }
    }

    /// The largest id.
    pub(super) fn largest(&self) -> u32 {
        let singles = self.begin.max(self.end).max(self.padding);
        self.further_ends.iter().copied().fold(singles, u32::max)
    }

    /// The further ends that llama.cpp does not know by their text: each needs a key.
    fn without_known_text<'a>(&'a self, text: impl Fn(u32) -> Option<&'a str>) -> Vec<u32> {
        let known = |id: u32| text(id).is_some_and(|text| ENDS_BY_TEXT.contains(&text));
        self.further_ends.iter().copied().filter(|&id| !known(id)).collect()
    }

    /// The ends at which llama.cpp does not end a text: it has keys for three ends and does not know the texts of others.
    pub(super) fn lost<'a>(&'a self, text: impl Fn(u32) -> Option<&'a str>) -> Vec<u32> {
        self.without_known_text(text).into_iter().skip(FURTHER_ENDS.len()).collect()
    }

    /// The keys of the file. `text` is the text of a token.
    pub(super) fn keys<'a>(&'a self, text: impl Fn(u32) -> Option<&'a str>) -> Vec<(&'static str, Value)> {
        let mut keys = vec![
            ("tokenizer.ggml.bos_token_id", Value::U32(self.begin)),
            ("tokenizer.ggml.eos_token_id", Value::U32(self.end)),
            ("tokenizer.ggml.padding_token_id", Value::U32(self.padding)),
        ];
        let further = self.without_known_text(text).into_iter();
        keys.extend(FURTHER_ENDS.into_iter().zip(further.map(Value::U32)));
        if !self.further_ends.is_empty() {
            let all = std::iter::once(&self.end).chain(&self.further_ends);
            // Ollama reads signed numbers only.
            let all = all.map(|&id| Value::I32(i32::try_from(id).unwrap_or(i32::MAX))).collect();
            keys.push((ALL_ENDS, Value::Array(all)));
        }
        keys
    }
}
