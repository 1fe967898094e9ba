//! Text to token ids to training batches: readers, tokenizer, HDF5 token files and the sampler.
//!
//! [`prepare()`] turns text (C4 `*.json.gz`, JSON lines, Parquet, plain text, directories) into a tokenizer and token files.
//! A token file is ordinary HDF5, read through a memory map, so memory does not grow with the corpus.
//! A [`TokenSet`] reads one or several of them as one text.
//! A [`Sampler`] cuts its documents into sequences and draws them in an order that is a pure function of a seed and a
//! position.
//!
//! Below this package token ids are the only currency. It knows nothing of models, paths or routers: the shard of a path
//! is another token set, and [`TokenFileInfo::origin`] names its origin. A [`TokenBatch`] is built through a
//! check against the vocabulary, by [`Sampler`] or by [`TokenSet::batch`].
//!
//! ```
//! use std::sync::Arc;
//! use dipaco_shards::{Sampler, SamplerConfig, TokenFileInfo, TokenFileWriter, TokenSet};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("train.h5");
//! let info = TokenFileInfo { tokenizer_hash: "none".into(), end_of_text: 0, vocab_size: 10, ..Default::default() };
//! let mut writer = TokenFileWriter::create(&path, info)?;
//! writer.push_document(&[5, 6, 7, 8, 0])?;
//! writer.finish()?;
//!
//! let file = Arc::new(TokenSet::open(&path)?);
//! let sampler = Sampler::new(file, 0..1, SamplerConfig { sequence_length: 4, seed: 1, packing: false })?;
//! let batch = sampler.batch(0, 1)?;
//! assert_eq!((batch.tokens().ids(), batch.targets()), (&[5, 6, 7, 8][..], &[6, 7, 8, 0][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod document_hash;
mod document_set;
mod error;
mod fetch;
mod part;
mod prepare;
mod progress;
mod readers;
mod sampler;
mod token_file;
mod token_set;
mod tokenizer;

pub use dipaco_tokens::{IGNORE, TokenBatch, TokenError, TokenRows};
pub use document_hash::document_number;
pub use document_set::DocumentSet;
pub use error::ShardsError;
pub use fetch::{C4Split, FetchConfig, FetchReport, FetchedFile, fetch_c4, fetch_file};
pub use part::WorkPart;
pub use prepare::{
    FileReport, PrepareConfig, PrepareFolder, PrepareReport, PrepareWork, SplitReport, TokenizerReport,
    check_inputs, prepare, prepared_tokenizer,
};
pub use progress::{NoProgress, PrepareProgress};
pub use readers::{
    FileEnd, InputFile, InputList, ReadRecord, ReadSettings, Refusal, Refusals, Refused, Skipped,
    crate_sources, list_inputs, read_documents, read_lines,
};
pub use sampler::{Permutation, Sampler, SamplerConfig, WindowPlace};
pub use token_file::{
    DataSets, TOKEN_FILE_FORMAT_VERSION, TokenFileInfo, TokenFileSummary, TokenFileWriter, Tokens,
};
pub use token_set::{ListedFile, TOKEN_SET_FORMAT_VERSION, TokenSet, TokenSetManifest};
pub use tokenizer::{END_OF_TEXT, IncrementalDecoder, TemplateEncoder, Tokenizer, TokenizerTrainer};
