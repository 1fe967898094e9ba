use crate::testing::{TOPICS, corpus};
use crate::{RouterConfig, RoutingError, silent};

use super::*;

/// Vectors of three directions for small documents, iterated until nothing changes.
fn settled(documents: &[&[u32]]) -> TokenVectors {
    let counted: Vec<_> = documents.iter().map(|tokens| counts(tokens.to_vec())).collect();
    let idf = inverse_frequencies(&counted, 9);
    let rows: Vec<Row> = counted.iter().map(|counts| row(counts, &idf)).collect();
    let directions = principal(&rows, start(9, 3, 1), 200, &mut silent).unwrap();
    TokenVectors::of_directions(&directions, &idf).unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The numbers come from scikit-learn: `TruncatedSVD(3)` of the same weights, features scaled to length 1.
#[test]
fn features_have_the_cosines_of_truncated_svd() {
    let documents: [&[u32]; 6] =
        [&[0, 0, 1, 2], &[0, 1, 1], &[2, 3, 3, 4], &[3, 4, 4, 5], &[5, 6, 0], &[6, 6, 7, 7, 7]];
    let vectors = settled(&documents);
    let features: Vec<Vec<f32>> = documents.iter().map(|tokens| vectors.feature(tokens)).collect();
    let near = |found: f32, expected: f32| assert!((found - expected).abs() < 2e-5, "{found} {expected}");
    let mut expected = [
        0.986_085, 0.183_213, 0.083_939, 0.496_249, -0.046_214, 0.034_184, -0.078_855, 0.417_702, -0.095_656,
        0.967_259, 0.142_087, -0.158_198, 0.296_044, 0.081_032, 0.824_710,
    ]
    .into_iter();
    for (first, feature) in features.iter().enumerate() {
        near(cosine(feature, feature), 1.0);
        for other in &features[first + 1..] {
            near(cosine(feature, other), expected.next().unwrap());
        }
    }
    // Texts outside of the fit; token 8 occurs in no document.
    let other = vectors.feature(&[0, 3]);
    for (feature, expected) in
        features.iter().zip([0.703_522, 0.5787, 0.809_224, 0.767_189, 0.525_234, 0.021_675])
    {
        near(cosine(&other, feature), expected);
    }
    assert_eq!(vectors.feature(&[7, 8]), vectors.feature(&[7]), "an unknown token says nothing");
}

#[test]
fn text_without_a_known_token_has_the_zero_feature() {
    let vectors = settled(&[&[0, 1], &[1, 2]]);
    for tokens in [&[8][..], &[], &[u32::MAX]] {
        assert_eq!(vectors.feature(tokens), [0.0; 3]);
    }
}

#[test]
fn fewer_different_documents_than_components_give_finite_features() {
    let vectors = settled(&[&[0, 1], &[0, 1], &[1, 0]]);
    let feature = vectors.feature(&[0, 1]);
    assert!((cosine(&feature, &feature) - 1.0).abs() < 1e-6, "{feature:?}");
}

#[test]
fn documents_of_a_topic_are_close_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 200);
    let config = RouterConfig { lsa_components: TOPICS as usize, ..RouterConfig::default() };
    let vectors = TokenVectors::fit(&file, &config, &mut silent).unwrap();
    assert_eq!((vectors.components(), vectors.vocabulary()), (4, 21));
    let feature =
        |topic: u32, word: u32| vectors.feature(&[1 + topic * 5 + word, 1 + topic * 5 + (word + 1) % 5]);
    for topic in 0..TOPICS {
        let own = cosine(&feature(topic, 0), &feature(topic, 2));
        let other = cosine(&feature(topic, 0), &feature((topic + 1) % TOPICS, 2));
        assert!(own > 0.99 && other < 0.1, "{own} {other}");
    }
}

#[test]
fn threads_change_no_bit_and_another_seed_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 60);
    let fit = |threads, seed| {
        let config = RouterConfig { lsa_components: 3, seed, ..RouterConfig::default() };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| TokenVectors::fit(&file, &config, &mut silent).unwrap())
    };
    assert_eq!(fit(1, 0), fit(4, 0));
    assert_ne!(fit(1, 0), fit(1, 1));
}

#[test]
fn more_components_than_tokens_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 8);
    let error = TokenVectors::fit(&file, &RouterConfig::default(), &mut silent).unwrap_err().to_string();
    assert!(error.contains("routing.lsa_components = 64"), "{error}");
    let shape = TokenVectors::new(2, vec![0.0; 3]);
    assert!(matches!(shape, Err(RoutingError::Shape { actual: 3, .. })), "{shape:?}");
    let nan = TokenVectors::new(1, vec![f32::NAN]);
    assert!(matches!(nan, Err(RoutingError::NotFinite { .. })), "{nan:?}");
}
