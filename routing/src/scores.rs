//! Scores of the reserved documents: a log-probability for every token, in a file for each path.
//!
//! Discriminative routers are fitted on these numbers (arXiv:2403.10616 §7.2.1). `path-NNN.f32` holds them as
//! little-endian f32, one for each token of the token file in its order, 0 for the first token of a document.
//! `path-NNN.json`, written last, is the [`ScoreHeader`]. Training writes both files; this module reads them.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use dipaco_shards::TokenSet;
use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

use crate::RoutingError;

/// Format of the scores of a path, with its version.
pub const PATH_SCORES_FORMAT: &str = "dipaco-path-scores/1";
/// Largest header that is read, in bytes.
const LARGEST_HEADER: u64 = 1 << 20;
/// Bytes of a score.
const SCORE_BYTES: u64 = 4;

/// Origin of the scores of a path. Equal headers mean equal scores, up to the rounding of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreHeader {
    format: String,
    /// The scoring path.
    pub path: PathId,
    /// Content hash of the token file.
    pub tokens_hash: String,
    /// Number of tokens in the token file.
    pub tokens: u64,
    /// Tokens of a sequence. Longer documents are read in windows of this length, each without the tokens before it.
    pub sequence_tokens: usize,
    /// The path's modules, each with the versions and hashes of its fragments.
    pub modules: Vec<(ModuleId, Vec<(u32, String)>)>,
    /// BLAKE3 hash of the scores in hexadecimal; empty until they are written.
    pub hash: String,
    /// Name of the device that computed the scores; empty until they are written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
}

impl ScoreHeader {
    /// The header of scores that are not written yet. `modules` are the path's modules with the versions and hashes of
    /// their fragments.
    #[must_use]
    pub fn new(
        path: PathId,
        tokens: &TokenSet,
        sequence_tokens: usize,
        modules: Vec<(ModuleId, Vec<(u32, String)>)>,
    ) -> Self {
        Self {
            format: PATH_SCORES_FORMAT.to_owned(),
            path,
            tokens_hash: tokens.content_hash().to_owned(),
            tokens: tokens.tokens(),
            sequence_tokens,
            modules,
            hash: String::new(),
            device: String::new(),
        }
    }

    /// True if `other` has the same origin, so its scores are the scores of this header, whichever device computed them.
    #[must_use]
    pub fn is_answered_by(&self, other: &Self) -> bool {
        *other == Self { hash: other.hash.clone(), device: other.device.clone(), ..self.clone() }
    }
}

/// The two files of a path's scores.
#[derive(Clone, Debug)]
pub struct ScoreFiles {
    /// The scores, `path-NNN.f32`.
    pub scores: PathBuf,
    /// The header, `path-NNN.json`.
    pub header: PathBuf,
}

impl ScoreFiles {
    /// The files of a path in a folder of scores.
    #[must_use]
    pub fn new(folder: &Path, path: PathId) -> Self {
        let name = |end| folder.join(format!("path-{:03}.{end}", path.0));
        Self { scores: name("f32"), header: name("json") }
    }

    /// The header, if the scores are there and have the length that it demands.
    fn read_header(&self) -> Result<Option<ScoreHeader>, RoutingError> {
        let failed = |source| self.failed("read the header of the scores", source);
        let mut text = Vec::new();
        match File::open(&self.header) {
            Ok(file) => file.take(LARGEST_HEADER).read_to_end(&mut text).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // An unreadable header has another version or is damaged. It counts as absent, so the scores are made anew.
        let header = serde_json::from_slice::<ScoreHeader>(&text).ok();
        let header = header.filter(|header| header.format == PATH_SCORES_FORMAT);
        let length = fs::metadata(&self.scores).map(|file| file.len()).ok();
        Ok(header.filter(|header| header.tokens.checked_mul(SCORE_BYTES) == length))
    }

    fn failed(&self, action: &'static str, source: std::io::Error) -> RoutingError {
        RoutingError::Io { action, path: self.scores.clone(), source }
    }
}

/// True if a folder holds the scores of `header`.
///
/// # Errors
///
/// The folder can't be read.
pub fn scores_are_there(folder: &Path, header: &ScoreHeader) -> Result<bool, RoutingError> {
    let found = ScoreFiles::new(folder, header.path).read_header()?;
    Ok(found.is_some_and(|found| header.is_answered_by(&found)))
}

/// Removes the unfinished files of scores in a folder that have not changed since `before`: those of processes that were killed
/// while they wrote. Returns their number. The folder need not exist.
///
/// # Errors
///
/// [`RoutingError::File`] if the folder can't be read, or a file can't be removed.
pub fn remove_unfinished_scores(folder: &Path, before: SystemTime) -> Result<u64, RoutingError> {
    Ok(dipaco_files::remove_unfinished(folder, before, is_unfinished)?)
}

/// Returns whether a [`PendingFile`](dipaco_files::PendingFile) for one of the [`ScoreFiles`] can have this name.
fn is_unfinished(name: &str) -> bool {
    let inner = name.strip_prefix(".path-").and_then(|name| name.strip_suffix(".tmp"));
    inner.and_then(|inner| inner.split_once('.')).is_some_and(|(path, kind)| {
        let is_number = !path.is_empty() && path.bytes().all(|byte| byte.is_ascii_digit());
        is_number && (kind.starts_with("f32") || kind.starts_with("json"))
    })
}

/// The scores of a path, opened for reading.
#[derive(Debug)]
pub struct PathScores {
    header: ScoreHeader,
    files: ScoreFiles,
    reader: BufReader<File>,
    /// Number of the next token of the reader.
    position: u64,
}

impl PathScores {
    /// Opens the scores that a path gave to the tokens of a file, whatever the versions of its modules.
    ///
    /// # Errors
    ///
    /// [`RoutingError::NoScores`] if there are none for this token file, [`RoutingError::Io`] if they can't be read.
    pub fn open(folder: &Path, path: PathId, tokens: &TokenSet) -> Result<Self, RoutingError> {
        let files = ScoreFiles::new(folder, path);
        let header = files.read_header()?.filter(|header| {
            header.path == path
                && header.tokens_hash == tokens.content_hash()
                && header.tokens == tokens.tokens()
        });
        let header = header.ok_or_else(|| RoutingError::NoScores { path, folder: folder.to_owned() })?;
        let reader = File::open(&files.scores).map_err(|source| files.failed("open the scores", source))?;
        Ok(Self { header, files, reader: BufReader::new(reader), position: 0 })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &ScoreHeader {
        &self.header
    }

    /// Scores of a document (T), one for each of its tokens, in nats; the first is 0. Reading documents in order is
    /// fastest.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Io`] if the file can't be read.
    pub fn document(&mut self, tokens: &TokenSet, document: u64) -> Result<Vec<f32>, RoutingError> {
        let range = tokens.document_range(document);
        let failed = |source| self.files.failed("read the scores", source);
        // A seek discards the reader's buffer, so documents in order do without.
        if self.position != range.start {
            self.reader.seek(SeekFrom::Start(SCORE_BYTES * range.start)).map_err(failed)?;
        }
        // The length comes from a mapped token file, so it is bounded by a file that exists.
        let mut bytes = vec![0; (SCORE_BYTES * (range.end - range.start)) as usize];
        self.reader.read_exact(&mut bytes).map_err(failed)?;
        self.position = range.end;
        Ok(bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)).collect())
    }

    /// The sum of each document's scores (N), in nats: the log-likelihood of the document under the path. Reads the whole
    /// file and checks its hash.
    ///
    /// # Errors
    ///
    /// [`RoutingError::ScoresDamaged`] if the hash is wrong, [`RoutingError::Io`] if the file can't be read.
    pub fn sums(mut self, tokens: &TokenSet) -> Result<Vec<f64>, RoutingError> {
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
            return Err(RoutingError::ScoresDamaged { file: self.files.scores });
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dipaco_files::PendingFile;

    use super::*;
    use crate::testing::corpus;

    /// Writes scores 0, -1, -2 … of each document and returns their sums.
    fn write(folder: &Path, path: PathId, tokens: &TokenSet) -> Vec<f64> {
        let (mut bytes, mut sums) = (Vec::new(), Vec::new());
        for document in 0..tokens.documents() {
            let scores: Vec<f32> = (0..tokens.document(document).len()).map(|at| -(at as f32)).collect();
            bytes.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
            sums.push(scores.into_iter().map(f64::from).sum());
        }
        let files = ScoreFiles::new(folder, path);
        let mut header = ScoreHeader::new(path, tokens, 8, vec![(ModuleId { level: 0, index: 1 }, vec![])]);
        header.hash = dipaco_files::content_hash(&bytes);
        fs::write(&files.scores, bytes).unwrap();
        fs::write(&files.header, serde_json::to_vec(&header).unwrap()).unwrap();
        sums
    }

    #[test]
    fn documents_are_read_in_any_order_and_summed() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = corpus(folder.path(), 5);
        let sums = write(folder.path(), PathId(3), &tokens);
        let mut scores = PathScores::open(folder.path(), PathId(3), &tokens).unwrap();
        for document in [4, 0, 1, 3] {
            let found = scores.document(&tokens, document).unwrap();
            assert_eq!(found.len(), tokens.document(document).len());
            assert_eq!(found.iter().map(|&score| f64::from(score)).sum::<f64>(), sums[document as usize]);
        }
        assert_eq!(scores.sums(&tokens).unwrap(), sums);
    }

    #[test]
    fn unfinished_scores_are_removed_when_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let files = ScoreFiles::new(folder.path(), PathId(12));
        // A pending file that is dropped leaves its name for a file that stays.
        let name = |file: &Path| PendingFile::create(file).unwrap().temporary_path().to_owned();
        let unfinished = [name(&files.scores), name(&files.header)];
        let others = [&files.scores, &files.header, &folder.path().join(".path-notes.f32a1B2c3.tmp")];
        for file in unfinished.iter().chain(others) {
            fs::write(file, "half").unwrap();
        }
        let written = SystemTime::now();
        let remove = |before| remove_unfinished_scores(folder.path(), before).unwrap();
        assert_eq!(remove(written - Duration::from_secs(60)), 0, "scores that may still be written");
        assert_eq!(remove(written + Duration::from_secs(60)), 2);
        assert!(unfinished.iter().all(|file| !file.exists()) && others.iter().all(|file| file.exists()));
        assert_eq!(remove_unfinished_scores(&folder.path().join("nothing"), written).unwrap(), 0);
    }

    #[test]
    fn only_the_scores_of_the_path_and_the_text_are_taken() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (tokens, other) = (corpus(folder.path(), 5), corpus(other.path(), 6));
        write(folder.path(), PathId(3), &tokens);
        let header = PathScores::open(folder.path(), PathId(3), &tokens).unwrap().header().clone();
        assert!(
            scores_are_there(folder.path(), &ScoreHeader { hash: String::new(), ..header.clone() }).unwrap()
        );
        assert!(!scores_are_there(folder.path(), &ScoreHeader { sequence_tokens: 9, ..header }).unwrap());
        let open = |path, tokens| PathScores::open(folder.path(), PathId(path), tokens).unwrap_err();
        for error in [open(2, &tokens), open(3, &other)] {
            assert!(matches!(error, RoutingError::NoScores { .. }), "{error}");
        }

        let files = ScoreFiles::new(folder.path(), PathId(3));
        let mut bytes = fs::read(&files.scores).unwrap();
        bytes[7] ^= 1;
        fs::write(&files.scores, &bytes).unwrap();
        let scores = PathScores::open(folder.path(), PathId(3), &tokens).unwrap();
        assert!(matches!(scores.sums(&tokens), Err(RoutingError::ScoresDamaged { .. })));
        // A cut file counts as absent: it is made anew.
        fs::write(&files.scores, &bytes[..8]).unwrap();
        assert!(matches!(open(3, &tokens), RoutingError::NoScores { .. }));
    }
}
