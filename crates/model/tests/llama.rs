//! The model compared with Hugging Face's Llama, and the guarantees for its users.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod support;

use std::sync::Arc;

use dipaco_model::*;
use serde_json::Value;
use support::*;

#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    let fixture: Value = serde_json::from_str(include_str!("fixtures/llama.json")).unwrap();
    let stride = fixture["stride"].as_u64().unwrap() as usize;
    for (name, topology) in
        ["untied", "tied", "grouped"].iter().flat_map(|n| [(n, dense()), (n, two_levels())])
    {
        let expected = &fixture[name];
        let config = match *name {
            "grouped" => grouped(),
            name => config(name == "tied"),
        };
        let path = compose(&config, &topology, &weights(&config), true);
        let (loss, gradients) = path.gradients(&batch(), BATCH).unwrap();
        assert_eq!(loss.counted, 20);
        assert!((f64::from(loss.mean) - expected["loss"].as_f64().unwrap()).abs() < 2e-6);
        assert_eq!(path.loss(&batch()).unwrap(), loss);
        assert!(gradients.tensors().map(|(spec, _)| spec).eq(path.specs().iter()));
        for (spec, gradient) in gradients.tensors() {
            let name = &spec.name;
            assert_eq!(gradient.len(), spec.parameters());
            assert!(gradient.iter().any(|&g| g != 0.0), "{name} has no gradient");
            let expected = floats(&expected["gradients"][name]);
            assert_close(gradient.iter().step_by(stride).copied(), &expected, 2e-6, name);
        }

        let tokens = tokens();
        let logits = tokens
            .chunks(TIME)
            .flat_map(|row| Decoder::new(&config, &topology, &weights(&config)).append(row).unwrap());
        assert_close(logits, &floats(&expected["logits"]), 1e-5, "logits");
    }
}

#[test]
fn a_training_step_has_the_same_bits_for_any_number_of_threads() {
    let config = ModelConfig {
        hidden_size: 96,
        heads: 3,
        head_dim: 32,
        ffn_size: 160,
        vocab_size: 1000,
        context: 100,
        ..config(false)
    };
    let weights = init(&config, 3).unwrap();
    let tokens: Vec<u32> = (0..800).map(|i| (i * i * 31 + i * 17) % 1000).collect();
    let targets: Vec<u32> =
        tokens.iter().map(|t| if t % 9 == 0 { IGNORE } else { (t * 7 + 3) % 1000 }).collect();
    let batch = batch_of(&tokens, &targets, 8, 1000, 1000);
    let run = |threads, dtype, checkpointing| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let config = ModelConfig { dtype, ..config.clone() };
            let path = compose(&config, &two_levels(), &weights, true).with_checkpointing(checkpointing);
            let (loss, gradients) = path.gradients(&batch, 8).unwrap();
            let mut bits = vec![loss.mean.to_bits()];
            bits.extend(gradients.tensors().flat_map(|(_, g)| g).map(|x| x.to_bits()));
            bits.extend(path.token_log_probs(&batch).unwrap().iter().map(|x| x.to_bits()));
            bits.extend(path.features(batch.tokens(), &[32; 8]).unwrap().iter().map(|x| x.to_bits()));
            bits
        })
    };
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let one = run(1, dtype, false);
        assert!(one == run(2, dtype, false) && one == run(3, dtype, false), "{dtype:?}");
        assert!(one == run(2, dtype, true), "{dtype:?}: recomputing activations changes bits");
    }
}

#[test]
fn an_update_reaches_every_path_through_the_module() {
    let config = config(false);
    let topology = two_levels();
    let modules = split(&config, &topology, &weights(&config)).unwrap();
    let modules: Vec<_> =
        modules.iter().map(|m| Arc::new(Module::load_trainable(m, &Device::Cpu).unwrap())).collect();
    let path = Path::compose(&config, &topology, &modules).unwrap();
    let other = path.clone();
    let (before, gradients) = path.gradients(&batch(), BATCH).unwrap();
    let mut order = Vec::new();
    path.update(&gradients, |spec, params, gradient| {
        order.push(spec.clone());
        params.iter_mut().zip(gradient).for_each(|(p, g)| *p -= 0.5 * g);
    })
    .unwrap();
    assert_eq!(order, path_specs(&config));
    let after = other.loss(&batch()).unwrap().mean;
    assert!(after < before.mean - 0.05, "{after}");
    let joined: Vec<_> = modules.iter().map(|m| m.weights().unwrap()).collect();
    assert_eq!(join(&config, &topology, &joined).unwrap(), path.weights().unwrap());
}

#[test]
fn weights_that_are_not_trainable_get_no_gradient() {
    let config = config(false);
    let path = compose(&config, &dense(), &weights(&config), false);
    let refused = path.gradients(&batch(), BATCH);
    assert!(
        matches!(refused, Err(ModelError::NoGradient { tensor }) if tensor == "model.embed_tokens.weight")
    );
}

#[test]
fn gradients_of_micro_batches_add_up_to_those_of_the_batch() {
    for tied in [false, true] {
        let config = config(tied);
        let path = compose(&config, &two_levels(), &weights(&config), true);
        let all = |micro_batch| {
            let (loss, gradients) = path.gradients(&batch(), micro_batch).unwrap();
            let mut all = vec![loss.mean];
            all.extend(gradients.tensors().flat_map(|(_, gradient)| gradient));
            all
        };
        let whole = all(BATCH);
        for (one, other) in whole.iter().zip(all(1)) {
            assert!((one - other).abs() < 1e-6, "{one} is not {other}");
        }
        assert_eq!(whole, all(BATCH), "reused memory changes nothing");
        assert!(path.gradients(&batch(), 0).is_err());
    }
}

#[test]
fn bf16_products_stay_close_to_f32() {
    let config = config(false);
    let bf16 = ModelConfig { dtype: Dtype::Bf16, ..config };
    let run = |config: &ModelConfig| {
        let path = compose(config, &dense(), &weights(config), true);
        let (loss, gradients) = path.gradients(&batch(), BATCH).unwrap();
        let all: Vec<f32> = gradients.tensors().flat_map(|(_, gradient)| gradient).copied().collect();
        (loss.mean, all)
    };
    let ((exact_loss, exact), (loss, found)) = (run(&config), run(&bf16));
    assert!(loss != exact_loss && (loss - exact_loss).abs() < 0.01 * exact_loss, "{loss} {exact_loss}");
    let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let difference: Vec<f32> = exact.iter().zip(&found).map(|(a, b)| a - b).collect();
    // 8 bits of precision per operand, through two blocks.
    assert!(norm(&difference) < 0.02 * norm(&exact), "{} of {}", norm(&difference), norm(&exact));
}

#[test]
fn features_are_of_the_first_tokens_only() {
    let config = config(false);
    let path = compose(&config, &dense(), &weights(&config), false);
    let (mut tokens, lengths) = (tokens(), [TIME, 5]);
    let features = path.features(&rows(&tokens, BATCH), &lengths).unwrap();
    let alone = path.features(&rows(&tokens[TIME..TIME + 5], 1), &[5]).unwrap();
    tokens[TIME + 5..].fill(0);
    let tokens = rows(&tokens, BATCH);
    assert_eq!(features, path.features(&tokens, &lengths).unwrap(), "padding changes nothing");
    assert!(features[32..].iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5));
    for lengths in [&[13, 5][..], &[0, 5], &[5]] {
        assert!(path.features(&tokens, lengths).is_err(), "{lengths:?}");
    }
}

#[test]
fn features_of_fewer_blocks_are_those_of_a_shorter_model() {
    let config = config(false);
    let weights = weights(&config);
    let path = compose(&config, &dense(), &weights, false);
    let (ids, lengths) = (tokens(), [TIME, 5]);
    let tokens = rows(&ids, BATCH);
    let all = path.features(&tokens, &lengths).unwrap();
    assert_eq!(path.early_features(config.blocks, &tokens, &lengths).unwrap(), all);
    let one = path.early_features(1, &tokens, &lengths).unwrap();
    assert_eq!(one.len(), all.len());
    assert_ne!(one, all);
    assert!(path.early_features(config.blocks + 1, &tokens, &lengths).is_err());

    // Without blocks, a feature is the mean of the embeddings of the row's tokens.
    let none = path.early_features(0, &tokens, &lengths).unwrap();
    let (_, embedding) =
        weights.tensors().find(|(spec, _)| spec.name.ends_with("embed_tokens.weight")).unwrap();
    let width = config.hidden_size;
    for (row, &length) in lengths.iter().enumerate() {
        for component in 0..width {
            let of = |&id: &u32| f64::from(embedding[id as usize * width + component]);
            let mean = ids[row * TIME..][..length].iter().map(of).sum::<f64>() / length as f64;
            assert!((f64::from(none[row * width + component]) - mean).abs() < 1e-6);
        }
    }
}
