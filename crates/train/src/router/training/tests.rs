use dipaco_model::init;
use dipaco_shards::{TokenFileInfo, TokenFileWriter};

use super::*;

const VOCABULARY: u32 = 32;

fn model() -> ModelConfig {
    ModelConfig {
        hidden_size: 16,
        blocks: 1,
        heads: 2,
        head_dim: 8,
        ffn_size: 24,
        vocab_size: VOCABULARY as usize,
        context: 24,
        tie_embeddings: true,
        init_std: Some(0.2),
        ..ModelConfig::default()
    }
}

/// Documents whose topic changes in the middle, and the scores of three paths. Each path knows one topic.
fn data(folder: &std::path::Path) -> (TokenSet, Vec<PathScores>) {
    let name = folder.join("router.h5");
    let info = TokenFileInfo {
        tokenizer_hash: "tokenizer".into(),
        vocab_size: VOCABULARY,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(&name, info).unwrap();
    let mut topics: Vec<u32> = Vec::new();
    for document in 0..120u32 {
        let topic = |place: u32| if place < 12 { document % 3 } else { document / 3 % 3 };
        let token = |place| 1 + topic(place) * 10 + (document * 7 + place * 3) % 10;
        let length = if document % 10 == 0 { 40 } else { 24 };
        let tokens: Vec<u32> = (0..length - 1).map(token).chain([0]).collect();
        writer.push_document(&tokens).unwrap();
        topics.extend((0..length).map(topic));
    }
    writer.finish().unwrap();
    let tokens = TokenSet::open(name).unwrap();
    let scores = (0..3u32).map(|path| {
        let of = |&topic: &u32| if topic == path { -1f32 } else { -3.0 };
        let bytes: Vec<u8> = topics.iter().flat_map(|topic| of(topic).to_le_bytes()).collect();
        std::fs::write(folder.join(format!("path-{path:03}.f32")), bytes).unwrap();
        let header = serde_json::json!({
            "format": "dipaco-path-scores/1", "path": path, "tokens_hash": tokens.content_hash(),
            "tokens": tokens.tokens(), "sequence_tokens": 24, "modules": [], "hash": "",
        });
        std::fs::write(folder.join(format!("path-{path:03}.json")), header.to_string()).unwrap();
        PathScores::open(folder, PathId(path), &tokens).unwrap()
    });
    let scores = scores.collect();
    (tokens, scores)
}

fn train(config: &TransformerRouterConfig) -> Result<TrainedRouter, RouterError> {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, mut scores) = data(folder.path());
    let seed = init(&model(), 1).unwrap();
    let training = RouterTraining {
        config,
        model: &model(),
        seed: &seed,
        tokens: &tokens,
        scores: &mut scores,
        order_seed: 1,
    };
    let mut steps = 0;
    let trained = train_router(training, &mut |step| {
        steps += 1;
        assert_eq!((step.step, step.steps), (steps, config.steps));
        ControlFlow::Continue(())
    });
    if trained.is_ok() {
        assert_eq!(steps, config.steps);
    }
    trained
}

fn config() -> TransformerRouterConfig {
    let mut config =
        TransformerRouterConfig { steps: 60, score_tokens: 1, validate_every: 20, ..Default::default() };
    config.adamw.learning_rate = 2e-2;
    config
}

#[test]
fn a_router_learns_the_best_path_with_equal_bits_each_time() {
    let trained = train(&config()).unwrap();
    let (found, blind) = (trained.held_out_loss.unwrap(), trained.blind_loss.unwrap());
    // The token tells its topic, and the topic tells the best path.
    assert!(found < 0.3 && blind > 1.0, "{found} nats, blind {blind}");
    assert_eq!(trained.weights.specs.last().unwrap().shape, [3, 16]);
    assert_eq!(train(&config()).unwrap(), trained);
}

#[test]
fn micro_batches_change_a_router_only_by_rounding() {
    fn square(values: impl Iterator<Item = f32>) -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    }
    let of = |micro_batch| train(&TransformerRouterConfig { steps: 5, micro_batch, ..config() }).unwrap();
    let (whole, parts) = (of(0), of(2));
    let (one, other) = (&whole.weights.values, &parts.weights.values);
    let distance = square(one.iter().zip(other).map(|(a, b)| a - b));
    assert!(distance > 0.0, "the batch was one pass");
    // Not for each weight: rounding can turn a gradient near 0 around, and AdamW takes a whole step in its direction.
    let length = square(one.iter().copied());
    assert!(distance < 1e-4 * length, "{distance} of {length}");
    let losses = [&whole, &parts].map(|router| router.held_out_loss.unwrap());
    assert!((losses[0] - losses[1]).abs() < 1e-2, "{losses:?}");
}

#[test]
fn without_held_out_documents_the_last_weights_are_kept() {
    let trained = train(&TransformerRouterConfig { steps: 5, holdout_fraction: 0.0, ..config() }).unwrap();
    assert_eq!((trained.steps, trained.held_out_loss, trained.blind_loss), (5, None, None));
}

#[test]
fn a_seed_of_another_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, mut scores) = data(folder.path());
    let seed = init(&ModelConfig { ffn_size: 32, ..model() }, 1).unwrap();
    let (config, model) = (config(), model());
    let training = RouterTraining {
        config: &config,
        model: &model,
        seed: &seed,
        tokens: &tokens,
        scores: &mut scores,
        order_seed: 1,
    };
    let refused = train_router(training, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(RouterError::SeedLength { .. })));
}
