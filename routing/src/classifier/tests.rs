use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::features::silent;
use crate::testing::origin;
use crate::{ClassifierConfig, RouterKind};

fn from() -> TargetsFrom {
    TargetsFrom { router_hash: "r".into(), scores_hash: "l".into() }
}

fn run(
    features: &[f32],
    dimension: usize,
    targets: &[u32],
    paths: u32,
    config: RouterConfig,
) -> Result<Discriminative, RoutingError> {
    let targets: Vec<PathId> = targets.iter().copied().map(PathId).collect();
    let documents = ScoredDocuments { features, dimension, targets: &targets, paths };
    fit_discriminative(&documents, origin(), from(), &config, &mut silent)
}

/// Clouds that overlap, of very different sizes and on very different scales.
fn clouds(count: usize) -> (Vec<f32>, Vec<u32>) {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let (mut features, mut targets) = (Vec::new(), Vec::new());
    for i in 0..count {
        let path = [0, 0, 0, 0, 0, 0, 1, 1, 1, 2][i % 10];
        let mut noise = || (0..4).map(|_| random.random::<f32>() - 0.5).sum::<f32>();
        let (x, y) = [(0.0, 0.0), (0.7, 0.2), (0.3, 0.8)][path as usize];
        features.extend([1000.0 + 50.0 * (x + noise()), 0.01 * (y + noise()), 7.0, noise()]);
        targets.push(path);
    }
    (features, targets)
}

#[test]
fn targets_are_the_best_paths() {
    let scores = [-3.0, -1.0, -2.0, -5.0, -9.0, -5.0];
    assert_eq!(targets_of(&scores, 3).unwrap(), [PathId(1), PathId(0)]);
    assert!(matches!(targets_of(&scores, 4), Err(RoutingError::Shape { .. })));
    assert!(matches!(targets_of(&scores, 0), Err(RoutingError::Shape { .. })));
    let bad = [0.0, 1.0, f64::NAN, 2.0];
    assert!(matches!(targets_of(&bad, 2), Err(RoutingError::NotFinite { index: 1, component: 0, .. })));
}

#[test]
fn paths_are_chosen_as_often_as_they_are_targets() {
    let (features, targets) = clouds(3000);
    let found = run(&features, 4, &targets, 3, RouterConfig::default()).unwrap();
    assert_eq!(found.target_sizes, [1800, 900, 300]);
    // The rare path is much rarer in the choice of the bare classifier.
    assert!(found.uncalibrated_sizes[2] < 200, "{:?}", found.uncalibrated_sizes);
    for (size, target) in found.sizes.iter().zip(&found.target_sizes) {
        assert!(size.abs_diff(*target) <= 6, "{:?}", found.sizes);
    }
    assert!(found.accuracy > 0.6, "{}", found.accuracy);
    let router = &found.router;
    assert_eq!((router.kind(), router.paths(), router.dimension()), (RouterKind::Discriminative, 3, 4));
    assert_eq!(router.fitted_on().targets, Some(from()));
    // Distances are -ln of probabilities.
    let route = router.route(&features[..4]).unwrap();
    let sum: f32 = route.distances.iter().map(|distance| (-distance).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    assert_eq!(router.ranked(&features[..4], 1).unwrap()[0].0, route.path);
    assert_eq!(Router::from_bytes(router.to_bytes()).unwrap(), *router);
}

/// Values of scikit-learn 1.9's `LogisticRegression(C=1 / (penalty * N), solver="lbfgs", tol=1e-10)` on the features
/// scaled by `StandardScaler`.
#[test]
fn the_loss_is_that_of_scikit_learn() {
    let features: Vec<f32> = (0..60 * 3).map(|i| ((i * i * 31 + i * 7) % 101) as f32 * 0.05 + 3.0).collect();
    let targets: Vec<u32> =
        (0..60).map(|i| ((features[i * 3] + features[i * 3 + 1]) * 0.7) as u32 % 3).collect();
    for (penalty, loss) in [(1e-3, 0.9938305584449115), (1e-1, 1.0016178171499304)] {
        let classifier = ClassifierConfig { penalties: vec![penalty], iterations: 1000, tolerance: 0.0 };
        let config = RouterConfig { classifier, ..RouterConfig::default() };
        let found = run(&features, 3, &targets, 3, config).unwrap();
        let ours = found.router.fitted_on().loss;
        assert!((ours - loss).abs() < 2e-5, "{ours} for {loss}");
        assert_eq!((found.penalty, found.held_out_loss), (penalty, None));
    }
}

#[test]
fn the_penalty_suits_the_number_of_documents() {
    // Many components are noise: with few documents, weak penalties learn the noise.
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let features: Vec<f32> = (0..120 * 40).map(|_| random.random::<f32>()).collect();
    // Two of three documents follow the first component, the others chance.
    let targets: Vec<u32> =
        (0..120).map(|i| u32::from(features[i * 40 + usize::from(i % 3 == 0)] > 0.5)).collect();
    let found = run(&features, 40, &targets, 2, RouterConfig::default()).unwrap();
    assert!(found.penalty >= 1e-2, "{}", found.penalty);
    assert!(found.held_out_loss.is_some_and(|loss| loss < 0.69));
}

#[test]
fn a_path_that_is_never_best_gets_the_least_share() {
    let (features, targets) = clouds(2000);
    let config = |least_share| {
        let classifier = ClassifierConfig { penalties: vec![1e-3], ..ClassifierConfig::default() };
        RouterConfig { classifier, least_share, ..RouterConfig::default() }
    };
    let found = run(&features, 4, &targets, 4, config(0.2)).unwrap();
    assert_eq!(found.target_sizes[3], 0);
    // A fifth of a quarter of 2,000 is 100.
    assert!((95..=105).contains(&found.sizes[3]), "{:?}", found.sizes);
    let found = run(&features, 4, &targets, 4, config(0.0)).unwrap();
    assert_eq!(found.sizes[3], 0);
}

#[test]
fn a_path_without_targets_takes_the_documents_that_it_scores_nearest_to_their_best_path() {
    let numbers = |targets: &[PathId]| targets.iter().map(|target| target.0).collect::<Vec<_>>();
    // The score of path 0 is 0 for each of five documents, and that of the others is below by these numbers.
    let below = [[3.0, 9.0, 7.0], [1.0, 1.0, 7.0], [2.0, 2.0, 7.0], [5.0, 3.0, 7.0], [4.0, 4.0, 7.0]];
    let scores: Vec<f64> =
        below.iter().flat_map(|row| std::iter::once(0.0).chain(row.iter().map(|below| -below))).collect();
    let raised = |least_share| {
        let mut targets = targets_of(&scores, 4).unwrap();
        assert_eq!(numbers(&targets), [0; 5]);
        raise_targets(&mut targets, &scores, 4, least_share);
        numbers(&targets)
    };
    // Path 2 leaves document 1 to path 1, and of equally near documents path 3 takes the first.
    assert_eq!(raised(0.0), [3, 1, 2, 0, 0]);
    // Each path keeps a target, although an equal share is more than one document.
    assert_eq!(raised(1.0), [3, 1, 2, 0, 0]);

    // Half of an equal share of eight documents. A path that has a target already takes nothing.
    let scores = [0.0, -1.0, 0.0, -8.0, 0.0, -2.0, 0.0, -7.0, 0.0, -6.0, 0.0, -5.0, 0.0, -4.0, 0.0, -3.0];
    let mut targets = targets_of(&scores, 2).unwrap();
    raise_targets(&mut targets, &scores, 2, 0.5);
    assert_eq!(numbers(&targets), [1, 0, 1, 0, 0, 0, 0, 0]);
    raise_targets(&mut targets, &scores, 2, 1.0);
    assert_eq!(numbers(&targets), [1, 0, 1, 0, 0, 0, 0, 0]);

    // Too few documents for all paths.
    let mut targets = [PathId(0), PathId(0)];
    raise_targets(&mut targets, &[0.0, -1.0, -2.0, 0.0, -1.0, -2.0], 3, 0.1);
    assert_eq!(numbers(&targets), [1, 0]);
}

#[test]
fn several_paths_that_are_never_best_all_get_text() {
    let (features, best) = clouds(2000);
    // Paths 3 and 4 score all documents worse than the best path, by less along one component each.
    let row = |(&best, features): (&u32, &[f32])| {
        let score = |path: u32| if path == best { 0.0 } else { -9.0 };
        let (along, across) = (f64::from(features[0] - 1000.0) / 50.0, f64::from(features[1]) * 100.0);
        [score(0), score(1), score(2), along - 4.0, across - 4.0]
    };
    let scores: Vec<f64> = best.iter().zip(features.chunks_exact(4)).flat_map(row).collect();
    let mut targets = targets_of(&scores, 5).unwrap();
    assert!(targets.iter().all(|target| target.0 < 3));
    raise_targets(&mut targets, &scores, 5, 0.2);
    let targets: Vec<u32> = targets.into_iter().map(|target| target.0).collect();
    let config = RouterConfig { least_share: 0.2, ..RouterConfig::default() };
    let found = run(&features, 4, &targets, 5, config).unwrap();
    // A fifth of a fifth of 2,000.
    assert_eq!(found.target_sizes[3..], [80, 80]);
    assert!(found.sizes.iter().all(|&size| size > 40), "{:?}", found.sizes);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (features, targets) = clouds(500);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(&features, 4, &targets, 3, RouterConfig::default()).unwrap().router)
    };
    assert_eq!(run(1).hash(), run(3).hash());
}

#[test]
fn unusable_input_is_refused() {
    let (features, targets) = clouds(50);
    let refused = |features: &[f32], targets: &[u32], paths| {
        run(features, 4, targets, paths, RouterConfig::default()).unwrap_err()
    };
    let message = refused(&features, &targets, 51).to_string();
    assert!(message.contains("50 documents") && message.contains("routing.router_share"), "{message}");
    let message = refused(&features, &targets, 2).to_string();
    assert!(message.contains("document 9") && message.contains("path 2"), "{message}");
    assert!(matches!(refused(&features[1..], &targets, 3), RoutingError::Shape { .. }));
    let mut bad = features;
    bad[4 * 3 + 1] = f32::NAN;
    assert!(matches!(refused(&bad, &targets, 3), RoutingError::NotFinite { index: 3, component: 1, .. }));
    assert!(matches!(refused(&vec![2.5; 200], &targets, 3), RoutingError::Identical { points: 50 }));
}
