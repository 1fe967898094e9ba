//! Sampling settings of a pretrained model in the keys of a GGUF file, from which llama.cpp takes its defaults.

use candle_core::quantized::gguf_file::Value;
use serde_json::{Map, Value as Json};

use super::VocabularyError;

/// Settings of a `generation_config.json` that are fractions, with their keys.
pub(crate) const FRACTIONS: [(&str, &str); 4] = [
    ("temperature", "general.sampling.temp"),
    ("top_p", "general.sampling.top_p"),
    ("min_p", "general.sampling.min_p"),
    (REPETITION, "general.sampling.penalty_repeat"),
];

/// The number of likeliest tokens, with its key. It is a whole number.
pub(crate) const TOP_K: (&str, &str) = ("top_k", "general.sampling.top_k");

const REPETITION: &str = "repetition_penalty";
/// Number of last tokens that the penalty looks at.
const PENALTY_TOKENS: &str = "general.sampling.penalty_last_n";

/// The keys of these settings. Settings without a key are left out.
pub(super) fn sampling_keys(settings: &Map<String, Json>) -> Result<Vec<(String, Value)>, VocabularyError> {
    let wrong = |key: &str, value: &Json, kind| VocabularyError::Sampling {
        key: key.to_owned(),
        value: value.to_string(),
        kind,
    };
    let given = |key: &str| settings.get(key).filter(|value| !value.is_null());
    let mut keys = Vec::new();
    for (name, key) in FRACTIONS {
        let Some(value) = given(name) else { continue };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        let number = number.ok_or_else(|| wrong(name, value, "a number"))?;
        keys.push((key.to_owned(), Value::F32(number)));
        if name == REPETITION {
            // The penalty of this setting looks at the whole text, and llama.cpp's at 64 tokens if it is told no number.
            keys.push((PENALTY_TOKENS.to_owned(), Value::I32(-1)));
        }
    }
    if let Some(value) = given(TOP_K.0) {
        let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
        let number = number.ok_or_else(|| wrong(TOP_K.0, value, "a whole number"))?;
        keys.push((TOP_K.1.to_owned(), Value::I32(number)));
    }
    Ok(keys)
}
