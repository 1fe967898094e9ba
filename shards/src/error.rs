//! Errors of this package, each with the file and the remedy.

use std::path::{Path, PathBuf};

use crate::WorkPart;

/// An error of this package. Its message names the object, the place and the remedy; `source` is the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardsError {
    /// A file could not be published.
    #[error(transparent)]
    File(#[from] dipaco_files::FileError),
    /// A file or directory could not be read, written, created or renamed.
    #[error("cannot {action} {}: check that the path exists, its permissions and the free disk space", path.display())]
    Io {
        /// The action that failed: "open", "read", "write" ….
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file is longer than any such file can be.
    #[error("{} has more than {largest} bytes: it can't be what its name says; get it anew, or name another one", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest possible length in bytes.
        largest: u64,
    },
    /// The HDF5 library refused an operation.
    #[error("cannot {action} {} as HDF5: prepare the file again, and check the free disk space", path.display())]
    Hdf5 {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The library's error.
        #[source]
        source: hdf5::Error,
    },
    /// The file is not a token file.
    #[error("{} is not a dipaco token file ({reason}): give a file that `dipaco prepare` or `dipaco route` wrote", path.display())]
    NotATokenFile {
        /// The file.
        path: PathBuf,
        /// The missing property.
        reason: String,
    },
    /// The token file has another format version.
    #[error("{} has token file format version {found}, this program reads version {supported}: prepare the file again with this program, or use the program that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u64,
        /// The version that this program reads.
        supported: u64,
    },
    /// A token file was cut or changed after it was written.
    #[error(
        "{} is damaged ({reason}): copy it again from an undamaged copy, or prepare it again; a path's shard is made again by \
         `dipaco route assign`",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The property that does not fit.
        reason: String,
    },
    /// A token file was made with another tokenizer than the tokenizer in use.
    #[error("{} was made with tokenizer {found}, but the tokenizer in use is {expected}: prepare the text again with this tokenizer, or give the run the tokenizer.json beside the file", path.display())]
    TokenizerMismatch {
        /// The token file.
        path: PathBuf,
        /// The tokenizer in the file: its hash, and where it matters its end-of-text token.
        found: String,
        /// The tokenizer in use, in the same form.
        expected: String,
    },
    /// A token id is not in the vocabulary.
    #[error("{}: token id {token} in {place} is outside the vocabulary of {vocab_size} ids: the file does not belong to this tokenizer or is damaged; prepare it again", path.display())]
    TokenOutOfVocabulary {
        /// The token file.
        path: PathBuf,
        /// Place in the file.
        place: String,
        /// The id.
        token: u32,
        /// Number of ids.
        vocab_size: u32,
    },
    /// Token ids that were read from a token file are not a batch.
    #[error("{}: the tokens that were read are not a batch: prepare the file again", path.display())]
    Batch {
        /// The token file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: dipaco_tokens::TokenError,
    },
    /// A document given to the writer does not end with the end-of-text token.
    #[error("document {document} for {} does not end with the end-of-text token {end_of_text}: append it before writing", path.display())]
    NoEndOfText {
        /// The token file being written.
        path: PathBuf,
        /// Number of the document, from 0.
        document: u64,
        /// The required last token.
        end_of_text: u32,
    },
    /// The tokenizer cannot be used.
    #[error("tokenizer {name}: {reason}")]
    Tokenizer {
        /// The file, or "(trained)".
        name: String,
        /// The problem and the remedy.
        reason: String,
    },
    /// The tokenizers library failed.
    #[error("tokenizer {name}: cannot {action}")]
    TokenizerLibrary {
        /// The file, or "(trained)".
        name: String,
        /// The action that failed.
        action: &'static str,
        /// The library's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer cannot encode a text of an input.
    #[error("{}:{line}: the tokenizer cannot encode this text: name a tokenizer with byte fallback, which takes every text, with prepare.tokenizer, or remove the text", path.display())]
    NotEncoded {
        /// The input file.
        path: PathBuf,
        /// First line of the text in the decompressed file, from 1.
        line: u64,
        /// The error of the tokenizer.
        #[source]
        source: Box<ShardsError>,
    },
    /// A token file does not have a requested range of documents.
    #[error("{}: documents {start}..{end} are requested, but the file has {documents}: correct the range", path.display())]
    DocumentRange {
        /// The token file.
        path: PathBuf,
        /// First document of the request.
        start: u64,
        /// End of the request.
        end: u64,
        /// Documents in the file.
        documents: u64,
    },
    /// No sequence can be cut from the given documents.
    #[error("{}: documents {start}..{end} give no sequence of {sequence_length} tokens: a document needs at least 2 tokens; give more text", path.display())]
    NoSequences {
        /// The token file.
        path: PathBuf,
        /// First document.
        start: u64,
        /// End of the range.
        end: u64,
        /// Tokens in a sequence.
        sequence_length: usize,
    },
    /// No file was found among the inputs.
    #[error("{inputs} {} no file to read: give C4 files, JSON lines, text files, or directories of them", if *one { "holds" } else { "hold" })]
    NoInput {
        /// The inputs as given.
        inputs: String,
        /// True if there is only one input.
        one: bool,
    },
    /// The only files of the inputs are those of runs.
    #[error("{inputs}: the only files are those of a run, in {}: name the text, and keep it out of the folder of a run", run.display())]
    OnlyRunFiles {
        /// The inputs as given.
        inputs: String,
        /// The folder with the files of the run, the first of several.
        run: PathBuf,
    },
    /// All training inputs are validation inputs too.
    #[error(
        "{inputs}: all files are validation inputs too, so no text is left for training: name other text, or leave out --validation to hold out a part of this text"
    )]
    NoTrainInput {
        /// The training inputs as given.
        inputs: String,
    },
    /// An input is neither a file nor a directory.
    #[error("{} is no regular file but a pipe, a socket or a device, which can't be read twice: write the text to a file first, and name that file", path.display())]
    NotRegular {
        /// The input.
        path: PathBuf,
    },
    /// The name of an input is not UTF-8, so records in JSON cannot hold it.
    #[error("the name of {} is not UTF-8, so no record can hold it: rename the file or its folder, or leave it out of the input", path.display())]
    NameNotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// No file gave a document.
    #[error(
        "{inputs}: no document could be kept; {reasons}: correct the input, or remove files without text"
    )]
    NoDocuments {
        /// The inputs as given.
        inputs: String,
        /// The reasons, each with its first place.
        reasons: String,
    },
    /// No document fell into the validation split.
    #[error(
        "the validation split of {documents} documents is empty{}: raise prepare.validation_fraction ({fraction}), give more text, or give separate validation inputs",
        listed(left_out)
    )]
    EmptyValidation {
        /// Documents in all.
        documents: u64,
        /// The configured fraction.
        fraction: f64,
        /// Text of the inputs that gave no document, each reason with its first place.
        left_out: Vec<String>,
    },
    /// All documents fell into the validation split.
    #[error(
        "the validation split took all of the {documents} documents{}: lower prepare.validation_fraction ({fraction}), or give more text",
        listed(left_out)
    )]
    EmptyTrain {
        /// Documents in all.
        documents: u64,
        /// The configured fraction.
        fraction: f64,
        /// Text of the inputs that gave no document, each reason with its first place.
        left_out: Vec<String>,
    },
    /// A part of a divided job finds no shared tokenizer.
    #[error("part {part} needs the tokenizer that all parts share, and {} {}: run `dipaco prepare --tokenizer-only` once, with the same inputs and settings, and copy that folder to every machine; or name a tokenizer with prepare.tokenizer", path.display(), if *other { "was made for other inputs or settings" } else { "does not exist" })]
    NoSharedTokenizer {
        /// Expected place of the tokenizer.
        path: PathBuf,
        /// The part.
        part: WorkPart,
        /// True if a tokenizer of other inputs or settings is there.
        other: bool,
    },
    /// The text gives another tokenizer than that of a trained model.
    #[error("the tokenizer for this text is {found}, but the model of this run was trained with {kept}: prepare the text in another run directory, or with --set prepare.tokenizer={}", kept_tokenizer(path, *held))]
    TokenizerInUse {
        /// The place of the model's tokenizer.
        path: PathBuf,
        /// False if that file is missing or another tokenizer.
        held: bool,
        /// Hash of the model's tokenizer.
        kept: String,
        /// Hash of the tokenizer for the text.
        found: String,
    },
    /// The settings name another end-of-text token than that of a trained model.
    #[error(
        "the end-of-text token for this text is {found}, but the model of this run was trained with {kept}: prepare the text in another run directory, or with --set 'prepare.end_of_text=\"{kept}\"'"
    )]
    EndOfTextInUse {
        /// The model's end-of-text token.
        kept: String,
        /// The end-of-text token for the text.
        found: String,
    },
    /// Parts of a divided job are missing: not yet done, or not copied here.
    #[error("{} of {total} pieces of text are missing in {}, the first of {}: they belong to {}. Run `dipaco prepare --part {}` with the same inputs and settings, or copy the files that such a run wrote in that folder here; remove the folder to do everything on this machine", pieces, folder.display(), first.display(), list_parts(parts), parts.first().copied().unwrap_or_default())]
    MissingParts {
        /// Folder of the parts' results.
        folder: PathBuf,
        /// Missing pieces.
        pieces: usize,
        /// Pieces in all.
        total: usize,
        /// First input whose tokens are missing.
        first: PathBuf,
        /// Parts that the missing pieces belong to, ascending.
        parts: Vec<WorkPart>,
    },
    /// A file could not be downloaded. The received bytes are kept, and a later attempt continues behind them.
    #[error("cannot download {url}: {reason}")]
    Fetch {
        /// The address.
        url: String,
        /// The last failure, and the remedy.
        reason: String,
    },
    /// The step was cancelled. It published no result.
    #[error("cancelled")]
    Cancelled,
    /// A record cannot be written or read as JSON.
    #[error("{} cannot be written or read as JSON: remove it and run the step again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The problem.
        #[source]
        source: serde_json::Error,
    },
    /// A value is outside its valid range.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// The configuration key.
        key: &'static str,
        /// The given value.
        value: String,
        /// The problem, and the values that work.
        reason: &'static str,
    },
}

impl ShardsError {
    /// Adds the action and the path to an error of the operating system.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Adds the action and the path to an error of the HDF5 library.
    pub(crate) fn hdf5(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(hdf5::Error) -> Self {
        let path = path.into();
        move |source| Self::Hdf5 { action, path, source }
    }
}

/// Reasons that follow a statement; empty without any.
fn listed(reasons: &[String]) -> String {
    reasons.iter().map(|reason| format!("; {reason}")).collect()
}

/// The value of `prepare.tokenizer` that keeps a model's tokenizer.
fn kept_tokenizer(path: &Path, held: bool) -> String {
    let path = path.display();
    if held { path.to_string() } else { format!("FILE, a copy of that tokenizer; {path} is none") }
}

/// Names of the first few parts, and the number of the others.
fn list_parts(parts: &[WorkPart]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = parts.iter().take(SHOWN).map(|part| format!("part {part}")).collect();
    let more = parts.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}
