//! Input files of a preparation.

use std::path::PathBuf;

use super::list_some;
use crate::readers::InputList;
use crate::{InputFile, ShardsError};

/// The files to read.
pub(super) struct Inputs {
    pub(super) train: InputList,
    /// Files of the separate validation inputs, if there are any.
    pub(super) validation: Option<InputList>,
}

impl Inputs {
    pub(super) fn list(train: &[PathBuf], validation: &[PathBuf]) -> Result<Self, ShardsError> {
        let own = if validation.is_empty() { None } else { Some(list_some(validation)?) };
        Ok(Self { train: list_some(train)?, validation: own })
    }

    /// All files, each with true if it is a validation input.
    pub(super) fn files(&self) -> impl Iterator<Item = (&InputFile, bool)> {
        let validation = self.validation.iter().flat_map(|list| &list.files);
        self.train.files.iter().map(|file| (file, false)).chain(validation.map(|file| (file, true)))
    }
}
