//! A corpus, a feature extractor and the records of routers for tests.

use std::path::Path;

use dipaco_shards::{TokenFileInfo, TokenFileWriter, TokenRows, TokenSet};

use crate::{BoxError, FeatureExtractor, FitOrigin, FittedOn, RouterConfig, TransformerFittedOn};

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

    fn features(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, BoxError> {
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
pub(crate) fn corpus(folder: &Path, documents: u32) -> TokenSet {
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
    TokenSet::open(path).unwrap()
}

/// Data and settings of a router's fit.
pub(crate) fn fitted_on() -> FittedOn {
    FittedOn {
        tokens_hash: "aa".into(),
        tokenizer_hash: "bb".into(),
        seed_hash: "cc".into(),
        labels_hash: None,
        devices: Vec::new(),
        documents: 7,
        loss: 0.25,
        targets: None,
        config: RouterConfig::default(),
    }
}

/// Data and settings of a transformer router's fit.
pub(crate) fn transformer_fitted_on() -> TransformerFittedOn {
    TransformerFittedOn {
        tokens_hash: "tokens".into(),
        tokenizer_hash: "tokenizer".into(),
        seed_hash: "seed".into(),
        modules_hash: "modules".into(),
        scores_hash: "scores".into(),
        settings: "{}".into(),
        documents: 3,
        steps: 10,
        held_out_loss: Some(0.5),
        blind_loss: None,
    }
}

/// The origin of a router that was fitted on some documents.
pub(crate) fn origin() -> FitOrigin {
    FitOrigin {
        tokens_hash: "t".into(),
        tokenizer_hash: "k".into(),
        seed_hash: "s".into(),
        labels_hash: None,
        devices: Vec::new(),
    }
}
