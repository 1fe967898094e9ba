//! How much of the user's text a quickstart holds out for validation.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::{Origin, Resolved};
use dipaco_pipeline::prepare::FileProgress;
use dipaco_shards::{PrepareProgress, ReadRecord, ReadSettings, Refusals, list_inputs, read_documents};
use dipaco_telemetry::{Progress, human};

use crate::error::CliError;

/// Documents that are held out of a text at least. A hash of each document decides, so this is the mean over texts. Of 32 or more
/// documents, fewer than one text in 2,900 then gives none.
const FEWEST_DOCUMENTS: f64 = 8.0;
/// Largest share that is held out for the sake of [`FEWEST_DOCUMENTS`]. The rest is enough to train on.
const LARGEST_SHARE: f64 = 0.25;
/// Damaged files that an error names at most.
const MOST_DAMAGED: usize = 3;

/// Adapts the built-in `prepare.validation_fraction` to the user's `text`. About `most` bytes of a large one are held out: every
/// model of the comparison scores all of them. About [`FEWEST_DOCUMENTS`] are held out of one with few or long documents. A
/// fraction of the user's stays as it is. Without `text` the program's own is used, which the built-in fraction suits.
pub(super) fn adapt(
    resolved: &mut Resolved,
    most: u64,
    text: &[PathBuf],
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<(), CliError> {
    let is_built_in =
        matches!(resolved.origins.get("prepare.validation_fraction"), Some(Origin::File { .. }));
    if !is_built_in || text.is_empty() {
        return Ok(());
    }
    let prepare = &mut resolved.config.prepare;
    let size = TextSize::measure(text, &prepare.reading(), progress, cancel)?;
    if size.documents == 1 {
        return Err(CliError::Usage {
            message: std::iter::once("the text is one document, and validation needs another one".to_owned())
                .chain(size.not_read)
                .collect::<Vec<_>>()
                .join("; "),
            remedy: "give more text, or name other text with --validation".to_owned(),
        });
    }
    let fraction = size.held_out(prepare.validation_fraction, most);
    if fraction != prepare.validation_fraction {
        prepare.validation_fraction = fraction;
        progress.line(&format!(
            "{} of text: about {} of {} documents, {}, are held out for validation",
            human::bytes(size.bytes),
            human::integer((fraction * size.documents as f64).round() as u64),
            human::integer(size.documents),
            human::bytes((fraction * size.bytes as f64).round() as u64)
        ));
    }
    Ok(())
}

/// The size of a text in files and folders.
#[derive(Clone, Debug, Default)]
struct TextSize {
    documents: u64,
    bytes: u64,
    /// Lines and parts of files that are no documents, and why.
    not_read: Vec<String>,
}

impl TextSize {
    /// Measures a text. The files are read: their sizes tell too little, because some are compressed and some hold no text.
    fn measure(
        text: &[PathBuf],
        settings: &ReadSettings,
        progress: &Progress,
        cancel: &AtomicBool,
    ) -> Result<Self, CliError> {
        let list = list_inputs(text)?;
        let mut size = Self::default();
        let mut refusals = Refusals::default();
        let watcher = FileProgress::new(progress);
        watcher.begin("measure the text", list.bytes());
        for file in list.files.iter().filter(|file| file.bytes > 0) {
            let end = read_documents(file, settings, &watcher, &mut |record| {
                match record {
                    ReadRecord::Document { text, .. } => {
                        size.documents += 1;
                        size.bytes += text.len() as u64;
                    }
                    ReadRecord::Refused { reason, line } => refusals.add(reason, file, line),
                }
                if cancel.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if cancel.load(Ordering::Relaxed) {
                return Err(CliError::Interrupted);
            }
            if size.not_read.len() < MOST_DAMAGED {
                size.not_read.extend(end.damage.map(|damage| format!("{}: {damage}", file.path.display())));
            }
        }
        size.not_read.extend(refusals.shown());
        watcher.end();
        Ok(size)
    }

    /// The fraction of the documents to hold out: `share`, less if that is more than `most` bytes, and more if that is fewer than
    /// [`FEWEST_DOCUMENTS`].
    fn held_out(&self, share: f64, most: u64) -> f64 {
        let fraction = share.min(most as f64 / self.bytes as f64);
        if self.documents == 0 {
            return fraction;
        }
        fraction.max((FEWEST_DOCUMENTS / self.documents as f64).min(LARGEST_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_few_documents_gives_more_than_the_share() {
        let size = TextSize { documents: 10, bytes: 1000, not_read: Vec::new() };
        assert_eq!(size.held_out(0.05, 120_000), 0.25);
        assert_eq!(TextSize::default().held_out(0.05, 120_000), 0.05, "a text without documents");
    }
}
