//! Damaged routers and shard sets.

use std::fs;
use std::path::Path;

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::{ModelConfig, init};
use dipaco_topology::PathId;

use crate::feature_map::FeatureMap;
use crate::testing::{fitted_on, transformer_fitted_on};
use crate::{Example, Reserved, Router, Shard, ShardManifest, ShardSet, TransformerRouter};

/// Components of the features.
const WIDTH: usize = 4;

/// A router of one of the kinds, without its checksum.
fn router(rng: &mut CaseRng) -> Vec<u8> {
    let mut numbers = |count: usize| (0..count).map(|_| rng.random_range(-3f32..3.0)).collect::<Vec<_>>();
    let (centroids, biases, map) = (numbers(6 * WIDTH), numbers(6), numbers(WIDTH * (WIDTH + 1) / 2));
    let router = match rng.random_range(0..3) {
        0 => Router::kmeans(WIDTH, centroids, &biases, fitted_on()),
        1 => Router::product_kmeans(
            vec![2, 3],
            WIDTH,
            centroids[..5 * WIDTH / 2].to_vec(),
            &biases,
            fitted_on(),
        ),
        _ => Router::discriminative(WIDTH, centroids, &biases, fitted_on()),
    };
    let router = match rng.random_range(0..3) {
        0 => router,
        1 => router.and_then(|router| router.with_map(FeatureMap::Factors, &map[..WIDTH])),
        _ => router.and_then(|router| router.with_map(FeatureMap::Triangle, &map)),
    };
    let router = router.unwrap();
    let bytes = router.to_bytes();
    bytes[..bytes.len() - 32].to_vec()
}

#[test]
fn damaged_routers_are_refused_or_route() {
    Campaign::new("router").memory(1 << 20).play(router, |bytes| {
        // As it is, the checksum refuses it.
        assert!(Router::from_bytes(bytes).is_err());
        let sealed = [bytes, blake3::hash(bytes).as_bytes()].concat();
        match Router::from_bytes(&sealed) {
            Ok(router) => {
                let features = vec![0.5; router.dimension()];
                let ranked = router.ranked(&features, 3);
                assert!(router.route(&features).is_ok_and(|route| route.path.0 < router.paths()));
                assert!(ranked.is_ok_and(|ranked| ranked.iter().all(|(path, _)| path.0 < router.paths())));
                Reached::Accepted
            }
            Err(error)
                if ["begin like", "version", "was cut"]
                    .iter()
                    .any(|part| error.to_string().contains(part)) =>
            {
                Reached::Outside
            }
            Err(_) => Reached::Inside,
        }
    });
}

fn shard_set(rng: &mut CaseRng) -> Vec<u8> {
    let example = Example { document: 1, source_document: 2, score: 0.5 };
    let shards = (0..rng.random_range(1..4)).map(|path| Shard {
        path: PathId(path),
        documents: 3,
        tokens: 40,
        bytes: 900,
        content_hash: "ab".repeat(32),
        score: -1.5,
        nearest: vec![example; 2],
    });
    let reserved = Reserved { documents: 1, tokens: 5, content_hash: "cd".into(), share: 0.1, seed: 1 };
    let manifest = ShardManifest {
        format: "dipaco-shard-set".into(),
        version: crate::SHARD_SET_FORMAT_VERSION,
        router_hash: "aa".into(),
        seed_hash: "bb".into(),
        tokens_hash: "cc".into(),
        tokenizer_hash: "dd".into(),
        source_documents: 9,
        overlap: 1,
        devices: vec!["cpu".into(); rng.random_range(0..2)],
        reserved: rng.random::<bool>().then_some(reserved),
        shards: shards.collect(),
    };
    serde_json::to_vec(&manifest).unwrap()
}

#[test]
fn damaged_shard_sets_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    Campaign::new("shard-set").past(0.15).memory(1 << 20).cases(500).play(shard_set, |bytes| {
        fs::write(folder.path().join("shards.json"), bytes).unwrap();
        match ShardSet::open(folder.path()) {
            Ok(_) => Reached::Accepted,
            Err(error) if error.to_string().contains("can't be read") => Reached::Outside,
            Err(_) => Reached::Inside,
        }
    });
}

fn transformer(folder: &Path) {
    let model = ModelConfig {
        hidden_size: 8,
        blocks: 1,
        heads: 1,
        head_dim: 8,
        ffn_size: 8,
        vocab_size: 20,
        context: 12,
        tie_embeddings: true,
        ..ModelConfig::default()
    };
    let weights = init(&model.with_outputs(5), 1).unwrap();
    TransformerRouter::save(folder, &model, 5, &weights, transformer_fitted_on()).unwrap();
}

#[test]
fn damaged_transformer_routers_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    transformer(folder.path());
    let header = folder.path().join("transformer.json");
    let whole = fs::read(&header).unwrap();
    Campaign::new("transformer-router").past(0.15).memory(4 << 20).cases(300).play(
        |_| whole.clone(),
        |bytes| {
            fs::write(&header, bytes).unwrap();
            match TransformerRouter::open(folder.path()) {
                Ok(router) => {
                    assert!(router.is_some());
                    Reached::Accepted
                }
                Err(error) if error.to_string().contains("can't be read") => Reached::Outside,
                Err(_) => Reached::Inside,
            }
        },
    );
}
