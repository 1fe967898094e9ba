//! Token sets: documents as token ids in any number of token files, read as one.
//!
//! A text that several machines prepare lies in several token files. A small JSON file lists them in their order, each with
//! its content hash, so nobody has to copy them into one file. A token file alone is a set too.
//!
//! # The vocabulary check
//!
//! Training data enters the program from a token set, as batches that are built with [`TokenSet::batch`] or
//! [`TokenSet::rows`]. They check each id against the vocabulary of the set, and the type of the batch carries this fact.
//! Code behind it indexes tables by token without another check. [`TokenSet::document`] gives plain ids without a check.

mod manifest;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::token_file::TokenFile;
use crate::{
    DataSets, IGNORE, ShardsError, TokenBatch, TokenError, TokenFileInfo, TokenRows, Tokenizer, Tokens,
};

pub use manifest::{ListedFile, TOKEN_SET_FORMAT_VERSION, TokenSetManifest};

/// Documents as token ids, opened for reading. Reading takes no lock and copies nothing.
pub struct TokenSet {
    path: PathBuf,
    info: TokenFileInfo,
    files: Vec<Stretch>,
    documents: u64,
    tokens: u64,
    content_hash: String,
}

/// The stretch of a set that lies in one file.
struct Stretch {
    file: TokenFile,
    /// The file's documents among the documents of the set.
    documents: Range<u64>,
    /// The file's tokens among the tokens of the set.
    tokens: Range<u64>,
}

impl std::fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSet")
            .field("path", &self.path)
            .field("content_hash", &self.content_hash)
            .finish()
    }
}

impl TokenSet {
    /// Opens a token set: a list of token files (`*.json`), or a single token file. Checks the structure of all files:
    /// version, lengths, the checksum of their metadata, that the document offsets ascend and end at the last token, and
    /// that each file has the listed content hash. The tokens stay unread; [`Self::verify`] checks them all.
    ///
    /// # Errors
    /// A file cannot be read, is no token file, has another version, is damaged, or is not the listed one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ShardsError> {
        let path = path.as_ref();
        if path.extension().is_none_or(|extension| extension != "json") {
            return Ok(Self::of_file(path, TokenFile::open(path)?));
        }
        let manifest = TokenSetManifest::read(path)?;
        let mut set = Self::empty(path, manifest.info(), manifest.content_hash());
        for (at, listed) in manifest.files.iter().enumerate() {
            let file = TokenFile::open(manifest.place(path, at)?)?;
            set.info.check_same(&file.metadata().info, file.path())?;
            listed.check(file.path(), &file.metadata().content_hash)?;
            set.push(file);
        }
        Ok(set)
    }

    fn of_file(path: &Path, file: TokenFile) -> Self {
        let metadata = file.metadata().clone();
        let mut set = Self::empty(path, metadata.info, metadata.content_hash);
        set.push(file);
        set
    }

    fn empty(path: &Path, info: TokenFileInfo, content_hash: String) -> Self {
        Self { path: path.to_owned(), info, files: Vec::new(), documents: 0, tokens: 0, content_hash }
    }

    fn push(&mut self, file: TokenFile) {
        let documents = self.documents..self.documents.saturating_add(file.documents());
        let tokens = self.tokens..self.tokens.saturating_add(file.tokens());
        (self.documents, self.tokens) = (documents.end, tokens.end);
        self.files.push(Stretch { file, documents, tokens });
    }

    /// The list of the files, or the only file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tokenizer and origin.
    pub fn info(&self) -> &TokenFileInfo {
        &self.info
    }

    /// Number of documents.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Number of tokens, end-of-text tokens included.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Hash of the tokenizer that made the set.
    pub fn tokenizer_hash(&self) -> &str {
        &self.info.tokenizer_hash
    }

    /// Hash of the content: of a list [`TokenSetManifest::content_hash`], of a single file its own content hash.
    pub fn content_hash(&self) -> &str {
        &self.content_hash
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> u32 {
        self.info.vocab_size
    }

    /// The end-of-text token.
    pub fn end_of_text(&self) -> u32 {
        self.info.end_of_text
    }

    /// The token files in their order, with the places of their data.
    pub fn files(&self) -> impl Iterator<Item = (&Path, DataSets)> {
        self.files.iter().map(|stretch| (stretch.file.path(), stretch.file.data_sets()))
    }

    /// The stretch with a document, and the document's number in it.
    fn stretch(&self, document: u64) -> Option<(&Stretch, u64)> {
        let at = self.files.partition_point(|stretch| stretch.documents.end <= document);
        let stretch = self.files.get(at)?;
        Some((stretch, document - stretch.documents.start))
    }

    /// Tokens of a document, its end-of-text token included, without a check against the vocabulary. Empty when there is
    /// no such document.
    pub fn document(&self, document: u64) -> Tokens<'_> {
        self.stretch(document).map_or(Tokens::U16(&[]), |(stretch, document)| stretch.file.document(document))
    }

    /// Places of a document's tokens among all tokens. Empty when there is no such document.
    pub fn document_range(&self, document: u64) -> Range<u64> {
        let Some((stretch, document)) = self.stretch(document) else { return 0..0 };
        let range = stretch.file.document_range(document);
        stretch.tokens.start + range.start..stretch.tokens.start + range.end
    }

    /// Ids of a range of all tokens, cut to the tokens of the set, without a check against the vocabulary.
    pub fn ids(&self, range: Range<u64>) -> impl Iterator<Item = u32> + '_ {
        let first = self.files.partition_point(|stretch| stretch.tokens.end <= range.start);
        let touched = self.files.get(first..).unwrap_or_default().iter();
        touched.take_while(move |stretch| stretch.tokens.start < range.end).flat_map(move |stretch| {
            let within = |place: u64| place.saturating_sub(stretch.tokens.start);
            stretch.file.slice(within(range.start)..within(range.end)).iter()
        })
    }

    /// A batch of rows of T = `length` tokens (B, T) with their targets (B, T), after the check that each id is in the
    /// vocabulary. A row is given as the places of its tokens in the set, T + 1 at most. The target of a token is the
    /// token that follows it in its row. Behind the last target of a row stand end-of-text tokens with [`IGNORE`] as
    /// target.
    ///
    /// # Errors
    /// A token is not in the vocabulary, there is no row, or a row has more than T + 1 tokens.
    pub fn batch(&self, rows: &[Vec<Range<u64>>], length: usize) -> Result<TokenBatch, ShardsError> {
        let mut tokens = Vec::with_capacity(rows.len() * length);
        let mut targets = Vec::with_capacity(rows.len() * length);
        let mut counted = 0;
        for places in rows {
            let own: Vec<u32> = places.iter().flat_map(|range| self.ids(range.clone())).collect();
            let with_target = own.len().saturating_sub(1);
            counted += with_target;
            tokens.extend(own.iter().take(with_target));
            targets.extend(own.iter().skip(1));
            let padding = length.saturating_sub(with_target);
            tokens.extend(std::iter::repeat_n(self.end_of_text(), padding));
            targets.extend(std::iter::repeat_n(IGNORE, padding));
        }
        self.batch_of(tokens, targets, rows.len(), counted)
    }

    /// A batch of B = `batch` rows of ids (B, T) with their targets (B, T), after the check that each id is in the
    /// vocabulary, for a caller that chooses its own targets. `counted` targets are tokens, and the others are [`IGNORE`].
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the ids are not rows of one length.
    pub fn batch_of(
        &self,
        tokens: Vec<u32>,
        targets: Vec<u32>,
        batch: usize,
        counted: usize,
    ) -> Result<TokenBatch, ShardsError> {
        let vocabulary = self.vocab_size() as usize;
        let joined = TokenRows::new(tokens, batch, vocabulary)
            .and_then(|tokens| TokenBatch::new(tokens, targets, vocabulary));
        // A damaged file with tokens of four bytes can hold the number of `IGNORE` as a token.
        let outside = TokenError::Outside { id: IGNORE, at: 0, vocabulary };
        let joined =
            joined.and_then(|joined| if joined.counted() == counted { Ok(joined) } else { Err(outside) });
        joined.map_err(|error| self.refused(error))
    }

    /// B = `batch` rows of this set's tokens (B, T), after the check that each id is in the vocabulary.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the ids are not rows of one length.
    pub fn rows(&self, tokens: Vec<u32>, batch: usize) -> Result<TokenRows, ShardsError> {
        TokenRows::new(tokens, batch, self.vocab_size() as usize).map_err(|error| self.refused(error))
    }

    /// The error of ids of this set that are no batch. For an id outside the vocabulary, reads the files through to name
    /// the place of the first such id.
    fn refused(&self, error: TokenError) -> ShardsError {
        let first = || self.files.iter().find_map(|stretch| stretch.file.check_vocabulary().err());
        let found = if let TokenError::Outside { .. } = error { first() } else { None };
        found.unwrap_or_else(|| ShardsError::Batch { path: self.path.clone(), source: error })
    }

    /// Checks that the set was made with a tokenizer and its end-of-text token.
    ///
    /// # Errors
    /// It was made with another tokenizer, or with another end-of-text token.
    pub fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), ShardsError> {
        let made_with = (self.tokenizer_hash(), self.end_of_text());
        let in_use = (tokenizer.hash(), tokenizer.end_of_text());
        if made_with == in_use {
            return Ok(());
        }
        let named = |(hash, end): (&str, u32)| format!("{hash} (end-of-text token {end})");
        Err(ShardsError::TokenizerMismatch {
            path: self.path.clone(),
            found: named(made_with),
            expected: named(in_use),
        })
    }

    /// Reads all files and checks their content hashes and that every token is in the vocabulary.
    ///
    /// # Errors
    /// A file is damaged.
    pub fn verify(&self) -> Result<(), ShardsError> {
        self.verify_watched(&mut |_| Ok(()))
    }

    /// [`Self::verify`]. `read` gets the bytes of each block that has been read, and its error ends the reading.
    ///
    /// # Errors
    /// A file is damaged, and the errors of `read`.
    pub(crate) fn verify_watched(
        &self,
        read: &mut dyn FnMut(u64) -> Result<(), ShardsError>,
    ) -> Result<(), ShardsError> {
        self.files.iter().try_for_each(|stretch| stretch.file.verify(read))
    }

    /// [`Self::verify`] for the files that hold a range of documents. `progress` gets the bytes read and the bytes of all
    /// these files after each block, and its error ends the reading.
    ///
    /// # Errors
    /// A file is damaged, and the errors of `progress`.
    pub fn verify_documents(
        &self,
        documents: &Range<u64>,
        progress: &mut dyn FnMut(u64, u64) -> Result<(), ShardsError>,
    ) -> Result<(), ShardsError> {
        let total: u64 = self.touched(documents).map(|stretch| stretch.file.content_bytes()).sum();
        let mut done = 0;
        let mut read = |bytes: u64| {
            done += bytes;
            progress(done, total)
        };
        self.touched(documents).try_for_each(|stretch| stretch.file.verify(&mut read))
    }

    /// The stretches with documents of a range.
    fn touched(&self, documents: &Range<u64>) -> impl Iterator<Item = &Stretch> {
        let (start, end) = (documents.start, documents.end);
        self.files
            .iter()
            .skip(self.files.partition_point(|stretch| stretch.documents.end <= start))
            .take_while(move |stretch| stretch.documents.start < end)
    }

    /// Gives back the memory of documents that have been read; a later access reads them from the files again. For
    /// callers that read a large set through once.
    pub fn release(&self, documents: Range<u64>) {
        for stretch in self.touched(&documents) {
            let own = &stretch.documents;
            let (start, end) = (documents.start.max(own.start), documents.end.min(own.end));
            stretch.file.release(start - own.start..end - own.start);
        }
    }
}

#[cfg(test)]
mod tests;
