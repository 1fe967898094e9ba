mod damaged;
mod parts;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use dipaco_shards::ShardsError;

use super::*;
use crate::features::silent;
use crate::progress::RoutingProgress;
use crate::testing::{Histogram, TOPICS, corpus};
use crate::{RouterConfig, fit, inspect, shard_file_name};

fn fitted(file: &TokenSet, paths: u32) -> Router {
    fit(&Histogram, "seed", file, &[paths], 1, &RouterConfig::default(), &mut silent).unwrap().router
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
        let rows = file.rows(prefix.to_vec(), 1).unwrap();
        let features = Histogram.features(&rows, &[prefix.len()]).unwrap();
        expected.entry(router.route(&features).unwrap().path).or_default().push(tokens);
    }
    let shards = ShardSet::open(&out).unwrap();
    assert_eq!(shards, assigned.shards);
    shards.check_router(&router).unwrap();
    shards.check_trainable(|_| true).unwrap();
    assert_eq!(shards.paths(), TOPICS);
    for shard in shards.shards() {
        let tokens = shards.open_shard(shard.path).unwrap();
        tokens.verify().unwrap();
        let documents: Vec<_> =
            (0..tokens.documents()).map(|document| tokens.document(document).to_vec()).collect();
        assert_eq!(documents, expected[&shard.path], "path {}", shard.path);
        assert_eq!((shard.documents, shard.tokens), (tokens.documents(), tokens.tokens()));
        assert!(tokens.info().origin.contains(router.hash()));
        assert_eq!(shard.nearest.len(), tally::EXAMPLES);
        assert!(shard.nearest.is_sorted_by(|a, b| a.score >= b.score));
        for example in &shard.nearest {
            assert_eq!(tokens.document(example.document), file.document(example.source_document));
        }
    }
    let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2 * TOPICS as usize + 1, "{left:?}");
}

#[test]
fn finished_shards_are_skipped_and_damaged_shards_are_written_again() {
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
    assert!(!out.join(shard_file_name(PathId(2))).exists() && !out.join("path-002").exists());
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
    let router =
        Router::kmeans(router.dimension(), vec![0.0; router.dimension()], &[0.0], fitted_on).unwrap();
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
    let router = Router::kmeans(dimension, centroids, &[0.0; 3], fitted_on).unwrap();
    let out = folder.path().join("train");
    let shards = assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().shards;
    assert_eq!(shards.empty_paths().collect::<Vec<_>>(), [PathId(1), PathId(2)]);
    let message = shards.check_trainable(|_| true).unwrap_err().to_string();
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
            (0, RoutingProgress::Documents { .. }) | (1, RoutingProgress::Shards { done: 0, .. }) => {
                ControlFlow::Break(())
            }
            (2, RoutingProgress::Shards { done, total }) if done == total => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let error = assign(&Histogram, "seed", &router, &file, &out, &mut stop).unwrap_err();
        assert!(matches!(error, RoutingError::Cancelled), "{error}");
        let left: Vec<_> = bytes_of(&out).into_keys().collect();
        let listed: Vec<_> = left.iter().filter(|name| name.ends_with(".json")).collect();
        assert!(listed.is_empty(), "stage {stage}: {listed:?}");
        let decisions = left.iter().filter(|name| name.starts_with("parts/")).count();
        assert_eq!(decisions, 1, "stage {stage}: the decisions are kept: {left:?}");
    }
}

#[test]
fn a_run_can_be_stopped_while_the_text_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 100);
    let router = fitted(&file, 2);
    let out = folder.path().join("train");
    let mut steps = Vec::new();
    let mut stop = |step| {
        steps.push(step);
        ControlFlow::Break(())
    };
    let error = Assignment::new(&Histogram, "seed", &router, &file, &out).run(&mut stop).unwrap_err();
    assert!(matches!(error, RoutingError::Cancelled), "{error}");
    assert!(matches!(steps[..], [RoutingProgress::Verify { .. }]), "{steps:?}");
}

#[test]
fn of_many_paths_most_have_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 30);
    let fitted_on = fitted(&file, 2).fitted_on().clone();
    let dimension = Histogram.dimension();
    let paths = 130;
    let mut centroids = vec![50.0; 130 * dimension];
    centroids[..dimension].fill(0.0);
    let last = centroids.len() - dimension;
    centroids[last..].fill(0.0);
    // Topic 0 is nearest to the first path, the others to the last.
    centroids[1..6].fill(0.2);
    let router = Router::kmeans(dimension, centroids, &vec![0.0; paths as usize], fitted_on).unwrap();
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
    for row in &statistics.rows {
        assert_eq!(row.documents, 50);
        assert_eq!(row.examples.len(), 3);
        assert!(row.examples.iter().all(|example| !example.tokens.is_empty() && example.tokens.len() <= 10));
    }
    let table = statistics.to_string();
    assert!(table.contains("25.0 %") && table.contains("balance 1.000"), "{table}");
}

/// The files below a folder, by their path in it.
fn bytes_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let place = entry.unwrap().path();
        let name = place.file_name().unwrap().to_str().unwrap().to_owned();
        if place.is_dir() {
            found.extend(
                bytes_of(&place).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)),
            );
        } else {
            found.insert(name, std::fs::read(place).unwrap());
        }
    }
    found
}

/// A router whose batches are of one document, so that few documents make several sections: 230 make three.
fn small_batches(file: &TokenSet) -> Router {
    let config = RouterConfig { batch_documents: 1, ..RouterConfig::default() };
    fit(&Histogram, "seed", file, &[TOPICS], 1, &config, &mut silent).unwrap().router
}

#[test]
fn overlapping_shards_hold_each_document_in_its_best_paths() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 120);
    let router = fitted(&file, TOPICS);
    let out = folder.path().join("train");
    let assignment = Assignment::new(&Histogram, "seed", &router, &file, &out).overlap(2);
    let shards = assignment.run(&mut silent).unwrap().shards;
    let mut expected: BTreeMap<PathId, Vec<Vec<u32>>> = BTreeMap::new();
    for document in 0..file.documents() {
        let tokens = file.document(document).to_vec();
        let prefix = &tokens[..tokens.len().min(32)];
        let rows = file.rows(prefix.to_vec(), 1).unwrap();
        let features = Histogram.features(&rows, &[prefix.len()]).unwrap();
        for (path, _) in router.ranked(&features, 2).unwrap() {
            expected.entry(path).or_default().push(tokens.clone());
        }
    }
    for shard in shards.shards() {
        let tokens = shards.open_shard(shard.path).unwrap();
        let documents: Vec<_> =
            (0..tokens.documents()).map(|document| tokens.document(document).to_vec()).collect();
        assert_eq!(documents, expected[&shard.path], "path {}", shard.path);
    }
    let statistics = inspect(&shards, 0, 0).unwrap();
    assert_eq!((statistics.documents, statistics.overlap), (240, 2));
    assert!(statistics.to_string().contains("its 2 best paths"), "{statistics}");
    // Other shards are wanted, and made.
    assert!(assignment.run(&mut silent).unwrap().skipped);
    assert!(!assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().skipped);
    // There are not more than all paths.
    let all = Assignment::new(&Histogram, "seed", &router, &file, &out).overlap(9).run(&mut silent).unwrap();
    assert!(all.shards.shards().iter().all(|shard| shard.documents == 120));
}

#[test]
fn documents_reserved_for_the_router_are_in_no_shard() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 200);
    let router = fitted(&file, TOPICS);
    let out = folder.path().join("train");
    let assignment = Assignment::new(&Histogram, "seed", &router, &file, &out).reserve(0.2, 7);
    let shards = assignment.run(&mut silent).unwrap().shards;
    let reserved = shards.open_router_documents().unwrap().unwrap();
    let is_reserved = |tokens: &[u32]| crate::is_router_document(tokens, 7, 0.2);
    let expected: Vec<_> = (0..file.documents())
        .map(|document| file.document(document).to_vec())
        .filter(|tokens| is_reserved(tokens))
        .collect();
    let found: Vec<_> =
        (0..reserved.documents()).map(|document| reserved.document(document).to_vec()).collect();
    assert_eq!(found, expected);
    assert!((1..100).contains(&found.len()));
    let mut trained = 0;
    for shard in shards.shards() {
        let tokens = shards.open_shard(shard.path).unwrap();
        assert!((0..tokens.documents()).all(|at| !is_reserved(&tokens.document(at).to_vec())));
        trained += tokens.documents();
    }
    assert_eq!(trained + reserved.documents(), file.documents());
    assert!(inspect(&shards, 0, 0).unwrap().to_string().contains("reserved for the router"));
    assert!(assignment.run(&mut silent).unwrap().skipped);
    // Without them there is no file of them either.
    let plain = assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().shards;
    assert!(plain.open_router_documents().unwrap().is_none());
    assert!(!out.join("router.json").exists() && !out.join("router").exists());
}

#[test]
fn a_stopped_assignment_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 230);
    let router = small_batches(&file);
    let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
    assign(&Histogram, "seed", &router, &file, &whole, &mut silent).unwrap();
    let mut begun = Vec::new();
    // Each call is stopped after 80 further documents, and the first that writes shards before it ends.
    loop {
        let mut first = None;
        let outcome = assign(&Histogram, "seed", &router, &file, &out, &mut |step| match step {
            RoutingProgress::Documents { done, .. } if done >= *first.get_or_insert(done) + 80 => {
                ControlFlow::Break(())
            }
            RoutingProgress::Shards { done, total } if done == total && begun.len() < 4 => {
                begun.push(u64::MAX);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        begun.extend(first);
        if outcome.is_ok() {
            break;
        }
        assert!(matches!(outcome, Err(RoutingError::Cancelled)));
    }
    assert_eq!(begun, [0, 80, u64::MAX, 160, 230]);
    assert_eq!(bytes_of(&out), bytes_of(&whole));
}

#[test]
fn a_damaged_text_is_not_routed() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 40);
    let router = fitted(&file, TOPICS);
    let path = file.path().to_owned();
    let second: Vec<u8> = file.document(1).iter().flat_map(|id| (id as u16).to_le_bytes()).collect();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(second.len()).position(|window| window == second).unwrap();
    bytes[at] = 21;
    drop(file);
    std::fs::write(&path, bytes).unwrap();
    let file = TokenSet::open(&path).unwrap();
    let refused = assign(&Histogram, "seed", &router, &file, &folder.path().join("shards"), &mut silent);
    assert!(matches!(refused, Err(RoutingError::Tokens { source: ShardsError::Damaged { .. }, .. })));
}
