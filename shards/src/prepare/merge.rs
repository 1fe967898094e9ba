//! Making the outputs of the pieces.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::pieces::{Piece, info};
use super::{MANIFEST, PrepareReport, TOKENIZER, TRAIN, VALIDATION, remove_stale, write_atomically};
use crate::{Progress, ShardsError, Tokenizer, concatenate};

/// Writes the tokenizer and the token files of all pieces, and their hashes into `report`.
pub(super) fn merge(
    pieces: &[Piece],
    tokenizer: &Tokenizer,
    folder: &Path,
    out: &Path,
    report: &mut PrepareReport,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<(), ShardsError> {
    let info = info(tokenizer, report.source());
    let train: Vec<PathBuf> = pieces.iter().filter_map(|piece| piece.train_file(folder)).collect();
    let validation: Vec<PathBuf> = pieces.iter().filter_map(|piece| piece.validation_file(folder)).collect();
    // Each piece is read twice.
    let bytes = |files: &[PathBuf]| -> u64 {
        files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| 2 * file.len()).sum()
    };
    progress.begin("merge", bytes(&train) + bytes(&validation));
    // From here on the outputs are in the making, and an old manifest must not vouch for them.
    remove_stale(&out.join(MANIFEST))?;
    write_atomically(&out.join(TOKENIZER), tokenizer.to_json())?;
    report.train.content_hash = concatenate(&train, &out.join(TRAIN), &info, progress, cancel)?.content_hash;
    if validation.is_empty() {
        remove_stale(&out.join(VALIDATION))?;
    } else {
        report.validation.content_hash =
            concatenate(&validation, &out.join(VALIDATION), &info, progress, cancel)?.content_hash;
    }
    progress.end();
    Ok(())
}
