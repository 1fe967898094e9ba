//! How much of the user's text a quickstart holds out for validation.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::{Origin, Resolved};
use dipaco_pipeline::prepare::FileProgress;
use dipaco_shards::{PrepareProgress, ReadRecord, ReadSettings, list_inputs, read_documents};
use dipaco_telemetry::{Progress, human};

use crate::error::CliError;

/// Lowers the built-in `prepare.validation_fraction` so far that about `most` bytes of `text` are held out: every model of
/// the comparison scores all of them. A fraction of the user's stays as it is. Without `text` the program's own is used, which
/// is small.
pub(super) fn bound(
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
    let bytes = text_bytes(text, &prepare.reading(), progress, cancel)?;
    let fraction = most as f64 / bytes as f64;
    if fraction < prepare.validation_fraction {
        prepare.validation_fraction = fraction;
        progress.line(&format!(
            "{} of text: {:.3} % of its documents, about {}, are held out for validation",
            human::bytes(bytes),
            100.0 * fraction,
            human::bytes(most)
        ));
    }
    Ok(())
}

/// Bytes of text in files and folders. The files are read: their sizes tell too little, because some are compressed and some
/// hold no text.
fn text_bytes(
    text: &[PathBuf],
    settings: &ReadSettings,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<u64, CliError> {
    let list = list_inputs(text)?;
    let watcher = FileProgress::new(progress);
    let mut bytes = 0u64;
    watcher.begin("measure the text", list.bytes());
    // A pipe has no length, and nobody can read it twice.
    for file in list.files.iter().filter(|file| file.bytes > 0) {
        // The preparation reads the file too, and reports its damage.
        read_documents(file, settings, &watcher, &mut |record| {
            if let ReadRecord::Document { text, .. } = record {
                bytes += text.len() as u64;
            }
            if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if cancel.load(Ordering::Relaxed) {
            return Err(CliError::Interrupted);
        }
    }
    watcher.end();
    Ok(bytes)
}
