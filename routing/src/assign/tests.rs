use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;
use crate::features::silent;
use crate::testing::{Histogram, TOPICS, corpus};
use crate::{RouterConfig, fit, inspect, shard_file_name};

fn fitted(file: &TokenFile, paths: u32) -> Router {
    fit(&Histogram, "seed", file, &[paths], &RouterConfig::default(), &mut silent).unwrap().router
}

#[test]
fn every_document_is_in_the_shard_of_its_path_in_corpus_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 230);
    let router = fitted(&file, TOPICS);
    let out = folder.path().join("shards").join("train");
    let assigned = assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap();
    assert!(!assigned.skipped);
    let mut expected: BTreeMap<PathId, Vec<Vec<u32>>> = BTreeMap::new();
    for document in 0..file.documents() {
        let tokens = file.document(document).to_vec();
        let prefix = &tokens[..tokens.len().min(32)];
        let features = Histogram.features(prefix, &[prefix.len()]).unwrap();
        expected.entry(router.route(&features).unwrap().path).or_default().push(tokens);
    }
    let shards = ShardSet::open(&out).unwrap();
    assert_eq!(shards, assigned.shards);
    shards.check_router(&router).unwrap();
    shards.check_trainable().unwrap();
    assert_eq!(shards.paths(), TOPICS);
    for shard in shards.shards() {
        let tokens = shards.open_shard(shard.path).unwrap();
        tokens.verify().unwrap();
        let documents: Vec<_> =
            (0..tokens.documents()).map(|document| tokens.document(document).to_vec()).collect();
        assert_eq!(documents, expected[&shard.path], "path {}", shard.path);
        assert_eq!((shard.documents, shard.tokens), (tokens.documents(), tokens.tokens()));
        assert!(tokens.metadata().info.origin.contains(router.hash()));
        assert_eq!(shard.nearest.len(), EXAMPLES);
        assert!(shard.nearest.is_sorted_by(|a, b| a.squared_distance <= b.squared_distance));
        for example in &shard.nearest {
            assert_eq!(tokens.document(example.document), file.document(example.source_document));
        }
    }
    let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), TOPICS as usize + 1, "{left:?}");
}

#[test]
fn what_is_done_is_skipped_and_what_is_not_is_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 100);
    let out = folder.path().join("train");
    let run = |router: &Router| assign(&Histogram, "seed", router, &file, &out, &mut silent).unwrap();
    let four = fitted(&file, 4);
    assert!(!run(&four).skipped);
    assert!(run(&four).skipped);
    // A shard that is gone or damaged is made again.
    std::fs::write(out.join(shard_file_name(PathId(2))), b"damaged").unwrap();
    assert!(!run(&four).skipped);
    assert!(run(&four).skipped);
    // Another router replaces the shards and leaves none of the old ones.
    let two = fitted(&file, 2);
    assert!(!run(&two).skipped);
    assert!(!out.join(shard_file_name(PathId(2))).exists());
    assert!(ShardSet::open(&out).unwrap().check_router(&four).is_err());
}

#[test]
fn a_shard_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 100);
    let router = fitted(&file, 4);
    let out = folder.path().join("train");
    let shards = assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().shards;
    std::fs::copy(shards.file(PathId(1)), shards.file(PathId(0))).unwrap();
    assert!(matches!(shards.open_shard(PathId(0)), Err(RoutingError::Mismatch { .. })));
    assert!(matches!(shards.open_shard(PathId(4)), Err(RoutingError::Mismatch { .. })));
    std::fs::remove_file(shards.file(PathId(3))).unwrap();
    assert!(matches!(shards.open_shard(PathId(3)), Err(RoutingError::Tokens { .. })));
}

#[test]
fn another_seed_model_or_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 20);
    let router = fitted(&file, 2);
    let error = assign(&Histogram, "other", &router, &file, folder.path(), &mut silent).unwrap_err();
    assert!(matches!(error, RoutingError::Mismatch { what: "the router's seed model", .. }), "{error}");
    let mut fitted_on = router.fitted_on().clone();
    fitted_on.tokenizer_hash = "other".into();
    let router = Router::kmeans(1, router.dimension(), vec![0.0; router.dimension()], fitted_on).unwrap();
    let error = assign(&Histogram, "seed", &router, &file, folder.path(), &mut silent).unwrap_err();
    assert!(matches!(error, RoutingError::Mismatch { what: "the router's tokenizer", .. }), "{error}");
}

#[test]
fn paths_without_documents_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 40);
    let fitted_on = fitted(&file, 2).fitted_on().clone();
    let dimension = Histogram.dimension();
    let mut centroids = vec![0.0; 3 * dimension];
    centroids[dimension..2 * dimension].fill(9.0);
    centroids[2 * dimension..].fill(8.0);
    let router = Router::kmeans(3, dimension, centroids, fitted_on).unwrap();
    let out = folder.path().join("train");
    let shards = assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().shards;
    assert_eq!(shards.empty_paths().collect::<Vec<_>>(), [PathId(1), PathId(2)]);
    let message = shards.check_trainable().unwrap_err().to_string();
    assert!(
        message.contains("2 of 3 paths") && message.contains("1, 2") && message.contains("fewer paths"),
        "{message}"
    );
    assert_eq!(shards.open_shard(PathId(1)).unwrap().documents(), 0);
    assert!(assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().skipped);
    let table = inspect(&shards, 1, 8).unwrap();
    assert_eq!(table.balance, 0.0);
    assert_eq!(table.largest_over_mean, 3.0);
}

#[test]
fn a_stopped_run_publishes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 100);
    let router = fitted(&file, 2);
    let out = folder.path().join("train");
    for stage in [0, 1, 2] {
        let mut stop = |step| match (stage, step) {
            (0, Progress::Documents { .. }) | (1, Progress::Shards { done: 0, .. }) => ControlFlow::Break(()),
            (2, Progress::Shards { done, total }) if done == total => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let error = assign(&Histogram, "seed", &router, &file, &out, &mut stop).unwrap_err();
        assert!(matches!(error, RoutingError::Cancelled), "{error}");
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0, "stage {stage}");
    }
}

#[test]
fn more_paths_than_writers_take_several_passes() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 30);
    let fitted_on = fitted(&file, 2).fitted_on().clone();
    let dimension = Histogram.dimension();
    let paths = WRITERS + 2;
    let mut centroids = vec![50.0; paths as usize * dimension];
    centroids[..dimension].fill(0.0);
    let last = centroids.len() - dimension;
    centroids[last..].fill(0.0);
    // Topic 0 is nearest to the first path, the others to the last.
    centroids[1..6].fill(0.2);
    let router = Router::kmeans(paths, dimension, centroids, fitted_on).unwrap();
    let shards =
        assign(&Histogram, "seed", &router, &file, &folder.path().join("o"), &mut silent).unwrap().shards;
    let sizes: Vec<u64> =
        shards.shards().iter().map(|shard| shard.documents).filter(|&size| size > 0).collect();
    assert_eq!(sizes, [8, 22]);
    assert_eq!(shards.open_shard(PathId(paths - 1)).unwrap().document(0), file.document(1));
}

#[test]
fn statistics_say_sizes_balance_and_examples() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 200);
    let router = fitted(&file, TOPICS);
    let shards =
        assign(&Histogram, "seed", &router, &file, &folder.path().join("o"), &mut silent).unwrap().shards;
    let statistics = inspect(&shards, 3, 10).unwrap();
    assert_eq!((statistics.documents, statistics.tokens), (200, file.tokens()));
    assert!((statistics.balance - 1.0).abs() < 1e-12, "{}", statistics.balance);
    assert!((statistics.largest_over_mean - 1.0).abs() < 1e-12);
    assert!((statistics.rows.iter().map(|row| row.inertia_share).sum::<f64>() - 1.0).abs() < 1e-12);
    for row in &statistics.rows {
        assert_eq!(row.documents, 50);
        assert_eq!(row.examples.len(), 3);
        assert!(row.examples.iter().all(|example| !example.tokens.is_empty() && example.tokens.len() <= 10));
    }
    let table = statistics.to_string();
    assert!(table.contains("25.0 %") && table.contains("balance 1.000"), "{table}");
}
