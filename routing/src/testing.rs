//! A corpus and a feature extractor for tests.

use std::path::Path;

use dipaco_shards::{TokenFile, TokenFileInfo, TokenFileWriter, TokenRows};

use crate::{FeatureExtractor, Source};

/// Different kinds of documents in [`corpus`].
pub(crate) const TOPICS: u32 = 4;
/// Tokens of a topic.
const WORDS: u32 = 5;
const VOCABULARY: u32 = 1 + TOPICS * WORDS;

/// Features are the share of each token in a row: a stand-in for a language model.
pub(crate) struct Histogram;

impl FeatureExtractor for Histogram {
    fn dimension(&self) -> usize {
        VOCABULARY as usize
    }

    fn context(&self) -> usize {
        64
    }

    fn features(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, Source> {
        let width = tokens.time();
        let mut features = vec![0f32; lengths.len() * VOCABULARY as usize];
        for (row, &length) in lengths.iter().enumerate() {
            for &token in &tokens.ids()[row * width..][..length] {
                features[row * VOCABULARY as usize + token as usize] += 1.0 / length as f32;
            }
        }
        Ok(features)
    }
}

/// A token file whose document i is of topic i % TOPICS; lengths vary from 6 to 52 tokens.
pub(crate) fn corpus(folder: &Path, documents: u32) -> TokenFile {
    let path = folder.join("corpus.h5");
    let info = TokenFileInfo {
        tokenizer_hash: "tokenizer".into(),
        end_of_text: 0,
        vocab_size: VOCABULARY,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    for document in 0..documents {
        let topic = document % TOPICS;
        let mut tokens: Vec<u32> = (0..5 + document * 7 % 47)
            .map(|place| 1 + topic * WORDS + (place + document / TOPICS) % WORDS)
            .collect();
        tokens.push(0);
        writer.push_document(&tokens).unwrap();
    }
    writer.finish().unwrap();
    TokenFile::open(path).unwrap()
}
