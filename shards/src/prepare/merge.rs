//! Merging the pieces into the outputs.

use std::path::{Path, PathBuf};

use super::pieces::{Piece, info};
use super::{MANIFEST, PrepareReport, TOKENIZER, TRAIN, VALIDATION, remove_stale};
use crate::progress::Watch;
use crate::token_file::concatenate;
use crate::{ShardsError, Tokenizer};

/// Writes the tokenizer and the merged token files, and puts their hashes into `report`.
pub(super) fn merge(
    pieces: &[Piece],
    tokenizer: &Tokenizer,
    folder: &Path,
    out: &Path,
    report: &mut PrepareReport,
    watch: Watch<'_>,
) -> Result<(), ShardsError> {
    let info = info(tokenizer, report.source());
    let train: Vec<PathBuf> = pieces.iter().filter_map(|piece| piece.train_file(folder)).collect();
    let validation: Vec<PathBuf> = pieces.iter().filter_map(|piece| piece.validation_file(folder)).collect();
    // Joining reads each piece twice.
    let bytes = |files: &[PathBuf]| -> u64 {
        files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| 2 * file.len()).sum()
    };
    watch.progress.begin("merge", bytes(&train) + bytes(&validation));
    // From here on the outputs change, and an old manifest must not vouch for them.
    remove_stale(&out.join(MANIFEST))?;
    dipaco_files::publish(&out.join(TOKENIZER), tokenizer.to_json())?;
    report.train.content_hash = concatenate(&train, &out.join(TRAIN), &info, watch)?.content_hash;
    if validation.is_empty() {
        remove_stale(&out.join(VALIDATION))?;
    } else {
        report.validation.content_hash =
            concatenate(&validation, &out.join(VALIDATION), &info, watch)?.content_hash;
    }
    watch.progress.end();
    Ok(())
}
