//! The special tokens of an imported model, as a GGUF file and a chat template name them.

use dipaco_model::{GgufTokens, GgufVocabulary};
use dipaco_server::TemplateTokens;
use serde::Deserialize;
use serde_json::Value;

use crate::error::PipelineError;
use crate::imported_files::{CONFIG, ImportedFolder, SPECIAL_TOKENS, TOKENIZER_CONFIG};

/// The text of a token in the settings of a tokenizer: a text, or an object with its content.
fn token_of(config: &Value, key: &str) -> Option<String> {
    let token = config.get(key)?;
    Some(token.as_str().or_else(|| token.get("content")?.as_str())?.to_owned())
}

/// The text of a special token: as the settings of a tokenizer name it, or else the file of its own that older programs wrote.
pub(crate) fn named_token(settings: &Value, older: &Value, key: &str) -> Option<String> {
    token_of(settings, key).or_else(|| token_of(older, key))
}

/// The text of an added token in a `tokenizer.json`.
pub(crate) fn added_token(tokenizer: &[u8], id: u32) -> Option<String> {
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<Token>,
    }
    #[derive(Deserialize)]
    struct Token {
        id: u32,
        content: String,
    }
    let file: File = serde_json::from_slice(tokenizer).ok()?;
    file.added_tokens.into_iter().find(|token| token.id == id).map(|token| token.content)
}

impl ImportedFolder {
    /// The special tokens of a chat template in a run whose documents end with `end_of_text`: those of the tokenizer's
    /// settings, as in transformers. A model without a token that begins texts has none here. In a run without an imported
    /// model the same token ends a text and begins the next one.
    ///
    /// # Errors
    /// As [`ImportedFolder::end_tokens`].
    pub fn template_tokens(&self, end_of_text: &str) -> Result<TemplateTokens, PipelineError> {
        if self.json(CONFIG)?.is_none() {
            return Ok(TemplateTokens::of_end(end_of_text));
        }
        let names = self.json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let older = self.json(SPECIAL_TOKENS)?.unwrap_or_default();
        let token = |key: &str| named_token(&names, &older, key);
        Ok(TemplateTokens {
            bos: token("bos_token").unwrap_or_default(),
            eos: token("eos_token").unwrap_or_else(|| end_of_text.to_owned()),
        })
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_template_has_the_tokens_of_the_tokenizers_settings() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("imported");
        let folder = ImportedFolder::new(root.clone());
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        let tokens = || {
            let TemplateTokens { bos, eos } = folder.template_tokens("<end of text>").unwrap();
            [bos, eos]
        };
        assert_eq!(tokens(), ["<end of text>", "<end of text>"], "a run without an imported model");
        std::fs::create_dir(&root).unwrap();
        write("config.json", "{}");
        assert_eq!(tokens(), ["", "<end of text>"]);
        write("special_tokens_map.json", r#"{"bos_token": "<old>", "eos_token": {"content": "<old end>"}}"#);
        assert_eq!(tokens(), ["<old>", "<old end>"]);
        write("tokenizer_config.json", r#"{"bos_token": {"content": "<begin>"}, "eos_token": "<eot>"}"#);
        assert_eq!(tokens(), ["<begin>", "<eot>"]);
    }
}
