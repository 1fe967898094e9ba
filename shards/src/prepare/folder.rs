//! The folder of a preparation's outputs.

use std::path::Path;

use super::TOKENIZER;
use crate::{ShardsError, Tokenizer};

/// The folder that a preparation writes, and the tokenizer that must stay in it.
#[derive(Clone, Copy, Debug)]
pub struct PrepareFolder<'a> {
    /// The folder. It need not exist.
    pub path: &'a Path,
    /// Hash of the tokenizer that a model was trained with. With another one the model is of no use, so a preparation that would
    /// replace it is refused. `None` lets the text and the settings decide.
    pub keep: Option<&'a str>,
}

impl<'a> PrepareFolder<'a> {
    /// A folder whose tokenizer may be replaced.
    #[must_use]
    pub fn new(path: &'a Path) -> Self {
        Self { path, keep: None }
    }

    /// Checks that a tokenizer may be that of this folder.
    pub(super) fn check(&self, tokenizer: &Tokenizer) -> Result<(), ShardsError> {
        match self.keep {
            Some(kept) if kept != tokenizer.hash() => {
                let path = self.path.join(TOKENIZER);
                Err(ShardsError::TokenizerInUse {
                    held: dipaco_files::file_hash(&path).is_ok_and(|hash| hash == kept),
                    path,
                    kept: kept.to_owned(),
                    found: tokenizer.hash().to_owned(),
                })
            }
            _ => Ok(()),
        }
    }
}
