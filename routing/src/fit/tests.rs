use super::*;
use crate::testing::{Histogram, corpus, origin};
use crate::{features::silent, testing::TOPICS};

#[test]
fn a_sample_is_ascending_and_even() {
    assert_eq!(sample(5, 9, 0), [0, 1, 2, 3, 4]);
    assert_eq!(sample(0, 9, 0), [0u64; 0]);
    let mut counts = [0u32; 10];
    for seed in 0..1000 {
        let chosen = sample(10, 4, seed);
        assert_eq!(chosen.len(), 4);
        assert!(chosen.is_sorted_by(|a, b| a < b));
        chosen.iter().for_each(|&number| counts[number as usize] += 1);
    }
    // Each number is expected 400 times, with a standard deviation of 15.5.
    assert!(counts.iter().all(|count| (340..460).contains(count)), "{counts:?}");
}

#[test]
fn topics_become_paths() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 400);
    let fit = fit(&Histogram, "seed", &file, &[TOPICS], 1, &RouterConfig::default(), &mut silent).unwrap();
    assert_eq!(fit.sizes, [100; TOPICS as usize]);
    let fitted = fit.router.fitted_on();
    assert_eq!((fitted.documents, fitted.seed_hash.as_str()), (400, "seed"));
    assert_eq!(fitted.tokens_hash, file.content_hash());
}

#[test]
fn the_same_inputs_give_the_same_router() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 300);
    let run = |sample_documents, batch_documents, seed| {
        let config = RouterConfig { sample_documents, batch_documents, seed, ..RouterConfig::default() };
        fit(&Histogram, "seed", &file, &[4], 1, &config, &mut silent).unwrap().router
    };
    assert_eq!(run(100, 64, 0), run(100, 64, 0));
    assert_eq!(run(100, 64, 0).fitted_on().documents, 100);
    assert_ne!(run(100, 64, 0).hash(), run(100, 64, 1).hash());
}

#[test]
fn too_many_paths_and_too_long_prefixes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 3);
    let error = fit(&Histogram, "", &file, &[4], 1, &RouterConfig::default(), &mut silent).unwrap_err();
    assert!(matches!(error, RoutingError::TooFewPoints { clusters: 4, points: 3, .. }), "{error}");
    let config = RouterConfig { prefix_tokens: 65, ..RouterConfig::default() };
    let message = fit(&Histogram, "", &file, &[2], 1, &config, &mut silent).unwrap_err().to_string();
    assert!(message.contains("routing.prefix_tokens = 65"), "{message}");
}

/// Points whose first two components are near one of 3 places and whose last two are near one of 2, independently:
/// point i is at places i % 3 and i / 3 % 2.
fn grid(count: usize) -> Vec<f32> {
    (0..count)
        .flat_map(|i| {
            let noise = |d: usize| ((i * 31 + d * 17) % 97) as f32 / 97.0;
            let (a, b) = ((i % 3) as f32 * 20.0, (i / 3 % 2) as f32 * 20.0);
            [a + noise(0), noise(1) - a, b + noise(2), noise(3) - b]
        })
        .collect()
}

#[test]
fn product_kmeans_finds_the_product_of_its_parts_clusters() {
    let points = grid(600);
    let config = RouterConfig { kind: RouterKind::ProductKMeans, ..RouterConfig::default() };
    let fit = fit_points(&points, 4, &[3, 2], 1, origin(), &config, &mut silent).unwrap();
    assert_eq!(fit.sizes, [100; 6]);
    let router = fit.router;
    assert_eq!((router.paths(), router.clusters(), router.kind()), (6, [3, 2].as_slice(), config.kind));
    // Paths with equal first digits have equal first places, and so for the second digit.
    let path = |i: usize| router.route(&points[i * 4..][..4]).unwrap().path.0;
    for i in 0..6 {
        for j in 0..6 {
            assert_eq!(path(i) / 2 == path(j) / 2, i % 3 == j % 3);
            assert_eq!(path(i) % 2 == path(j) % 2, i / 3 == j / 3);
        }
    }
    let mean: f64 = points
        .chunks_exact(4)
        .map(|point| f64::from(router.ranked(point, 1).unwrap()[0].1).powi(2))
        .sum::<f64>()
        / 600.0;
    assert!((mean / router.fitted_on().loss - 1.0).abs() < 1e-5);
}

#[test]
fn arranged_paths_with_a_common_module_have_text_in_common() {
    let points = grid(600);
    let fit = |arrange| {
        let config = RouterConfig { arrange, ..RouterConfig::default() };
        fit_points(&points, 4, &[3, 2], 1, origin(), &config, &mut silent).unwrap()
    };
    let (plain, arranged) = (fit(false), fit(true));
    assert_eq!((&plain.sizes, &arranged.sizes), (&vec![100; 6], &vec![100; 6]));
    assert!(
        (plain.router.fitted_on().loss - arranged.router.fitted_on().loss).abs() < 1e-9,
        "the same clusters"
    );
    let path = |i: usize| arranged.router.route(&points[i * 4..][..4]).unwrap().path.0;
    for i in 0..6 {
        for j in 0..6 {
            assert_eq!(path(i) / 2 == path(j) / 2, i % 3 == j % 3, "module of the first level");
            assert_eq!(path(i) % 2 == path(j) % 2, i / 3 == j / 3, "module of the second level");
        }
    }
}

#[test]
fn replicas_share_all_modules_and_get_clusters_near_each_other() {
    // Two kinds of text far apart, with two places near each other in each.
    let points: Vec<f32> = (0u16..400)
        .flat_map(|i| [f32::from(i % 2) * 100.0 + f32::from(i / 2 % 2) * 5.0, f32::from(i % 7) * 0.01])
        .collect();
    for seed in 0..8 {
        let config = RouterConfig { seed, ..RouterConfig::default() };
        let fit = fit_points(&points, 2, &[2, 2], 2, origin(), &config, &mut silent).unwrap();
        assert_eq!(fit.sizes, [100; 4]);
        let module = |i: usize| fit.router.route(&points[i * 2..][..2]).unwrap().path.0 % 2;
        assert_eq!((module(0), module(1)), (module(2), module(3)), "seed {seed}");
        assert_ne!(module(0), module(1), "seed {seed}");
    }
}

#[test]
fn a_path_between_which_no_document_lies_gets_the_least_share() {
    // Both halves say the same place, so that halves of different places never come together.
    let points: Vec<f32> = (0..600)
        .flat_map(|i| {
            let noise = |d: usize| (i * (7919 + 1009 * d) % 9973) as f32 / 9973.0;
            let place = (i % 3) as f32 * 20.0;
            [place + noise(0), noise(1), place + noise(2), noise(3)]
        })
        .collect();
    let sizes = |least_share| {
        let kind = RouterKind::ProductKMeans;
        let config = RouterConfig { kind, least_share, ..RouterConfig::default() };
        fit_points(&points, 4, &[3, 3], 1, origin(), &config, &mut silent).unwrap().sizes
    };
    assert_eq!(sizes(0.0).iter().filter(|&&size| size == 0).count(), 6);
    // A tenth of a ninth of 600 is 6.7.
    let sizes = sizes(0.1);
    assert!(sizes.iter().all(|&size| size >= 6), "{sizes:?}");
    assert_eq!(sizes.iter().filter(|&&size| size > 150).count(), 3, "{sizes:?}");
}

#[test]
fn one_level_of_product_kmeans_is_kmeans() {
    let points = grid(90);
    let fit = |kind, clusters: &[u32]| {
        let config = RouterConfig { kind, arrange: false, ..RouterConfig::default() };
        fit_points(&points, 4, clusters, 1, origin(), &config, &mut silent).unwrap().router
    };
    let (one, other) = (fit(RouterKind::ProductKMeans, &[6]), fit(RouterKind::KMeans, &[3, 2]));
    for point in points.chunks_exact(4) {
        let (one, other) = (one.route(point).unwrap(), other.route(point).unwrap());
        assert_eq!((one.path, one.distances), (other.path, other.distances));
        // The whole feature is the only part.
        assert_eq!(one.parts.len(), 1);
    }
    // A dense model has one path, whatever the rule.
    assert_eq!(fit(RouterKind::ProductKMeans, &[]).paths(), 1);
}

#[test]
fn unusable_input_is_refused() {
    let fit = |points: &[f32], clusters: &[u32], kind| {
        let config = RouterConfig { kind, ..RouterConfig::default() };
        fit_points(points, 4, clusters, 1, origin(), &config, &mut silent).unwrap_err()
    };
    let product = RouterKind::ProductKMeans;
    let error = fit(&grid(5), &[3, 2], product);
    assert!(matches!(error, RoutingError::TooFewPoints { clusters: 6, points: 5, .. }), "{error}");
    let error = fit(&grid(50), &[2, 2, 1, 1, 1], product);
    assert!(matches!(error, RoutingError::Shape { expected: 5, actual: 4, .. }), "{error}");
    assert!(matches!(fit(&grid(50), &[u32::MAX, 2], product), RoutingError::TooFewPoints { .. }));
    let message = fit(&vec![1.5; 400], &[2], RouterKind::KMeans).to_string();
    assert!(message.contains("all 100 points are the same") && message.contains("seed model"), "{message}");
    assert!(matches!(fit(&grid(50), &[2], RouterKind::Discriminative), RoutingError::Config { .. }));
}

#[test]
fn standardised_features_weigh_all_components_alike_at_the_fit_and_later() {
    // The first component is loud and says nothing, the second tells two groups apart.
    let points: Vec<f32> = (0u16..400)
        .flat_map(|i| {
            let noise = f32::from((i * 37) % 101) * 10.0;
            [noise, if i % 2 == 0 { 0.0 } else { 1.0 } + f32::from(i % 7) * 0.01]
        })
        .collect();
    let fit = |standardise| {
        let config = RouterConfig { standardise, ..RouterConfig::default() };
        fit_points(&points, 2, &[2], 1, origin(), &config, &mut silent).unwrap().router
    };
    let right = |router: &Router| {
        let first = router.route(&points[..2]).unwrap().path;
        let path = |i: usize| router.route(&points[2 * i..2 * i + 2]).unwrap().path;
        (0..400).filter(|&i| (path(i) == first) == (i % 2 == 0)).count()
    };
    assert_eq!(right(&fit(true)), 400);
    assert!(right(&fit(false)) < 300);
    let read = Router::from_bytes(fit(true).to_bytes()).unwrap();
    assert_eq!(read, fit(true));
    assert_eq!(right(&read), 400);
}

#[test]
fn a_component_that_never_changes_does_not_count() {
    let points: Vec<f32> = (0u16..40).flat_map(|i| [0.1, f32::from(i % 2)]).collect();
    let config = RouterConfig { standardise: true, ..RouterConfig::default() };
    let router = fit_points(&points, 2, &[2], 1, origin(), &config, &mut silent).unwrap().router;
    assert_ne!(router.route(&[0.1, 0.0]).unwrap().path, router.route(&[0.1, 1.0]).unwrap().path);
    assert_eq!(router.route(&[7.0, 0.0]).unwrap().path, router.route(&[0.1, 0.0]).unwrap().path);
}

#[test]
fn whitened_features_tell_what_correlated_ones_hide_at_the_fit_and_later() {
    // Both components carry the same loud signal. Their difference tells two groups apart.
    let points: Vec<f32> = (0u16..400)
        .flat_map(|i| {
            let loud = f32::from((i * 37) % 101) * 10.0;
            [loud, loud + if i % 2 == 0 { 0.0 } else { 1.0 } + f32::from(i % 7) * 0.01]
        })
        .collect();
    let fit = |whiten| {
        let config = RouterConfig {
            kind: RouterKind::ProductKMeans,
            whiten,
            standardise: !whiten,
            ..Default::default()
        };
        fit_points(&points, 2, &[2, 2], 1, origin(), &config, &mut silent).unwrap().router
    };
    // The second digit of a path is the group, if the router finds the groups.
    let right = |router: &Router| {
        let digit = |i: usize| router.route(&points[2 * i..2 * i + 2]).unwrap().path.0 % 2;
        (0..400).filter(|&i| (digit(i) == digit(0)) == (i % 2 == 0)).count()
    };
    assert_eq!(right(&fit(true)), 400);
    assert!(right(&fit(false)) < 300);
    let read = Router::from_bytes(fit(true).to_bytes()).unwrap();
    assert_eq!(read, fit(true));
    assert_eq!(right(&read), 400);
}

#[test]
fn random_routing_gives_every_path_an_equal_share() {
    let config = RouterConfig { kind: RouterKind::Random, ..RouterConfig::default() };
    let points: Vec<f32> = (0u16..1000).map(|i| (f32::from(i) + 0.5) / 1000.0).collect();
    let fit = fit_points(&points, 1, &[2, 2], 1, origin(), &config, &mut silent).unwrap();
    assert_eq!(fit.sizes, [250; 4]);
    assert_eq!(fit.router.kind(), RouterKind::Random);
    let read = Router::from_bytes(fit.router.to_bytes()).unwrap();
    for (feature, path) in [(0.0, 0), (0.24, 0), (0.26, 1), (0.6, 2), (1.0, 3)] {
        assert_eq!(read.route(&[feature]).unwrap().path.0, path, "{feature}");
    }
}
