use proptest::prelude::*;

use super::*;
use crate::testing::fitted_on;

fn router() -> Router {
    Router::kmeans(2, vec![0.0, 0.0, 4.0, 0.0, 0.0, 3.0], &[0.0; 3], fitted_on()).unwrap()
}

#[test]
fn the_nearest_centroid_wins_and_the_lowest_of_equal_ones() {
    let router = router();
    let route = router.route(&[4.0, 3.0]).unwrap();
    assert_eq!(route, DocumentRoute { path: PathId(1), distances: vec![5.0, 3.0, 4.0], parts: vec![] });
    assert_eq!(router.route(&[2.0, 0.0]).unwrap().path, PathId(0));
    assert_eq!(router.route(&[-1.0, 2.0]).unwrap().path, PathId(2));
}

#[test]
fn a_bias_moves_the_border() {
    let biased =
        |bias| Router::kmeans(2, vec![0.0, 0.0, 4.0, 0.0, 0.0, 3.0], &[0.0, bias, 0.0], fitted_on()).unwrap();
    // At (2.4, 0) path 0 is 5.76 away and path 1 2.56, both squared.
    assert_eq!(biased(-3.1).route(&[2.4, 0.0]).unwrap().path, PathId(1));
    assert_eq!(biased(-3.3).route(&[2.4, 0.0]).unwrap().path, PathId(0));
    assert_eq!(biased(-7.0).route(&[4.0, 3.0]).unwrap().distances, [5.0, 4.0, 4.0]);
}

#[test]
fn product_kmeans_tells_the_distance_of_each_part() {
    // One component for three centroids, then two for two: path 3 has the centroids 1 and (3, 0).
    let centroids = vec![-1.0, 1.0, 9.0, 0.0, 0.0, 3.0, 0.0];
    let biases = [0.0, 0.0, 0.0, -3.0, 0.0, 0.0];
    let router = Router::product_kmeans(vec![3, 2], 3, centroids, &biases, fitted_on()).unwrap();
    let route = router.route(&[1.5, 3.0, 2.0]).unwrap();
    assert_eq!((route.path, &route.parts[..]), (PathId(3), &[0.5, 2.0][..]));
    // 0.5² + 2² and the bias of 3.
    assert_eq!(route.distances[3], 7.25f32.sqrt());
    let scaled =
        router.with_map(FeatureMap::Factors, &[2.0, 1.0, 1.0]).unwrap().route(&[1.5, 3.0, 2.0]).unwrap();
    assert_eq!(scaled.parts, [2.0, 2.0], "the parts are those of the scaled features");
}

#[test]
fn ranked_paths_are_the_nearest_ones_best_first() {
    let router = router();
    let all = [(PathId(1), -3.0), (PathId(2), -4.0), (PathId(0), -5.0)];
    for n in 0..5 {
        assert_eq!(router.ranked(&[4.0, 3.0], n).unwrap(), all[..n.min(3)]);
    }
    // Paths 0 and 1 are equally near: the lower one comes first, as in `route`.
    assert_eq!(router.ranked(&[2.0, 0.0], 1).unwrap(), [(PathId(0), -2.0)]);
    assert_eq!(router.ranked(&[2.0, 0.0], 2).unwrap()[1].0, PathId(1));
    assert!(router.ranked(&[2.0], 2).is_err());
    assert!(router.ranked(&[f32::NAN, 0.0], 2).is_err());
}

#[test]
fn weights_of_the_best_paths_follow_the_squared_distance() {
    let router = router();
    // Squared distances 9, 16 and 25 of paths 1, 2 and 0; numbers of scipy.special.log_softmax([-9/2, -16/2, -25/2]).
    let expected = [-0.030_075_99, -3.530_075_99, -8.030_075_99];
    let found = router.posterior(&[4.0, 3.0], 3, 2.0).unwrap();
    assert_eq!(found.iter().map(|&(path, _)| path.0).collect::<Vec<_>>(), [1, 2, 0]);
    for (&(_, weight), expected) in found.iter().zip(expected) {
        assert!((weight - expected).abs() < 1e-6, "{weight} {expected}");
    }
    assert_eq!(router.posterior(&[4.0, 3.0], 1, 2.0).unwrap(), [(PathId(1), 0.0)]);
    // A temperature so low that the exponentials of all others vanish.
    let cold = router.posterior(&[4.0, 3.0], 2, 1e-6).unwrap();
    assert_eq!(cold[0], (PathId(1), 0.0));
    assert!(cold[1].1 < -1e6);
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(router.posterior(&[4.0, 3.0], 2, temperature).is_err());
    }
}

#[test]
fn bad_features_are_refused() {
    let router = router();
    assert!(matches!(router.route(&[1.0]), Err(RoutingError::Shape { expected: 2, actual: 1, .. })));
    assert!(matches!(router.route(&[1.0, f32::NAN]), Err(RoutingError::NotFinite { component: 1, .. })));
    assert!(matches!(router.route(&[f32::INFINITY, 0.0]), Err(RoutingError::NotFinite { .. })));
}

#[test]
fn bytes_give_the_same_router_and_hash() {
    let router = router();
    let read = Router::from_bytes(router.to_bytes()).unwrap();
    assert_eq!(read, router);
    assert_eq!(read.hash(), router.hash());
    let mut other = fitted_on();
    other.seed_hash = "dd".into();
    let other = Router::kmeans(2, vec![0.0, 0.0, 4.0, 0.0, 0.0, 3.0], &[0.0; 3], other).unwrap();
    assert_ne!(other.hash(), router.hash());
}

#[test]
fn a_mismatch_is_named() {
    let router = router();
    router.check_seed(2, "cc").unwrap();
    router.check_paths(3).unwrap();
    router.check_tokenizer("bb").unwrap();
    for error in [
        router.check_seed(3, "cc").unwrap_err(),
        router.check_seed(2, "xx").unwrap_err(),
        router.check_paths(4).unwrap_err(),
        router.check_tokenizer("xx").unwrap_err(),
    ] {
        assert!(matches!(error, RoutingError::Mismatch { .. }), "{error}");
    }
    assert!(Router::kmeans(2, vec![0.0; 5], &[0.0; 3], fitted_on()).is_err());
    assert!(Router::kmeans(2, vec![], &[], fitted_on()).is_err());
    assert!(Router::kmeans(1, vec![f32::NAN], &[0.0], fitted_on()).is_err());
}

#[test]
fn another_version_is_named() {
    let mut bytes = router().to_bytes().to_vec();
    bytes[8] = 1;
    let message = Router::from_bytes(&bytes).unwrap_err().to_string();
    assert!(message.contains("version 1") && message.contains("route fit"), "{message}");
}

proptest! {
    #[test]
    fn a_cut_or_changed_router_is_refused(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let router = router();
        let bytes = router.to_bytes();
        let at = at.index(bytes.len());
        prop_assert!(Router::from_bytes(&bytes[..at]).is_err());
        let mut changed = bytes.to_vec();
        changed[at] ^= flip;
        prop_assert!(Router::from_bytes(&changed).is_err());
    }
}

#[test]
fn token_vectors_stay_with_the_router() {
    let vectors = TokenVectors::new(2, vec![1.0, 0.0, 0.5, -0.5, 0.0, 2.0]).unwrap();
    let factors = router().with_map(FeatureMap::Factors, &[2.0, 0.5]).unwrap();
    let triangle = router().with_map(FeatureMap::Triangle, &[2.0, 0.5, 1.0]).unwrap();
    for router in [router(), factors, triangle] {
        assert_eq!(router.token_vectors(), None);
        let with = router.clone().with_token_vectors(&vectors).unwrap();
        let read = Router::from_bytes(with.to_bytes()).unwrap();
        assert_eq!(read.token_vectors(), Some(vectors.clone()));
        assert_eq!(read.route(&[4.0, 3.0]).unwrap(), router.route(&[4.0, 3.0]).unwrap());
        assert!(with.with_token_vectors(&vectors).is_err(), "twice");
    }
    let wide = TokenVectors::new(3, vec![1.0; 3]).unwrap();
    assert!(matches!(
        router().with_token_vectors(&wide),
        Err(RoutingError::Shape { expected: 2, actual: 3, .. })
    ));
}
