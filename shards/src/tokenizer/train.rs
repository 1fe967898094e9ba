//! Training a byte-level BPE tokenizer (GPT-2's kind).

use std::collections::BTreeMap;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
use tokenizers::{AddedToken, Tokenizer as Library};

use super::added_texts::AddedTexts;
use super::{END_OF_TEXT, Tokenizer, pieces};
use crate::ShardsError;

/// Longest word for training in bytes. Longer words (encoded data, 5 MB without a space) teach no merges, and a single
/// one would take as long as all other words.
const LONGEST_WORD_BYTES: usize = 256;

/// Smallest vocabulary: every byte, the end-of-text token, and room for a merge.
const SMALLEST_VOCABULARY: u32 = 258;

/// Collects words of sample documents and trains a byte-level BPE on them.
///
/// Memory grows with the distinct words of the sample. The result depends only on the multiset of documents, not on
/// their order.
pub struct TokenizerTrainer {
    vocab_size: u32,
    words: BTreeMap<String, u64>,
    bytes: u64,
}

impl TokenizerTrainer {
    /// Makes a trainer for a vocabulary of `vocab_size` tokens, the 256 bytes and the end-of-text token included.
    ///
    /// # Errors
    /// The vocabulary is too small.
    pub fn new(vocab_size: u32) -> Result<Self, ShardsError> {
        if vocab_size < SMALLEST_VOCABULARY {
            return Err(ShardsError::Value {
                key: "prepare.vocab_size",
                value: vocab_size.to_string(),
                reason: "a byte-level vocabulary has at least 258 tokens",
            });
        }
        Ok(Self { vocab_size, words: BTreeMap::new(), bytes: 0 })
    }

    /// Adds the words of a sample document.
    ///
    /// # Errors
    /// The library's splitting fails.
    pub fn push_document(&mut self, text: &str) -> Result<(), ShardsError> {
        self.bytes += text.len() as u64;
        let splitter = ByteLevel::new(false, false, true);
        let no_tokens = AddedTexts::default();
        for piece in pieces::pieces(text, &no_tokens) {
            let mut split = PreTokenizedString::from(piece);
            splitter.pre_tokenize(&mut split).map_err(library("split a text into words"))?;
            for (word, _, _) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
                if word.len() <= LONGEST_WORD_BYTES {
                    match self.words.get_mut(word) {
                        Some(count) => *count += 1,
                        None => {
                            self.words.insert(word.to_owned(), 1);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes of sample text added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Trains on the added words.
    ///
    /// # Errors
    /// The library fails.
    pub fn train(self) -> Result<Tokenizer, ShardsError> {
        let trainer = BpeTrainer::builder()
            .vocab_size(self.vocab_size as usize)
            .min_frequency(2)
            .show_progress(false)
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let counts = self.words.into_iter().map(|(word, count)| (word.into(), count)).collect();
        let mut model = BPE::default();
        let special = trainer.do_train(&counts, &mut model).map_err(library("train"))?;

        let byte_level = ByteLevel::new(false, false, true);
        let mut inner = Library::new(model);
        inner.with_pre_tokenizer(Some(byte_level));
        inner.with_decoder(Some(byte_level));
        inner.add_special_tokens(special).map_err(library("add the end-of-text token"))?;
        let json = inner.to_string(true).map_err(library("write it"))?;
        Tokenizer::from_bytes(json.as_bytes(), Some(END_OF_TEXT), "(trained)")
    }
}

fn library(action: &'static str) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> ShardsError {
    move |source| ShardsError::TokenizerLibrary { name: "(trained)".to_owned(), action, source }
}
