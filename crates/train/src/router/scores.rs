//! What a path makes of the reserved documents: one log-probability for every token, in a file for each path.
//!
//! Discriminative routers are fitted on these numbers (arXiv:2403.10616 §7.2.1). `path-NNN.f32` holds them as
//! little-endian f32, one for each token of the token file in its order, 0 for the first token of a document;
//! `path-NNN.json`, written last, says what they were made of.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path as FilePath, PathBuf};

use dipaco_model::Path;
use dipaco_shards::{IGNORE, TokenFile};
use dipaco_store::TrainingRecord;
use dipaco_topology::{ModuleId, PathId, Topology};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::router::RouterError;

const FORMAT: &str = "dipaco-path-scores/1";
/// Batches that are sorted by length together and scored at the same time.
const GROUP: usize = 16;
/// The most bytes of a header that are read.
const LARGEST_HEADER: u64 = 1 << 20;

/// What a file of scores was made of; two files with equal headers hold equal scores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreHeader {
    format: String,
    /// The path that scored.
    pub path: PathId,
    /// Content hash of the token file.
    pub tokens_hash: String,
    /// Tokens in it.
    pub tokens: u64,
    /// Tokens of a sequence: longer documents are read in windows of this length, each without what is before it.
    pub sequence_tokens: usize,
    /// The path's modules, each with the versions and hashes of its fragments.
    pub modules: Vec<(ModuleId, Vec<(u32, String)>)>,
    /// BLAKE3 hash of the scores; empty before they are written.
    pub hash: String,
}

impl ScoreHeader {
    /// The header of the scores that a path of a run gives with the weights that it has now.
    ///
    /// # Errors
    /// When the record lacks one of the path's modules.
    pub fn new(
        training: &TrainingRecord,
        topology: &Topology,
        path: PathId,
        tokens: &TokenFile,
        sequence_tokens: usize,
    ) -> Result<Self, RouterError> {
        let module = |module: ModuleId| {
            let record = training.module(module);
            let record =
                record.ok_or_else(|| RouterError::ManifestLacks { what: format!("module {module}") })?;
            let fragments = record.fragments.iter().map(|f| (f.version, f.weights.hash.clone()));
            Ok::<_, RouterError>((module, fragments.collect()))
        };
        Ok(Self {
            format: FORMAT.to_owned(),
            path,
            tokens_hash: tokens.content_hash().to_owned(),
            tokens: tokens.tokens(),
            sequence_tokens,
            modules: topology.modules_of(path).into_iter().map(module).collect::<Result<_, _>>()?,
            hash: String::new(),
        })
    }

    /// Whether scores with the other header are those that this one asks for.
    #[must_use]
    pub fn is_answered_by(&self, other: &Self) -> bool {
        *other == Self { hash: other.hash.clone(), ..self.clone() }
    }
}

/// A part of a document: its tokens from `start` on predict each the next one.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Place of its first token among all tokens.
    start: u64,
    /// Tokens that are predicted, at least 1.
    predicted: usize,
}

/// Whether a folder holds the scores that `header` asks for.
///
/// # Errors
/// When the folder can't be read.
pub fn scores_are_there(folder: &FilePath, header: &ScoreHeader) -> Result<bool, RouterError> {
    let found = Place::new(folder, header.path).header()?;
    Ok(found.is_some_and(|found| header.is_answered_by(&found)))
}

/// Scores every token of `tokens` with a path and writes what `header` names into `folder`. Returns whether there was
/// anything to do: scores that are there with the same header are left as they are.
///
/// `batch` sequences are scored at once; together with their length that bounds the memory. `progress` is told how many
/// documents are done and may stop the work, of which nothing is kept then.
///
/// # Errors
/// When the model can't read the tokens, a score is not finite, or a file can't be written; [`TrainError::Cancelled`].
pub fn write_scores(
    folder: &FilePath,
    header: &ScoreHeader,
    model: &Path,
    tokens: &TokenFile,
    batch: usize,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<bool, RouterError> {
    let place = Place::new(folder, header.path);
    if scores_are_there(folder, header)? {
        return Ok(false);
    }
    std::fs::create_dir_all(folder).map_err(|source| place.failed("create the folder of", source))?;
    let temporary =
        tempfile::NamedTempFile::new_in(folder).map_err(|source| place.failed("create", source))?;
    let mut out = Hashing { out: BufWriter::new(temporary), hasher: blake3::Hasher::new() };
    let group = batch.max(1) * GROUP;
    let mut windows = Vec::with_capacity(group);
    let mut gathered = 0;
    for document in 0..tokens.documents() {
        let range = tokens.document_range(document);
        let mut start = range.start;
        while start + 1 < range.end {
            let predicted = (range.end - 1 - start).min(header.sequence_tokens as u64) as usize;
            windows.push(Window { start, predicted });
            start += predicted as u64;
            if windows.len() == group {
                let scores = score(model, tokens, header.path, &windows, batch)?;
                out.extend(&place, &mut gathered, &windows, &scores)?;
                windows.clear();
                if progress(document).is_break() {
                    return Err(TrainError::Cancelled.into());
                }
            }
        }
    }
    let scores = score(model, tokens, header.path, &windows, batch)?;
    out.extend(&place, &mut gathered, &windows, &scores)?;
    // First tokens of documents at the end that have nothing to predict.
    out.zeros(&place, &mut gathered, tokens.tokens())?;
    if progress(tokens.documents()).is_break() {
        return Err(TrainError::Cancelled.into());
    }
    let hash = out.hasher.finalize().to_hex().to_string();
    let temporary = out.out.into_inner().map_err(|error| place.failed("write", error.into_error()))?;
    place.publish(temporary, &place.scores)?;
    let header = serde_json::to_vec_pretty(&ScoreHeader { hash, ..header.clone() })
        .map_err(|source| RouterError::ScoreHeader { source })?;
    let mut temporary =
        tempfile::NamedTempFile::new_in(folder).map_err(|source| place.failed("create", source))?;
    temporary.write_all(&header).map_err(|source| place.failed("write", source))?;
    place.publish(temporary, &place.header)?;
    Ok(true)
}

/// Scores windows; gives the log-probabilities of each one's predicted tokens, in the order of the windows. Which ones
/// share a batch depends on nothing but the windows and the batch size.
fn score(
    model: &Path,
    tokens: &TokenFile,
    path: PathId,
    windows: &[Window],
    batch: usize,
) -> Result<Vec<Vec<f32>>, RouterError> {
    // Rows of similar length need little padding.
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(windows[index].predicted));
    let batches = order.par_chunks(batch.max(1)).map(|rows| {
        let width = rows.iter().map(|&row| windows[row].predicted).max().unwrap_or(0);
        let mut inputs = Vec::with_capacity(width * rows.len());
        let mut targets = Vec::with_capacity(width * rows.len());
        for &row in rows {
            let Window { start, predicted } = windows[row];
            let text = tokens.slice(start..start + predicted as u64 + 1);
            inputs.extend(text.iter().take(predicted));
            inputs.extend(std::iter::repeat_n(tokens.end_of_text(), width - predicted));
            targets.extend(text.iter().skip(1));
            targets.extend(std::iter::repeat_n(IGNORE, width - predicted));
        }
        let scores = model.token_log_probs(&inputs, &targets, rows.len())?;
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

/// A path's files.
struct Place {
    scores: PathBuf,
    header: PathBuf,
}

impl Place {
    fn new(folder: &FilePath, path: PathId) -> Self {
        let name = |end| folder.join(format!("path-{:03}.{end}", path.0));
        Self { scores: name("f32"), header: name("json") }
    }

    fn failed(&self, action: &'static str, source: std::io::Error) -> RouterError {
        TrainError::Io { action, file: self.scores.clone(), source }.into()
    }

    /// The header, when the scores are there with it.
    fn header(&self) -> Result<Option<ScoreHeader>, RouterError> {
        let mut text = Vec::new();
        match File::open(&self.header) {
            Ok(file) => file
                .take(LARGEST_HEADER)
                .read_to_end(&mut text)
                .map_err(|source| self.failed("read the header of", source))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("read the header of", source)),
        };
        // One that can't be read is of another version or damaged: the scores are made anew.
        let header = serde_json::from_slice::<ScoreHeader>(&text).ok();
        let header = header.filter(|header| header.format == FORMAT);
        let length = std::fs::metadata(&self.scores).map(|file| file.len()).ok();
        Ok(header.filter(|header| header.tokens.checked_mul(4) == length))
    }

    /// Names a file whose content is complete.
    fn publish(&self, file: tempfile::NamedTempFile, name: &FilePath) -> Result<(), RouterError> {
        file.as_file().sync_all().map_err(|source| self.failed("write", source))?;
        file.persist(name).map_err(|error| self.failed("name", error.error))?;
        Ok(())
    }
}

/// Writes scores and hashes them.
struct Hashing {
    out: BufWriter<tempfile::NamedTempFile>,
    hasher: blake3::Hasher,
}

impl Hashing {
    /// Appends the scores of windows; tokens between them that nothing predicts get 0.
    fn extend(
        &mut self,
        place: &Place,
        written: &mut u64,
        windows: &[Window],
        scores: &[Vec<f32>],
    ) -> Result<(), RouterError> {
        for (window, scores) in windows.iter().zip(scores) {
            self.zeros(place, written, window.start + 1)?;
            for score in scores {
                self.push(place, *score)?;
            }
            *written += scores.len() as u64;
        }
        Ok(())
    }

    fn zeros(&mut self, place: &Place, written: &mut u64, until: u64) -> Result<(), RouterError> {
        while *written < until {
            self.push(place, 0.0)?;
            *written += 1;
        }
        Ok(())
    }

    fn push(&mut self, place: &Place, score: f32) -> Result<(), RouterError> {
        let bytes = score.to_le_bytes();
        self.hasher.update(&bytes);
        self.out.write_all(&bytes).map_err(|source| place.failed("write", source))
    }
}

/// The scores of a path, for reading.
#[derive(Debug)]
pub struct PathScores {
    header: ScoreHeader,
    file: PathBuf,
    reader: BufReader<File>,
    /// The token that is read next.
    position: u64,
}

impl PathScores {
    /// Opens the scores that a path gave to the tokens of a file, whatever the version of its modules.
    ///
    /// # Errors
    /// When there are none, or they are of another token file.
    pub fn open(folder: &FilePath, path: PathId, tokens: &TokenFile) -> Result<Self, RouterError> {
        let place = Place::new(folder, path);
        let header = place.header()?;
        let header = header.filter(|header| {
            header.path == path
                && header.tokens_hash == tokens.content_hash()
                && header.tokens == tokens.tokens()
        });
        let header = header.ok_or_else(|| RouterError::NoScores { path, folder: folder.to_owned() })?;
        let reader = File::open(&place.scores).map_err(|source| place.failed("open", source))?;
        Ok(Self { header, file: place.scores, reader: BufReader::new(reader), position: 0 })
    }

    /// What the scores were made of.
    #[must_use]
    pub fn header(&self) -> &ScoreHeader {
        &self.header
    }

    /// The scores of a document of the token file, one for each of its tokens, in nats; the first is 0. Reading
    /// documents in order is fastest.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn document(&mut self, tokens: &TokenFile, document: u64) -> Result<Vec<f32>, RouterError> {
        let range = tokens.document_range(document);
        let failed = |source| TrainError::Io { action: "read", file: self.file.clone(), source };
        if self.position != range.start {
            self.reader.seek(SeekFrom::Start(4 * range.start)).map_err(failed)?;
        }
        // The length is that of a document of the mapped token file.
        let mut bytes = vec![0; 4 * (range.end - range.start) as usize];
        self.reader.read_exact(&mut bytes).map_err(failed)?;
        self.position = range.end;
        Ok(bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)).collect())
    }

    /// The sum of each document's scores, in nats: how well the path explains it. Reads the whole file and checks its
    /// hash.
    ///
    /// # Errors
    /// When the file can't be read or is damaged.
    pub fn sums(mut self, tokens: &TokenFile) -> Result<Vec<f64>, RouterError> {
        let mut hasher = blake3::Hasher::new();
        let mut sums = Vec::with_capacity(usize::try_from(tokens.documents()).unwrap_or(0));
        for document in 0..tokens.documents() {
            let scores = self.document(tokens, document)?;
            scores.iter().for_each(|score| {
                hasher.update(&score.to_le_bytes());
            });
            sums.push(scores.into_iter().map(f64::from).sum());
        }
        if hasher.finalize().to_hex().as_str() != self.header.hash {
            return Err(RouterError::ScoresDamaged { file: self.file });
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests;
