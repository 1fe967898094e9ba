//! Input files of a preparation.

use std::path::PathBuf;

use super::names;
use crate::readers::{InputList, Listing};
use crate::{InputFile, ShardsError};

/// The files to read.
pub(super) struct Inputs {
    pub(super) train: InputList,
    /// Files of the separate validation inputs, if there are any.
    pub(super) validation: Option<InputList>,
    /// Number of the files that both inputs name. They are validation text only.
    in_both: usize,
}

impl Inputs {
    /// Lists the inputs without the directories of the outputs, whose real paths are `outputs`.
    pub(super) fn list(
        train: &[PathBuf],
        validation: &[PathBuf],
        outputs: &[PathBuf],
    ) -> Result<Self, ShardsError> {
        let own = if validation.is_empty() { None } else { Some(list_some(validation, outputs)?) };
        let mut main = list_some(train, outputs)?;
        let in_both = own.as_ref().map_or(0, |own| main.take_out(own));
        if main.is_empty() {
            return Err(ShardsError::NoTrainInput { inputs: names(train) });
        }
        Ok(Self { train: main.into_list(), validation: own.map(Listing::into_list), in_both })
    }

    /// Tells the user which files of the inputs are not read, or not trained on.
    pub(super) fn log_left_out(&self) {
        let lists = std::iter::once(&self.train).chain(&self.validation);
        for run in lists.flat_map(|list| &list.runs) {
            tracing::info!("{} is left out: it holds the files of a run", run.display());
        }
        if self.in_both > 0 {
            tracing::info!(
                "{} files are left out of the training text: --validation names them",
                self.in_both
            );
        }
    }

    /// All files, each with true if it is a validation input.
    pub(super) fn files(&self) -> impl Iterator<Item = (&InputFile, bool)> {
        let validation = self.validation.iter().flat_map(|list| &list.files);
        self.train.files.iter().map(|file| (file, false)).chain(validation.map(|file| (file, true)))
    }
}

fn list_some(inputs: &[PathBuf], outputs: &[PathBuf]) -> Result<Listing, ShardsError> {
    let listing = Listing::of(inputs, outputs)?;
    if !listing.is_empty() {
        return Ok(listing);
    }
    Err(match listing.first_run() {
        Some(run) => ShardsError::OnlyRunFiles { inputs: names(inputs), run: run.clone() },
        None => ShardsError::NoInput { inputs: names(inputs), one: inputs.len() == 1 },
    })
}
