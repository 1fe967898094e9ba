//! Scoring the reserved documents with a path: the writing half of [`dipaco_routing::PathScores`].

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path as FilePath, PathBuf};

use dipaco_files::{FileError, PendingFile};
use dipaco_path::PathReader;
use dipaco_routing::{ScoreFiles, ScoreHeader, scores_are_there};
use dipaco_shards::TokenSet;
use dipaco_store::TrainingRecord;
use dipaco_topology::{ModuleId, PathId, Topology};
use rayon::prelude::*;

use crate::TrainError;
use crate::router::RouterError;

/// Batches that are sorted by length together and scored at the same time.
const GROUP: usize = 16;

/// The header of the scores that a path of a run gives with its current weights.
///
/// # Errors
/// When the record lacks one of the path's modules.
pub fn score_header(
    training: &TrainingRecord,
    topology: &Topology,
    path: PathId,
    tokens: &TokenSet,
    sequence_tokens: usize,
) -> Result<ScoreHeader, RouterError> {
    let module = |module: ModuleId| {
        let record = training.module(module);
        let record = record.ok_or_else(|| RouterError::ManifestLacks { what: format!("module {module}") })?;
        let fragments = record.fragments.iter().map(|f| (f.version, f.weights.hash.clone()));
        Ok::<_, RouterError>((module, fragments.collect()))
    };
    let modules = topology.modules_of(path).into_iter().map(module).collect::<Result<_, _>>()?;
    Ok(ScoreHeader::new(path, tokens, sequence_tokens, modules))
}

/// A part of a document; each of its tokens from `start` on predicts the next token.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Place of its first token among all tokens.
    start: u64,
    /// Number of predicted tokens, at least 1.
    predicted: usize,
}

/// Scores every token of `tokens` with a path, on the device of its reader, and writes the files of `header` into `folder`.
/// Returns false if scores with the same header are there already; they stay as they are.
///
/// `batch` sequences are scored at once; together with their length that bounds the memory. `progress` gets the number of
/// finished documents and may stop the work, which then leaves nothing behind.
///
/// # Errors
/// When the model can't read the tokens, a score is not finite, or a file can't be written; [`TrainError::Cancelled`].
pub fn write_scores(
    folder: &FilePath,
    header: &ScoreHeader,
    model: &PathReader,
    tokens: &TokenSet,
    batch: usize,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<bool, RouterError> {
    if scores_are_there(folder, header)? {
        return Ok(false);
    }
    std::fs::create_dir_all(folder).map_err(FileError::new("create the folder", folder))?;
    let files = ScoreFiles::new(folder, header.path);
    let mut out = ScoreWriter::create(&files.scores)?;
    let group = batch.max(1) * GROUP;
    let mut windows = Vec::with_capacity(group);
    for document in 0..tokens.documents() {
        let range = tokens.document_range(document);
        let mut start = range.start;
        while start + 1 < range.end {
            let predicted = (range.end - 1 - start).min(header.sequence_tokens as u64) as usize;
            windows.push(Window { start, predicted });
            start += predicted as u64;
            if windows.len() == group {
                let scores = score(model, tokens, header.path, &windows, batch)?;
                out.extend(&windows, &scores)?;
                windows.clear();
                if progress(document).is_break() {
                    return Err(TrainError::Cancelled.into());
                }
            }
        }
    }
    let scores = score(model, tokens, header.path, &windows, batch)?;
    out.extend(&windows, &scores)?;
    // Documents of one token at the end of the file have no window that would fill their place.
    out.fill(tokens.tokens())?;
    if progress(tokens.documents()).is_break() {
        return Err(TrainError::Cancelled.into());
    }
    // The header vouches for the scores, so it comes last.
    let hash = out.publish()?;
    let mut written = header.clone();
    written.hash = hash;
    written.device = model.device().to_owned();
    let header = serde_json::to_vec_pretty(&written).map_err(|source| RouterError::ScoreHeader { source })?;
    dipaco_files::publish(&files.header, &header)?;
    Ok(true)
}

/// Scores windows; returns the log-probabilities of each window's predicted tokens, in the order of the windows. The
/// windows and the batch size alone decide which windows share a batch, so the scores do not depend on threads.
fn score(
    model: &PathReader,
    tokens: &TokenSet,
    path: PathId,
    windows: &[Window],
    batch: usize,
) -> Result<Vec<Vec<f32>>, RouterError> {
    // Rows of similar length need little padding.
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(windows[index].predicted));
    let batches = order.par_chunks(batch.max(1)).map(|rows| {
        let width = rows.iter().map(|&row| windows[row].predicted).max().unwrap_or(0);
        let places = rows.iter().map(|&row| {
            let Window { start, predicted } = windows[row];
            let window = start..start + predicted as u64 + 1;
            vec![window]
        });
        let scores = model.token_log_probs(&tokens.batch(&places.collect::<Vec<_>>(), width)?)?;
        let scores = scores.chunks_exact(width).zip(rows);
        scores
            .map(|(scores, &row)| {
                let scores = &scores[..windows[row].predicted];
                match scores.iter().position(|score| !score.is_finite()) {
                    Some(at) => {
                        Err(RouterError::ScoreNotFinite { path, token: windows[row].start + at as u64 + 1 })
                    }
                    None => Ok(scores.to_vec()),
                }
            })
            .collect::<Result<Vec<_>, RouterError>>()
    });
    let batches: Vec<Vec<Vec<f32>>> = batches.collect::<Result<_, _>>()?;
    let mut scores = vec![Vec::new(); windows.len()];
    for (index, score) in order.into_iter().zip(batches.into_iter().flatten()) {
        scores[index] = score;
    }
    Ok(scores)
}

/// Writes the scores of a path and hashes them.
struct ScoreWriter {
    out: BufWriter<PendingFile>,
    path: PathBuf,
    hasher: blake3::Hasher,
    /// Scores written so far.
    written: u64,
}

impl ScoreWriter {
    fn create(path: &FilePath) -> Result<Self, RouterError> {
        let out = BufWriter::new(PendingFile::create(path)?);
        Ok(Self { out, path: path.to_owned(), hasher: blake3::Hasher::new(), written: 0 })
    }

    /// Appends the scores of windows. Tokens between the windows, which nothing predicts, get 0.
    fn extend(&mut self, windows: &[Window], scores: &[Vec<f32>]) -> Result<(), RouterError> {
        for (window, scores) in windows.iter().zip(scores) {
            self.fill(window.start + 1)?;
            for score in scores {
                self.push(*score)?;
            }
        }
        Ok(())
    }

    /// Appends zeros up to a number of scores.
    fn fill(&mut self, until: u64) -> Result<(), RouterError> {
        while self.written < until {
            self.push(0.0)?;
        }
        Ok(())
    }

    fn push(&mut self, score: f32) -> Result<(), RouterError> {
        let bytes = score.to_le_bytes();
        self.hasher.update(&bytes);
        self.out.write_all(&bytes).map_err(FileError::new("write", &self.path))?;
        self.written += 1;
        Ok(())
    }

    /// Publishes the file; returns the hash of the scores.
    fn publish(self) -> Result<String, RouterError> {
        let Self { out, path, hasher, .. } = self;
        let pending = out.into_inner().map_err(|error| FileError::new("write", path)(error.into_error()))?;
        pending.publish()?;
        Ok(hasher.finalize().to_hex().to_string())
    }
}

#[cfg(test)]
mod tests;
