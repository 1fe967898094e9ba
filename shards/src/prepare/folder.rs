//! The folder of a preparation's outputs.

use std::fmt::{Debug, Formatter};
use std::path::Path;

use super::TOKENIZER;
use crate::{ShardsError, Tokenizer};

/// The folder that a preparation writes, and the tokenizer and the end-of-text token that must stay in it.
#[derive(Clone, Copy)]
pub struct PrepareFolder<'a> {
    /// The folder. It need not exist.
    pub path: &'a Path,
    /// Hash of the tokenizer that a model was trained with. With another one the model is of no use, so a preparation that would
    /// replace it is refused. `None` lets the text and the settings decide.
    pub keep: Option<&'a str>,
    /// The end-of-text token that this model was trained with. It counts only together with [`Self::keep`], because the
    /// number belongs to one tokenizer. `None` lets the settings decide.
    pub keep_end_of_text: Option<u32>,
    /// Asked when the text gives another tokenizer or end-of-text token than the one to keep: true if this one may be replaced all
    /// the same. No other preparation asks. `None` refuses the text.
    pub may_replace: Option<&'a dyn Fn() -> bool>,
}

impl Debug for PrepareFolder<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrepareFolder")
            .field("path", &self.path)
            .field("keep", &self.keep)
            .field("keep_end_of_text", &self.keep_end_of_text)
            .finish_non_exhaustive()
    }
}

impl<'a> PrepareFolder<'a> {
    /// A folder whose tokenizer and end-of-text token may be replaced.
    #[must_use]
    pub fn new(path: &'a Path) -> Self {
        Self { path, keep: None, keep_end_of_text: None, may_replace: None }
    }

    /// Checks that a tokenizer and its end-of-text token may be those of this folder.
    pub(super) fn check(&self, tokenizer: &Tokenizer) -> Result<(), ShardsError> {
        let refused = self.check_kept(tokenizer);
        if refused.is_err() && self.may_replace.is_some_and(|may_replace| may_replace()) {
            return Ok(());
        }
        refused
    }

    /// Checks that a tokenizer and its end-of-text token are the ones to keep.
    fn check_kept(&self, tokenizer: &Tokenizer) -> Result<(), ShardsError> {
        let Some(kept) = self.keep else { return Ok(()) };
        if kept != tokenizer.hash() {
            let path = self.path.join(TOKENIZER);
            return Err(ShardsError::TokenizerInUse {
                held: dipaco_files::file_hash(&path).is_ok_and(|hash| hash == kept),
                path,
                kept: kept.to_owned(),
                found: tokenizer.hash().to_owned(),
            });
        }
        match self.keep_end_of_text {
            Some(kept) if kept != tokenizer.end_of_text() => Err(ShardsError::EndOfTextInUse {
                kept: tokenizer.token_text(kept),
                found: tokenizer.end_of_text_text(),
            }),
            _ => Ok(()),
        }
    }
}
