//! The outputs of a preparation: the tokenizer, and the lists of the token files of all pieces.

use std::collections::BTreeSet;
use std::path::Path;

use super::pieces::{FOLDER, FinishedPiece, info};
use super::{MANIFEST, PrepareReport, REPORT, TOKENIZER, TRAIN, VALIDATION, remove_stale};
use crate::{ShardsError, TokenSetManifest, Tokenizer};

/// True if a folder has the outputs of a preparation.
pub(crate) fn is_prepared(folder: &Path) -> bool {
    [MANIFEST, REPORT, TOKENIZER, TRAIN, FOLDER].iter().all(|name| folder.join(name).exists())
}

/// Removes the outputs of an earlier configuration. Its pieces are about to be replaced.
pub(super) fn retract(out: &Path) -> Result<(), ShardsError> {
    [MANIFEST, TRAIN, VALIDATION].iter().try_for_each(|name| remove_stale(&out.join(name)))
}

/// Writes the tokenizer and the token sets, and puts their hashes into `report`. The time does not grow with the text: no
/// document is read. Returns the names of the listed files in the folder of the pieces.
pub(super) fn list(
    pieces: &[FinishedPiece<'_>],
    tokenizer: &Tokenizer,
    out: &Path,
    report: &mut PrepareReport,
) -> Result<BTreeSet<String>, ShardsError> {
    let (mut train, mut validation) =
        (TokenSetManifest::new(&info(tokenizer)), TokenSetManifest::new(&info(tokenizer)));
    let mut names = BTreeSet::new();
    for FinishedPiece { piece, record } in pieces {
        for (set, name, split) in [
            (&mut train, piece.train_name(), &record.report.train),
            (&mut validation, piece.validation_name(), &record.report.validation),
        ] {
            let Some(name) = name else { continue };
            set.push(out, format!("{FOLDER}/{name}"), &split.content_hash)?;
            names.insert(name);
        }
    }
    // From here on the outputs change, and an old manifest must not vouch for them.
    retract(out)?;
    dipaco_files::publish(&out.join(TOKENIZER), tokenizer.to_json())?;
    report.train.content_hash = train.content_hash();
    train.publish(&out.join(TRAIN))?;
    if !validation.files.is_empty() {
        report.validation.content_hash = validation.content_hash();
        validation.publish(&out.join(VALIDATION))?;
    }
    Ok(names)
}

/// Removes all files of the folder of the pieces but the listed ones. Folders are of other programs and stay.
pub(super) fn remove_others(folder: &Path, listed: &BTreeSet<String>) -> Result<(), ShardsError> {
    for entry in std::fs::read_dir(folder).map_err(ShardsError::io("read", folder))? {
        let entry = entry.map_err(ShardsError::io("read", folder))?;
        let kind = entry.file_type().map_err(ShardsError::io("look at", entry.path()))?;
        if !kind.is_dir() && !listed.contains(entry.file_name().to_string_lossy().as_ref()) {
            remove_stale(&entry.path())?;
        }
    }
    Ok(())
}
