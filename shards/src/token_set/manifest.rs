//! The list of the files of a token set.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::token_file::TokenFile;
use crate::{ShardsError, TokenFileInfo, TokenFileSummary};

/// Version of the token set format that this program writes and reads.
pub const TOKEN_SET_FORMAT_VERSION: u64 = 1;

const FORMAT: &str = "dipaco-token-set";

/// Largest list that is read, in bytes. A file takes 200 bytes.
const LARGEST: u64 = 64 << 20;

/// The list of the files of a token set, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSetManifest {
    /// Always `dipaco-token-set`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// Hash of the tokenizer ([`crate::Tokenizer::hash`]).
    pub tokenizer_hash: String,
    /// The end-of-text token, the last token of every document.
    pub end_of_text: u32,
    /// Number of token ids; every token is smaller.
    pub vocab_size: u32,
    /// For the shard of a path: a JSON text with its router and path. Empty for a whole corpus.
    pub origin: String,
    /// The files, in the order of their documents.
    pub files: Vec<ListedFile>,
}

/// A file of a token set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedFile {
    /// Its path in the folder of the list, with slashes.
    pub file: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Number of documents.
    pub documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Its content hash.
    pub content_hash: String,
}

impl ListedFile {
    /// Checks that the file at `path` is the listed one.
    pub(super) fn check(&self, path: &Path, content_hash: &str) -> Result<(), ShardsError> {
        if self.content_hash == content_hash {
            return Ok(());
        }
        Err(ShardsError::Damaged {
            path: path.to_owned(),
            reason: format!("its content hash is {content_hash}, and {} is listed", self.content_hash),
        })
    }
}

impl TokenSetManifest {
    /// A list without files. The `source` of `info` stays with the files.
    #[must_use]
    pub fn new(info: &TokenFileInfo) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: TOKEN_SET_FORMAT_VERSION,
            tokenizer_hash: info.tokenizer_hash.clone(),
            end_of_text: info.end_of_text,
            vocab_size: info.vocab_size,
            origin: info.origin.clone(),
            files: Vec::new(),
        }
    }

    /// Appends the finished token file `file` of the folder, which must have the given content hash. Reads what the file
    /// says of itself and not its documents, so the time does not grow with the text.
    ///
    /// # Errors
    /// The file is missing, is cut, or has another content.
    pub fn push(&mut self, folder: &Path, file: String, content_hash: &str) -> Result<(), ShardsError> {
        let path = folder.join(&file);
        let TokenFileSummary { documents, tokens, bytes, content_hash: found, .. } =
            TokenFile::summary(&path)?;
        let listed = ListedFile { file, bytes, documents, tokens, content_hash: content_hash.to_owned() };
        listed.check(&path, &found)?;
        self.files.push(listed);
        Ok(())
    }

    /// Description of all files together.
    #[must_use]
    pub fn info(&self) -> TokenFileInfo {
        TokenFileInfo {
            tokenizer_hash: self.tokenizer_hash.clone(),
            end_of_text: self.end_of_text,
            vocab_size: self.vocab_size,
            source: String::new(),
            origin: self.origin.clone(),
        }
    }

    /// Hash of the content: BLAKE3 of the content hashes of the files, a line each, in hexadecimal. Names and places of
    /// the files do not count.
    #[must_use]
    pub fn content_hash(&self) -> String {
        let lines: String = self.files.iter().map(|file| format!("{}\n", file.content_hash)).collect();
        dipaco_files::content_hash(lines.as_bytes())
    }

    /// Reads a list.
    ///
    /// # Errors
    /// The list cannot be read, is no list of token files, or has another version.
    pub fn read(path: &Path) -> Result<Self, ShardsError> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
            .map_err(ShardsError::io("open", path))?;
        Self::from_bytes(&bytes, path)
    }

    /// Reads a list from its bytes; `path` is for errors.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, ShardsError> {
        #[derive(Deserialize)]
        struct Version {
            format: String,
            version: u64,
        }
        let damaged = |reason: String| ShardsError::Damaged { path: path.to_owned(), reason };
        if bytes.len() as u64 > LARGEST {
            return Err(damaged(format!("it is longer than {LARGEST} bytes")));
        }
        let unreadable = |error| damaged(format!("it is no list of token files: {error}"));
        let found: Version = serde_json::from_slice(bytes).map_err(unreadable)?;
        if found.format != FORMAT {
            let reason = format!("its format is {:?}", found.format);
            return Err(ShardsError::NotATokenFile { path: path.to_owned(), reason });
        }
        if found.version != TOKEN_SET_FORMAT_VERSION {
            let (found, supported) = (found.version, TOKEN_SET_FORMAT_VERSION);
            return Err(ShardsError::Version { path: path.to_owned(), found, supported });
        }
        let list: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        let sum = |count: fn(&ListedFile) -> u64| {
            list.files.iter().try_fold(0u64, |sum, file| sum.checked_add(count(file)))
        };
        if sum(|file| file.documents).is_none() || sum(|file| file.tokens).is_none() {
            return Err(damaged("its counts are impossible".to_owned()));
        }
        Ok(list)
    }

    /// Publishes the list at `path`.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn publish(&self, path: &Path) -> Result<(), ShardsError> {
        let json = |source| ShardsError::Json { path: path.to_owned(), source };
        let mut bytes = serde_json::to_vec_pretty(self).map_err(json)?;
        bytes.push(b'\n');
        Ok(dipaco_files::publish(path, &bytes)?)
    }

    /// The place of file number `at` of the list at `list`.
    ///
    /// # Errors
    /// There is no such file, or its name leads out of the folder.
    pub fn place(&self, list: &Path, at: usize) -> Result<PathBuf, ShardsError> {
        let inside = |name: &&ListedFile| {
            let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
            !name.file.is_empty() && Path::new(&name.file).components().all(plain)
        };
        match self.files.get(at).filter(inside) {
            Some(listed) => Ok(list.with_file_name(&listed.file)),
            None => Err(ShardsError::Damaged {
                path: list.to_owned(),
                reason: format!("file {at} of the list is missing or leads out of the folder"),
            }),
        }
    }
}

impl TokenFileInfo {
    /// Checks that a file of a set was made with the tokenizer of the set.
    pub(super) fn check_same(&self, file: &Self, path: &Path) -> Result<(), ShardsError> {
        if (&self.tokenizer_hash, self.end_of_text, self.vocab_size)
            == (&file.tokenizer_hash, file.end_of_text, file.vocab_size)
        {
            return Ok(());
        }
        Err(ShardsError::TokenizerMismatch {
            path: path.to_owned(),
            found: file.tokenizer_hash.clone(),
            expected: self.tokenizer_hash.clone(),
        })
    }
}
