use dipaco_model::ModelConfig;

use super::*;
use crate::testing::fitted_on;
use crate::{
    FeatureKind, FittedOn, Router, RouterConfig, RouterKind, RoutingError, SeedFeatures, TokenVectors,
};

/// V, the vocabulary.
const VOCABULARY: usize = 30;
/// D, the components of a feature.
const DIMENSION: usize = 6;
/// Tokens that the router reads.
const READ: usize = 5;

/// A seed whose features depend on the order of the tokens.
#[derive(Debug)]
struct Ordered;

impl SeedFeatures for Ordered {
    fn hidden_size(&self) -> usize {
        DIMENSION
    }

    fn early_features(&self, _: usize, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, BoxError> {
        let rows = tokens.ids().chunks_exact(tokens.time()).zip(lengths);
        let feature = |row: &[u32], component: usize| {
            let part = |(place, &token): (usize, &u32)| ((place + component + 1) as f32 * token as f32).sin();
            row.iter().enumerate().map(part).sum::<f32>()
        };
        Ok(rows
            .flat_map(|(row, &length)| (0..DIMENSION).map(move |at| feature(&row[..length], at)))
            .collect())
    }

    fn device(&self) -> String {
        "test".into()
    }
}

/// Numbers from -1 to 1 without a pattern.
fn number(at: usize) -> f32 {
    let mixed = (at as f64 + 1.0).sin() * 43_758.545_3;
    (2.0 * (mixed - mixed.floor()) - 1.0) as f32
}

/// A router of this kind for four paths, with these features.
fn router(kind: RouterKind, features: FeatureKind) -> RecentRouter {
    let config = RouterConfig { kind, features, prefix_tokens: READ, ..RouterConfig::default() };
    let fitted = FittedOn { config, ..fitted_on() };
    let numbers = |count: usize| (0..count).map(number).collect::<Vec<f32>>();
    // Short centroids: none is nearest to all features of length 1.
    let centroids = |count| numbers(count).into_iter().map(|value| 0.3 * value).collect::<Vec<f32>>();
    let biases = [0.0, -0.01, -0.02, 0.0];
    let router = match kind {
        RouterKind::KMeans => Router::kmeans(DIMENSION, centroids(4 * DIMENSION), &biases, fitted),
        RouterKind::ProductKMeans => {
            Router::product_kmeans(vec![2, 2], DIMENSION, centroids(2 * DIMENSION), &biases, fitted)
        }
        RouterKind::Discriminative => {
            Router::discriminative(DIMENSION, numbers(4 * DIMENSION), &biases, fitted)
        }
        RouterKind::Random | RouterKind::Labels => Router::equal_parts(4, fitted),
    };
    let router = router.unwrap();
    let router = if router.fitted_on().config.needs_token_vectors(kind) {
        let vectors = TokenVectors::new(DIMENSION, numbers(VOCABULARY * DIMENSION)).unwrap();
        router.with_token_vectors(&vectors).unwrap()
    } else {
        router
    };
    let seed = || Ok::<_, RoutingError>(Ordered);
    RecentRouter::new(Arc::new(TextRouter::new(router, &ModelConfig::default(), "cc", seed).unwrap()))
}

fn all() -> Vec<RecentRouter> {
    let kinds = [RouterKind::KMeans, RouterKind::ProductKMeans, RouterKind::Discriminative];
    let with = |features| kinds.map(|kind| router(kind, features));
    let mut all: Vec<RecentRouter> =
        with(FeatureKind::Lsa).into_iter().chain(with(FeatureKind::Seed)).collect();
    all.push(router(RouterKind::Random, FeatureKind::Lsa));
    all
}

fn text(length: usize, from: usize) -> Vec<u32> {
    (from..from + length)
        .map(|at| ((number(1000 + at) + 1.0) / 2.0 * VOCABULARY as f32) as u32 % VOCABULARY as u32)
        .collect()
}

fn rows(texts: &[Vec<u32>]) -> TokenRows {
    TokenRows::new(texts.concat(), texts.len(), VOCABULARY).unwrap()
}

#[test]
fn every_kind_scores_a_text_by_its_last_tokens() {
    let texts = [text(17, 0), text(17, 40), text(17, 90)];
    // Before READ tokens are known, at that moment, and later; the last token of the text too.
    let positions = [0, 2, 4, 5, 9, 16];
    for router in all() {
        let found = router.scores(&rows(&texts), &positions).unwrap();
        assert_eq!(found.len(), texts.len() * positions.len() * 4);
        let mut found = found.chunks_exact(4);
        let mut best = std::collections::BTreeSet::new();
        for text in &texts {
            for &position in &positions {
                let last = &text[(position + 1).saturating_sub(READ)..=position];
                let alone = TokenRows::new(last.to_vec(), 1, VOCABULARY).unwrap();
                let route = router.router.route(&alone, &[last.len()]).unwrap().remove(0);
                let expected: Vec<f32> = route.distances.iter().map(|distance| -distance).collect();
                assert_eq!(found.next().unwrap(), expected, "{router:?} {position}");
                best.insert(route.path);
            }
        }
        assert!(best.len() > 1, "the texts were meant to have different paths: {router:?}");
    }
}

#[test]
fn later_tokens_and_those_of_long_ago_have_no_influence() {
    let before = text(20, 3);
    for router in all() {
        let scores = |tokens: &[u32]| router.scores(&rows(&[tokens.to_vec()]), &[11]).unwrap();
        let expected = scores(&before);
        let with = |at: usize| {
            let mut tokens = before.clone();
            tokens[at] = (tokens[at] + 13) % VOCABULARY as u32;
            scores(&tokens)
        };
        for at in (0..12 - READ).chain(12..20) {
            assert_eq!(with(at), expected, "{router:?} {at}");
        }
        for at in 12 - READ..12 {
            assert_ne!(with(at), expected, "{router:?} {at}");
        }
    }
}

#[test]
fn a_position_behind_the_text_is_refused() {
    let router = router(RouterKind::KMeans, FeatureKind::Lsa);
    let error = router.scores(&rows(&[text(3, 0)]), &[2, 3]).unwrap_err();
    assert_eq!(error.to_string(), "there is no token 3 in a text of 3 tokens");
}
