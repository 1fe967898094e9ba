//! Tests of choosing paths within a text.

use dipaco_routing::{FittedOn, RecentRouter, Router, RoutingError, SeedFeatures, TextRouter};
use dipaco_shards::TokenRows;
use proptest::prelude::*;

use super::*;
use crate::TokenRouter;
use crate::sequences::Plan;

/// A transformer whose first outputs are taken as the scores of paths. It sees the same tokens as a real router.
struct Transformer {
    model: Path,
    paths: u32,
}

impl TokenRouter for Transformer {
    fn paths(&self) -> u32 {
        self.paths
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError> {
        let mut scores = Vec::new();
        for row in tokens.ids().chunks_exact(tokens.time()) {
            let logits = self.model.position_logits(&TokenRows::new(row, 1, VOCABULARY)?, positions)?;
            for logits in logits.chunks_exact(VOCABULARY) {
                scores.extend_from_slice(&logits[..self.paths as usize]);
            }
        }
        Ok(scores)
    }
}

/// Tokens that [`recent`] reads before a chunk.
const READ: usize = 6;

/// A router of documents for five paths, with features of a seed.
fn recent(seed: u64) -> RecentRouter {
    let config = RouterConfig { features: FeatureKind::Seed, prefix_tokens: READ, ..RouterConfig::default() };
    let none = String::new;
    let fitted_on = FittedOn {
        tokens_hash: none(),
        tokenizer_hash: none(),
        seed_hash: none(),
        labels_hash: None,
        devices: Vec::new(),
        documents: 1,
        loss: 0.0,
        targets: None,
        config,
    };
    // Centroids are features of texts, so each path is the nearest of some.
    let seed = tiny(seed);
    let centroid = |number| {
        let tokens = TokenRows::new(document(READ, number), 1, VOCABULARY).unwrap();
        SeedFeatures::early_features(&seed, 2, &tokens, &[READ]).unwrap()
    };
    let centroids: Vec<f32> = (100..105).flat_map(centroid).collect();
    let router = Router::kmeans(centroids.len() / 5, centroids, &[0.0; 5], fitted_on).unwrap();
    let config = seed.config().clone();
    RecentRouter::new(Arc::new(TextRouter::new(router, &config, "", || Ok::<_, RoutingError>(seed)).unwrap()))
}

/// A token file of these documents.
pub(super) fn file_of(folder: &std::path::Path, documents: &[Vec<u32>]) -> TokenSet {
    let path = folder.join("documents.h5");
    let info = TokenFileInfo {
        tokenizer_hash: "tokenizer".into(),
        vocab_size: VOCABULARY as u32,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    documents.iter().for_each(|document| writer.push_document(document).unwrap());
    writer.finish().unwrap();
    TokenSet::open(path).unwrap()
}

/// The paths of the chunks of each document.
fn chosen(documents: &[Vec<u32>], router: &dyn TokenRouter, chunk: usize, batch: usize) -> Vec<Vec<PathId>> {
    let folder = tempfile::tempdir().unwrap();
    let file = file_of(folder.path(), documents);
    let texts = [Text::of(&file, PathId(1), &EvaluationConfig::default())];
    let mut plan = Plan::new(&texts, CONTEXT, 4, chunk).unwrap();
    plan.reroute(router, batch, &mut |_| Ok(())).unwrap();
    plan.sequences.iter().map(|sequence| plan.chunks(sequence).to_vec()).collect()
}

/// A document that ends with the end-of-text token.
pub(super) fn document(length: usize, seed: u32) -> Vec<u32> {
    let mut state = seed;
    let token = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (state >> 16) % (VOCABULARY as u32 - 1)
    };
    (1..length).map(token).chain([0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The path of a chunk is known before its first token: replacing the tokens from the beginning of a chunk on changes
    /// neither the path of that chunk nor the path of an earlier chunk.
    #[test]
    fn no_token_influences_the_path_that_scores_it(
        chunk in 3usize..20, from in 0usize..16, seed in 1u32..1000, batch in 1usize..4,
    ) {
        let transformer = Transformer { model: tiny(u64::from(seed)), paths: 5 };
        let recent = recent(u64::from(seed));
        let before = [document(CONTEXT, seed), document(30, seed + 1), document(CONTEXT - 1, seed + 2)];
        let from = (from * chunk).min(CONTEXT);
        let after = before.clone().map(|mut tokens| {
            let length = tokens.len();
            let other = document(length, seed + 77);
            let from = from.min(length);
            tokens[from..].copy_from_slice(&other[from..]);
            tokens
        });
        for router in [&transformer as &dyn TokenRouter, &recent] {
            let (before, after) = (chosen(&before, router, chunk, batch), chosen(&after, router, chunk, batch));
            for (before, after) in before.iter().zip(&after) {
                let kept = (from / chunk + 1).min(before.len());
                prop_assert_eq!(&before[..kept], &after[..kept]);
                prop_assert_eq!(before[0], PathId(1));
            }
        }
    }
}

#[test]
fn the_tokens_before_a_chunk_influence_its_path() {
    // Otherwise the property above would hold for a router that ignores its input.
    for router in [&Transformer { model: tiny(3), paths: 5 } as &dyn TokenRouter, &recent(3)] {
        let before = chosen(&[document(CONTEXT, 1)], router, 8, 1);
        let changes = (2..20).filter(|&seed| chosen(&[document(CONTEXT, seed)], router, 8, 1) != before);
        assert!(changes.count() > 10);
    }
}

/// The router of documents chooses each chunk by as many of the last tokens before it as it reads of a document, in batches of
/// any size.
#[test]
fn the_router_of_documents_reads_the_last_tokens_before_a_chunk() {
    let router = recent(4);
    let documents = [document(CONTEXT, 5), document(21, 6), document(40, 7)];
    for (chunk, batch) in [(3, 1), (8, 2), (16, 3)] {
        let expected = |tokens: &Vec<u32>| {
            let own = |end: usize| {
                let last = tokens[end.saturating_sub(READ)..end].to_vec();
                let length = last.len();
                let scores =
                    router.scores(&TokenRows::new(last, 1, VOCABULARY).unwrap(), &[length - 1]).unwrap();
                PathId((0..5).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap() as u32)
            };
            let ends = (chunk..tokens.len()).step_by(chunk);
            std::iter::once(PathId(1)).chain(ends.map(own)).collect::<Vec<_>>()
        };
        let expected: Vec<Vec<PathId>> = documents.iter().map(expected).collect();
        assert_eq!(chosen(&documents, &router, chunk, batch), expected, "{chunk} {batch}");
    }
}

#[test]
fn each_chunk_is_scored_by_its_path_with_the_whole_context() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(2));
    let shards = shards(folder.path(), &file, 3);
    let router = Transformer { model: tiny(9), paths: 3 };
    let config = EvaluationConfig { prefix_tokens: 10, batch_sequences: 3, ..Default::default() };
    let mut source = Made::by(|path: PathId| Ok(tiny(10 + u64::from(path.0))));
    let reroute = Choice::Chunks(ChunkRouting { router: &router, tokens: 8 });
    let found = evaluate_routed(&shards, &mut source, reroute, &plain(&config), &mut quiet).unwrap();

    // The expected value follows the definition, one sequence at a time.
    let models: Vec<Path> = (10..13).map(tiny).collect();
    let (mut nll, mut tokens, mut choices, mut switches) = ([0f64; 3], [0u64; 3], 0, 0);
    for shard in shards.shards() {
        let file = shards.open_shard(shard.path).unwrap();
        for document in 0..file.documents() {
            for sequence in file.document(document).to_vec().chunks(CONTEXT) {
                let mut path = shard.path.index();
                for place in 10..sequence.len() {
                    let chunk = place / 8 * 8;
                    if chunk > 0 && (place == chunk || place == 10) {
                        let scores = router
                            .scores(&file.rows(sequence[..chunk].to_vec(), 1).unwrap(), &[chunk - 1])
                            .unwrap();
                        let best = (0..3).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
                        choices += 1;
                        switches += u64::from(best != path);
                        path = best;
                    }
                    let mut targets = vec![u32::MAX; place];
                    targets[place - 1] = sequence[place];
                    let batch = file.batch_of(sequence[..place].to_vec(), targets, 1, 1).unwrap();
                    let log_probs = Path::token_log_probs(&models[path], &batch).unwrap();
                    nll[path] -= f64::from(log_probs[place - 1]);
                    tokens[path] += 1;
                }
            }
        }
    }
    assert_eq!(found.reroute, Some(Rerouted { tokens: 8, choices, switches }));
    assert!(switches > 10, "{switches}");
    assert_eq!(found.tokens_counted, tokens.iter().sum::<u64>());
    assert_eq!(found.documents, 24);
    for (row, (nll, tokens)) in found.per_path.iter().zip(nll.into_iter().zip(tokens)) {
        assert_eq!(row.tokens_counted, tokens);
        assert!((row.nll_sum - nll).abs() < 1e-5 * nll, "{} and {nll}", row.nll_sum);
    }
    assert_eq!(source.loaded, [PathId(0), PathId(1), PathId(2)]);

    // With a chunk as long as a sequence there is no choice.
    let mut source = Made::by(|path: PathId| Ok(tiny(10 + u64::from(path.0))));
    let once = evaluate_routed(&shards, &mut source, Choice::Document, &plain(&config), &mut quiet).unwrap();
    let reroute = Choice::Chunks(ChunkRouting { router: &router, tokens: CONTEXT });
    let long = evaluate_routed(&shards, &mut source, reroute, &plain(&config), &mut quiet).unwrap();
    assert_eq!(long.reroute, Some(Rerouted { tokens: CONTEXT, choices: 0, switches: 0 }));
    assert_eq!(Evaluation { reroute: None, ..long }, once);
}

/// A router that gives every path this score.
pub(super) struct Flat {
    pub(super) score: f32,
    pub(super) paths: u32,
}

impl TokenRouter for Flat {
    fn paths(&self) -> u32 {
        self.paths
    }

    fn context(&self) -> usize {
        CONTEXT / 2
    }

    fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError> {
        Ok(vec![self.score; tokens.rows() * positions.len() * self.paths as usize])
    }
}

#[test]
fn a_router_that_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let shards = shards(folder.path(), &file, 3);
    let run = |score, paths, tokens, sequence_tokens| {
        let config = EvaluationConfig { prefix_tokens: 4, sequence_tokens, ..Default::default() };
        let mut source = Made::by(|_| Ok(tiny(5)));
        let router = Flat { score, paths };
        let reroute = Choice::Chunks(ChunkRouting { router: &router, tokens });
        evaluate_routed(&shards, &mut source, reroute, &plain(&config), &mut quiet)
    };
    run(0.0, 3, 8, 24).unwrap();
    let refused =
        |score, paths, tokens, sequence| run(score, paths, tokens, sequence).unwrap_err().to_string();
    assert!(refused(0.0, 4, 8, 24).contains("has 4 paths but the run has 3 shards"));
    assert!(refused(0.0, 3, 0, 24).contains("evaluation.reroute_tokens is 0"));
    assert!(refused(0.0, 3, 8, 0).contains("evaluation.sequence_tokens is 48"));
    assert!(refused(f32::NAN, 3, 8, 24).contains("not a number"));
}
