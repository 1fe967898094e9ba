//! The special tokens of an imported model, as a GGUF file names them.

use dipaco_model::{GgufTokens, GgufVocabulary};
use serde_json::Value;

use crate::error::PipelineError;
use crate::imported_files::{CONFIG, ImportedFolder, TOKENIZER_CONFIG};

/// The text of a token in the settings of a tokenizer: a text, or an object with its content.
pub(crate) fn token_of(config: &Value, key: &str) -> Option<String> {
    let token = config.get(key)?;
    Some(token.as_str().or_else(|| token.get("content")?.as_str())?.to_owned())
}

impl ImportedFolder {
    /// The special tokens of a model with `rows` rows of its embedding, whose documents end with `end_of_text`. Begin, end
    /// and padding are those of the tokenizer's settings, or else of the model's, as llama.cpp's converter takes them.
    pub(crate) fn special_tokens(
        &self,
        vocabulary: &GgufVocabulary,
        end_of_text: u32,
        rows: usize,
    ) -> Result<GgufTokens, PipelineError> {
        let names = self.json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let config = self.json(CONFIG)?.unwrap_or_default();
        let has_row = |id: &u32| (*id as usize) < rows;
        let token = |kind: &str| {
            let named = token_of(&names, &format!("{kind}_token")).and_then(|text| vocabulary.id_of(&text));
            let id = || u32::try_from(config.get(format!("{kind}_token_id"))?.as_u64()?).ok();
            named.or_else(id).filter(has_row)
        };
        let mut ends: Vec<u32> = Vec::new();
        // No text has a token without a row. The paths have learnt that documents end with the end-of-text token.
        for end in self.end_tokens()?.into_iter().filter(has_row).chain([end_of_text]) {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        let end = token("eos").filter(|end| ends.contains(end)).unwrap_or(ends[0]);
        ends.retain(|&other| other != end);
        Ok(GgufTokens {
            begin: token("bos").unwrap_or(end),
            end,
            further_ends: ends,
            padding: token("pad").unwrap_or(end),
        })
    }
}
