use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use dipaco_shards::{TokenFileInfo, TokenFileWriter};

use super::*;
use crate::evaluate::tests::{LENGTHS, Made, plain, quiet, shards, tiny, token_file};
use crate::{BoxError, EvaluationConfig};

const VOCABULARY: u32 = 64;

/// Prompts of 8 tokens, so that a prompt and its continuation fit a context of 48.
fn config() -> EvaluationConfig {
    EvaluationConfig { prefix_tokens: 8, batch_sequences: 6, ..EvaluationConfig::default() }
}

/// Knows that each token is one more than the token before it, or that it is not.
struct Counts {
    right: f32,
    wrong: f32,
}

impl LanguageModel for Counts {
    fn context(&self) -> usize {
        48
    }

    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError> {
        let pairs = batch.tokens().ids().iter().zip(batch.targets());
        let score = |(&token, &target): (&u32, &u32)| match target {
            IGNORE => 0.0,
            target if target == 1 + token % (VOCABULARY - 1) => self.right,
            _ => self.wrong,
        };
        Ok(pairs.map(score).collect())
    }
}

/// [`Counts`] that keeps the largest number of rows of a batch.
struct Measured {
    counts: Counts,
    most_rows: AtomicUsize,
}

impl LanguageModel for Measured {
    fn context(&self) -> usize {
        self.counts.context()
    }

    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError> {
        self.most_rows.fetch_max(batch.rows(), Ordering::Relaxed);
        self.counts.token_log_probs(batch)
    }
}

/// Documents that count up, each from another token, of so many tokens.
fn counting(folder: &std::path::Path, lengths: &[usize]) -> TokenSet {
    let documents: Vec<(u32, usize)> = (0..).zip(lengths.iter().copied()).collect();
    counting_from(folder, &documents)
}

/// Documents that count up from such a token, of so many tokens.
fn counting_from(folder: &std::path::Path, documents: &[(u32, usize)]) -> TokenSet {
    let path = folder.join("counting.h5");
    let info =
        TokenFileInfo { tokenizer_hash: "t".into(), vocab_size: VOCABULARY, ..TokenFileInfo::default() };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    for &(first, length) in documents {
        let counted = (0..length as u32 - 1).map(|place| 1 + (first + place) % (VOCABULARY - 1));
        writer.push_document(&counted.chain([0]).collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    TokenSet::open(path).unwrap()
}

#[test]
fn the_model_that_knows_the_text_is_right_and_its_opposite_is_not() {
    let folder = tempfile::tempdir().unwrap();
    // Documents of 40 tokens have no whole continuation besides their end.
    let file = counting(folder.path(), &[60, 41, 40, 50, 44, 8]);
    let config = config();
    let rank = |right, wrong, candidates| {
        rank_dense(&Counts { right, wrong }, &file, candidates, &plain(&config), &mut quiet).unwrap()
    };
    let knows = rank(-0.1, -5.0, 3);
    assert_eq!(knows, Ranking { candidates: 3, prompt_tokens: 8, prompts: 4, right: 4 });
    assert_eq!(rank(-5.0, -0.1, 3).accuracy(), Some(0.0));
    // A model that can't tell them apart gets nothing for a tie.
    assert_eq!(rank(-1.0, -1.0, 2).right, 0);
    // Fewer documents than candidates.
    assert_eq!(rank(-0.1, -5.0, 5), Ranking { candidates: 5, prompts: 0, right: 0, ..knows });
    assert_eq!(rank(-0.1, -5.0, 5).accuracy(), None);
}

#[test]
fn a_batch_has_at_most_the_rows_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = counting(folder.path(), &[50; 24]);
    let rank = |batch_sequences| {
        let config = EvaluationConfig { batch_sequences, ..config() };
        let counts = Counts { right: -0.1, wrong: -5.0 };
        let model = Measured { counts, most_rows: AtomicUsize::new(0) };
        let ranking = rank_dense(&model, &file, 20, &plain(&config), &mut quiet).unwrap();
        (ranking, model.most_rows.into_inner())
    };
    let ranking = Ranking { candidates: 20, prompt_tokens: 8, prompts: 24, right: 24 };
    assert_eq!(rank(6), (ranking, 6));
    assert_eq!(rank(64), (ranking, 60), "three prompts with all their candidates");
}

#[test]
fn equal_continuations_are_one_candidate() {
    let folder = tempfile::tempdir().unwrap();
    // Three equal documents, and a longer one with the same beginning.
    let documents = [(1, 50), (7, 50), (1, 50), (20, 50), (1, 50), (1, 60)];
    let file = counting_from(folder.path(), &documents);
    let config = config();
    let rank = |candidates| {
        let model = Counts { right: -0.1, wrong: -5.0 };
        rank_dense(&model, &file, candidates, &plain(&config), &mut quiet).unwrap()
    };
    assert_eq!(rank(3), Ranking { candidates: 3, prompt_tokens: 8, prompts: 6, right: 6 });
    // Six documents, but three different continuations.
    assert_eq!(rank(4).prompts, 0);
}

#[test]
fn with_labels_the_candidates_are_of_one_domain() {
    let folder = tempfile::tempdir().unwrap();
    let file = counting(folder.path(), &[50; 7]);
    let mut domains = Domains::of_documents(&file);
    for document in 0..7 {
        let domain = ["law", "law", "mail", "law", "mail", "chat", "mail"][document as usize];
        domains.label(&file.document(document).to_vec(), domain);
    }
    let config = config();
    let protocol = Protocol { domains: Some(&domains), ..plain(&config) };
    let model = Counts { right: -0.1, wrong: -5.0 };
    // One document of chat is left out.
    assert_eq!(rank_dense(&model, &file, 3, &protocol, &mut quiet).unwrap().prompts, 6);
    assert_eq!(rank_dense(&model, &file, 4, &protocol, &mut quiet).unwrap().prompts, 0);
    let texts = [Text::of(&file, PathId(0), &config)];
    let found = documents(&texts, 8, Some(&domains)).unwrap();
    let sizes: HashMap<_, _> = found
        .orders
        .into_iter()
        .map(|(domain, documents)| (domain.unwrap_or("-"), documents.len()))
        .collect();
    assert_eq!(sizes, HashMap::from([("law", 3), ("mail", 3), ("chat", 1)]));
}

#[test]
fn the_division_of_the_text_changes_no_candidate() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(8));
    let shards = shards(folder.path(), &file, 3);
    let config = config();
    let dense = rank_dense(&tiny(1), &file, 4, &plain(&config), &mut quiet).unwrap();
    let mut source = Made::by(|_| Ok(tiny(1)));
    let routed = rank_routed(&shards, &mut source, 4, &plain(&config), &mut quiet).unwrap();
    assert_eq!(routed, dense);
    assert!(0 < dense.right && dense.right < dense.prompts, "{dense:?}");
    // Each path ranks its own documents.
    let mut source = Made::by(|path| Ok(tiny(u64::from(path.0))));
    let other = rank_routed(&shards, &mut source, 4, &plain(&config), &mut quiet).unwrap();
    assert_eq!(other.prompts, dense.prompts);
    assert_ne!(other.right, dense.right);
}

#[test]
fn a_context_without_room_for_a_continuation_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = counting(folder.path(), &[60, 60]);
    let config = EvaluationConfig { prefix_tokens: 17, ..config() };
    let error = rank_dense(&Counts { right: 0.0, wrong: 0.0 }, &file, 2, &plain(&config), &mut quiet);
    assert!(error.unwrap_err().to_string().contains("prompt and continuation have 49 tokens"));
}
