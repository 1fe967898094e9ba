//! The model compared with Hugging Face's Llama, and the guarantees for its users.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::*;
use dipaco_topology::{LevelConfig, Modules, PathId, Topology, TopologyConfig};
use serde_json::Value;

const BATCH: usize = 2;
const TIME: usize = 12;

fn config(tied: bool) -> ModelConfig {
    ModelConfig {
        hidden_size: 32,
        blocks: 2,
        heads: 2,
        head_dim: 16,
        ffn_size: 48,
        vocab_size: 64,
        context: 32,
        tie_embeddings: tied,
        ..ModelConfig::default()
    }
}

/// Four heads of queries share each head of keys and values.
fn grouped() -> ModelConfig {
    ModelConfig { heads: 8, kv_heads: Some(2), ..config(true) }
}

fn dense() -> Topology {
    Topology::new(&TopologyConfig::dense(2), 2).unwrap()
}

/// Two levels, each with a block; the first holds the embedding and the head.
fn two_levels() -> Topology {
    let level = |blocks: &str, rest| LevelConfig {
        modules: Modules::Count(2),
        blocks: blocks.into(),
        embedding: rest,
        head: rest,
    };
    Topology::new(&TopologyConfig { replicas: 1, levels: vec![level("0", true), level("1", false)] }, 2)
        .unwrap()
}

/// One sequence on packed weights of a path.
struct Decoder {
    stepper: Stepper,
    modules: Vec<Arc<PackedModule>>,
    kv: KvPages,
    length: usize,
}

impl Decoder {
    fn new(config: &ModelConfig, topology: &Topology, weights: &ModuleWeights) -> Self {
        let modules = split(config, topology, weights).unwrap();
        let pack = |(level, module)| PackedModule::new(config, topology, level, module).unwrap().into();
        let modules = modules.iter().enumerate().map(pack).collect();
        let stepper = Stepper::new(config, topology).unwrap();
        Self { kv: stepper.pages(2, Dtype::F32), stepper, modules, length: 0 }
    }

    /// Appends tokens and returns the logits of each.
    fn append(&mut self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let Self { stepper, modules, kv, length } = self;
        let logits = Positions::All;
        let rows = StepSequence { modules, tokens, start: *length, pages: &[0, 1], logits };
        let logits = stepper.step(&[rows], kv)?.swap_remove(0);
        *length += tokens.len();
        Ok(logits)
    }
}

/// The same numbers as in `fixtures/llama.py`.
fn weights(config: &ModelConfig) -> ModuleWeights {
    let specs: Arc<[TensorSpec]> = path_specs(config).into();
    let number = |tensor: usize, i: usize| {
        let x = ((tensor * 1_000_003 + i) as u64 * 2_654_435_761 % (1 << 32)) as u32;
        let x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
        f64::from((x ^ (x >> 13)) >> 8) / 16_777_216.0 * 0.5 - 0.25
    };
    let values = specs.iter().enumerate().flat_map(|(t, spec)| {
        let one = if spec.decay { 0.0 } else { 1.0 };
        (0..spec.parameters()).map(move |i| (number(t, i) + one) as f32)
    });
    let values = values.collect();
    ModuleWeights::new(specs, values).unwrap()
}

fn compose(config: &ModelConfig, topology: &Topology, path: &ModuleWeights, trainable: bool) -> Path {
    let modules = split(config, topology, path).unwrap();
    let load = if trainable { Module::load_trainable } else { Module::load };
    let modules: Vec<_> = modules.iter().map(|m| Arc::new(load(m, &Device::Cpu).unwrap())).collect();
    Path::compose(config, topology, &modules).unwrap()
}

fn tokens() -> Vec<u32> {
    (0..BATCH).flat_map(|b| (0..TIME).map(move |i| ((7 * i + 13 * b + i * i) % 64) as u32)).collect()
}

fn targets() -> Vec<u32> {
    let target = |b, i| if b == 1 && i >= 8 { IGNORE } else { ((5 * i + 11 * b + 3) % 64) as u32 };
    (0..BATCH).flat_map(|b| (0..TIME).map(move |i| target(b, i))).collect()
}

/// Tokens and targets of a vocabulary, or of a number of outputs.
fn batch_of(tokens: &[u32], targets: &[u32], rows: usize, vocabulary: usize, outputs: usize) -> TokenBatch {
    let tokens = TokenRows::new(tokens, rows, vocabulary).unwrap();
    TokenBatch::new(tokens, targets, outputs).unwrap()
}

/// The batch of [`tokens`] and [`targets`].
fn batch() -> TokenBatch {
    batch_of(&tokens(), &targets(), BATCH, 64, 64)
}

fn rows(tokens: &[u32], rows: usize) -> TokenRows {
    TokenRows::new(tokens, rows, 64).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn assert_close(found: impl IntoIterator<Item = f32>, expected: &[f64], tolerance: f64, what: &str) {
    let found: Vec<f32> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < tolerance, "{what}[{i}]: {found} is not {expected}");
    }
}

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
fn decoding_in_any_pieces_scores_as_the_training_pass() {
    for config in [config(false), grouped()] {
        decode_in_pieces(&config);
    }
}

fn decode_in_pieces(config: &ModelConfig) {
    let path = compose(config, &two_levels(), &weights(config), false);
    let (tokens, targets) = (tokens(), targets());
    let scores = path.token_log_probs(&batch()).unwrap();
    let mean = -scores.iter().sum::<f32>() / 20.0;
    assert!((mean - path.loss(&batch()).unwrap().mean).abs() < 1e-6);
    for pieces in [vec![12], vec![1; 12], vec![5, 1, 6], vec![11, 1]] {
        let mut decoder = Decoder::new(config, &two_levels(), &weights(config));
        let (mut logits, mut rest) = (Vec::new(), &tokens[..TIME]);
        for piece in pieces {
            logits.extend(decoder.append(&rest[..piece]).unwrap());
            rest = &rest[piece..];
        }
        for ((row, &target), score) in logits.chunks(64).zip(&targets).zip(&scores) {
            let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            assert!((f64::from(row[target as usize]) - sum.ln() - f64::from(*score)).abs() < 1e-5);
        }
    }
}

/// The same function with a head of keys and values for each head of queries.
fn repeated(config: &ModelConfig, path: &ModuleWeights) -> (ModelConfig, ModuleWeights) {
    let (plain, group) =
        (ModelConfig { kv_heads: None, ..config.clone() }, config.heads / config.key_value_heads());
    let head = config.head_dim * config.hidden_size;
    let tensors = path.tensors().flat_map(|(spec, values)| {
        let shared = spec.name.contains("k_proj") || spec.name.contains("v_proj");
        let times = if shared { group } else { 1 };
        let part = if shared { head } else { values.len() };
        values.chunks(part).flat_map(move |part| std::iter::repeat_n(part, times)).flatten().copied()
    });
    let values = tensors.collect();
    let specs: Arc<[TensorSpec]> = path_specs(&plain).into();
    (plain, ModuleWeights::new(specs, values).unwrap())
}

#[test]
fn shared_keys_and_values_are_repeated_ones_and_their_gradients_add_up() {
    let config = grouped();
    let shared = weights(&config);
    let (plain, copies) = repeated(&config, &shared);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let with = |config: &ModelConfig, weights| {
            let config = ModelConfig { dtype, ..config.clone() };
            compose(&config, &two_levels(), weights, true)
        };
        let (ours, theirs) = (with(&config, &shared), with(&plain, &copies));
        let logits = |config: &ModelConfig, weights: &ModuleWeights| {
            Decoder::new(config, &two_levels(), weights).append(&tokens()[..TIME]).unwrap()
        };
        assert_eq!(logits(&config, &shared), logits(&plain, &copies));
        let scores = |path: &Path| path.token_log_probs(&batch()).unwrap();
        assert_eq!(scores(&ours), scores(&theirs));
        let (loss, ours) = ours.gradients(&batch(), BATCH).unwrap();
        let (expected, theirs) = theirs.gradients(&batch(), BATCH).unwrap();
        assert_eq!(loss, expected);
        let tolerance = if dtype == Dtype::F32 { 2e-6 } else { 2e-3 };
        for ((spec, ours), (_, theirs)) in ours.tensors().zip(theirs.tensors()) {
            let head = config.head_dim * config.hidden_size;
            let expected: Vec<f64> = if ours.len() == theirs.len() {
                theirs.iter().map(|&g| f64::from(g)).collect()
            } else {
                let group = |group: &[f32]| -> Vec<f64> {
                    (0..head)
                        .map(|i| group.iter().skip(i).step_by(head).map(|&g| f64::from(g)).sum())
                        .collect()
                };
                theirs.chunks(4 * head).flat_map(group).collect()
            };
            assert_close(ours.iter().copied(), &expected, tolerance, &spec.name);
        }
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
fn outputs_at_positions_are_those_of_decoding_and_do_not_depend_on_later_tokens() {
    let config = config(true).with_outputs(5);
    let path = compose(&config, &dense(), &weights(&config), false);
    assert_eq!(path_specs(&config).last().unwrap().shape, [5, 32]);
    let mut tokens = tokens();
    let found = path.position_logits(&rows(&tokens, BATCH), &[4, 7]).unwrap();
    assert_eq!(found.len(), BATCH * 2 * 5);
    for (row, found) in tokens.chunks_exact(TIME).zip(found.chunks_exact(10)) {
        let all = Decoder::new(&config, &dense(), &weights(&config)).append(row).unwrap();
        for (at, found) in [4, 7].into_iter().zip(found.chunks_exact(5)) {
            let expected = &all[at * 5..][..5];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
        }
    }
    tokens[8..TIME].fill(1);
    tokens[TIME + 8..].fill(2);
    let tokens = rows(&tokens, BATCH);
    assert_eq!(path.position_logits(&tokens, &[4, 7]).unwrap(), found);
    assert!(path.position_logits(&tokens, &[TIME]).is_err());
    let gradients = compose(&config, &dense(), &weights(&config), true);
    let batch = batch_of(tokens.ids(), &[4; BATCH * TIME], BATCH, 64, 5);
    let (loss, _) = gradients.gradients(&batch, BATCH).unwrap();
    assert_eq!(loss.mean, path.loss(&batch).unwrap().mean);
    let six = batch_of(tokens.ids(), &[4; BATCH * TIME], BATCH, 64, 6);
    assert!(path.loss(&six).is_err(), "there is no output 5");
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

#[test]
fn initial_weights_follow_the_seed_and_the_recipe() {
    let config = ModelConfig { hidden_size: 128, ffn_size: 256, ..config(false) };
    let weights = init(&config, 1).unwrap();
    assert_eq!(weights, init(&config, 1).unwrap());
    assert_ne!(weights, init(&config, 2).unwrap());
    for (spec, values) in weights.tensors() {
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        let std =
            (values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        let residual = spec.name.contains("o_proj") || spec.name.contains("down_proj");
        // PyTorch's nn.Linear draws from ±1/√inputs, evenly: a standard deviation of 1/√(3 · inputs).
        let inputs = *spec.shape.last().unwrap() as f64;
        let expected = 1.0 / (3.0 * inputs).sqrt() * if residual { 0.5 } else { 1.0 };
        match spec.decay {
            true => assert!(
                (std / expected - 1.0).abs() < 0.05 && mean.abs() < 0.0025,
                "{}: {mean} {std}",
                spec.name
            ),
            false => assert!(values.iter().all(|&x| x == 1.0), "{}", spec.name),
        }
    }
    let given = init(&ModelConfig { init_std: Some(0.02), ..config }, 1).unwrap();
    let (_, embedding) = given.tensors().next().unwrap();
    let square = embedding.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / embedding.len() as f64;
    assert!((square.sqrt() / 0.02 - 1.0).abs() < 0.05, "a given deviation holds for every matrix: {square}");
    let embedding_stays = init(&ModelConfig { embedding_decay: false, ..config }, 1).unwrap();
    assert_eq!(embedding_stays.values, weights.values, "weight decay does not change the start");
    let deeper = init(&ModelConfig { blocks: 3, ..config }, 1).unwrap();
    assert_eq!(
        deeper.values[..64 * 128],
        weights.values[..64 * 128],
        "the numbers of a tensor do not depend on the other tensors"
    );
}

#[test]
fn modules_are_cut_and_put_together_without_loss() {
    for tied in [false, true] {
        let config = config(tied);
        let path = weights(&config);
        let modules = split(&config, &two_levels(), &path).unwrap();
        let names: Vec<_> = modules[0].specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names[0], "model.embed_tokens.weight");
        assert_eq!(names.last(), Some(&if tied { "model.norm.weight" } else { "lm_head.weight" }));
        assert_eq!(modules[1].specs.len(), 9);
        assert_eq!(join(&config, &two_levels(), &modules).unwrap(), path);
        let swapped = [modules[1].clone(), modules[0].clone()];
        assert!(
            join(&config, &two_levels(), &swapped).is_err()
                && join(&config, &two_levels(), &modules[..1]).is_err()
        );
    }
    assert_eq!(two_levels().modules_of(PathId(1)).len(), 2);
}

#[test]
fn safetensors_keep_every_bit_and_refuse_what_does_not_fit() {
    let config = config(false);
    let module = split(&config, &two_levels(), &weights(&config)).unwrap().remove(1);
    let bytes = module.to_safetensors(Some(("round", "3"))).unwrap();
    assert_eq!(ModuleWeights::from_safetensors(&bytes, module.specs.clone()).unwrap(), module);

    let other: Arc<[TensorSpec]> = level_specs(&config, &two_levels(), 0).into();
    let error = ModuleWeights::from_safetensors(&bytes, other).unwrap_err().to_string();
    assert!(error.contains("model.layers.1."), "{error}");
    let wide = ModelConfig { ffn_size: 64, ..config };
    let error =
        ModuleWeights::from_safetensors(&bytes, level_specs(&wide, &two_levels(), 1).into()).unwrap_err();
    assert!(error.to_string().contains("[48, 32] in the file, but the model has [64, 32]"), "{error}");
    for cut in [0, 7, 100, bytes.len() - 1] {
        assert!(ModuleWeights::from_safetensors(&bytes[..cut], module.specs.clone()).is_err());
    }
    let mut short = module;
    short.values.pop();
    assert!(short.to_safetensors(None).is_err() && Module::load(&short, &Device::Cpu).is_err());
}

/// Each value as its own four little-endian bytes.
struct ValueByValue<'a> {
    shape: &'a [usize],
    values: &'a [f32],
}

impl safetensors::View for ValueByValue<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        4 * self.values.len()
    }
}

#[test]
fn safetensors_hold_each_value_in_little_endian() {
    let config = config(false);
    let mut module = split(&config, &two_levels(), &weights(&config)).unwrap().remove(0);
    let special = [-0.0, f32::NAN, f32::NEG_INFINITY, f32::MIN_POSITIVE / 2.0, f32::MAX];
    module.values[..special.len()].copy_from_slice(&special);
    let views =
        module.tensors().map(|(spec, values)| (&spec.name, ValueByValue { shape: &spec.shape, values }));
    let metadata = [("round".to_owned(), "3".to_owned())].into();
    let expected = safetensors::serialize(views, Some(metadata)).unwrap();
    assert!(module.to_safetensors(Some(("round", "3"))).unwrap() == expected);
}

#[test]
fn an_export_is_read_back_and_names_the_keys_of_all_readers() {
    let config = config(false);
    let path = weights(&config);
    let special = SpecialTokens { end_of_text: 2, end_of_text_text: "<|endoftext|>".into() };
    let files: BTreeMap<_, _> = export_llama(&config, &path, &special, b"{}").unwrap().into_iter().collect();
    assert_eq!(import_llama(&config, &files["model.safetensors"]).unwrap(), path);
    assert!(files["model.safetensors"].windows(15).any(|window| window == br#"{"format":"pt"}"#));
    let json: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    assert_eq!(json["rope_theta"], json["rope_parameters"]["rope_theta"]);
    assert_eq!((&json["head_dim"], &json["eos_token_id"]), (&16.into(), &2.into()));
    let tokenizer: Value = serde_json::from_slice(&files["tokenizer_config.json"]).unwrap();
    assert_eq!(tokenizer["clean_up_tokenization_spaces"], false);
    let outside = SpecialTokens { end_of_text: 64, ..special };
    assert!(matches!(export_llama(&config, &path, &outside, b"{}"), Err(ModelError::Token { .. })));
}

#[test]
fn configurations_that_do_not_fit_are_named() {
    let message = |config: ModelConfig| config.check().unwrap_err().to_string();
    assert!(message(ModelConfig { heads: 0, ..config(false) }).starts_with("model.heads: is 0"));
    assert!(message(ModelConfig { head_dim: 15, ..config(false) }).starts_with("model.head_dim: is 15"));
    let wide = ModelConfig { heads: 1 << 15, head_dim: 64, ..config(false) };
    assert!(message(wide).starts_with("model.heads × model.head_dim"));
    for kv_heads in [0, 3, 4] {
        let message = message(ModelConfig { heads: 2, kv_heads: Some(kv_heads), ..config(false) });
        assert!(
            message.starts_with(&format!("model.kv_heads: is {kv_heads}: it must divide model.heads = 2")),
            "{message}"
        );
    }
    assert!(message(ModelConfig { rope_theta: f64::NAN, ..config(false) }).starts_with("model.rope_theta"));

    let apart = Topology::new(
        &TopologyConfig {
            replicas: 1,
            levels: vec![
                LevelConfig {
                    modules: Modules::Count(1),
                    blocks: "0..2".into(),
                    embedding: true,
                    head: false,
                },
                LevelConfig {
                    modules: Modules::Count(2),
                    blocks: String::new(),
                    embedding: false,
                    head: true,
                },
            ],
        },
        2,
    )
    .unwrap();
    let error = config(true).check_topology(&apart).unwrap_err().to_string();
    assert!(error.starts_with("model.tie_embeddings: is true"), "{error}");
    assert!(config(false).check_topology(&apart).is_ok());
    assert!(ModelConfig { blocks: 3, ..config(false) }.check_topology(&apart).is_err());
    assert!(config(false).with_vocabulary(65).is_err() && init(&ModelConfig::default(), 1).is_err());
    assert_eq!(ModelConfig::default().with_vocabulary(65).unwrap().vocab_size, 65);
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let config = config(false);
    let path = compose(&config, &dense(), &weights(&config), false);
    let one = |length: usize, vocabulary, outputs| {
        batch_of(&vec![1; length], &vec![1; length], 1, vocabulary, outputs)
    };
    assert!(matches!(path.loss(&one(33, 64, 64)), Err(ModelError::Context { positions: 33, context: 32 })));
    for larger in [one(1, 65, 64), one(1, 64, 65)] {
        let refused = path.loss(&larger);
        assert!(
            matches!(refused, Err(ModelError::Operation(OpsError::Vocabulary { ids: 65, entries: 64, .. }))),
            "{refused:?}"
        );
        assert!(path.token_log_probs(&larger).is_err());
    }
    let larger = TokenRows::new(vec![1], 1, 65).unwrap();
    assert!(path.features(&larger, &[1]).is_err() && path.position_logits(&larger, &[0]).is_err());
    let none = path.loss(&batch_of(&[1; 4], &[IGNORE; 4], 1, 64, 64)).unwrap();
    assert_eq!((none.counted, none.mean), (0, 0.0));
}

#[test]
fn damaged_weights_are_refused_or_read() {
    let config = ModelConfig { hidden_size: 4, head_dim: 2, ffn_size: 4, vocab_size: 5, ..config(false) };
    let specs: Arc<[TensorSpec]> = path_specs(&config).into();
    let valid = |rng: &mut CaseRng| {
        let values = (0..parameters(&specs)).map(|_| rng.random_range(-1f32..1.0)).collect();
        let weights = ModuleWeights::new(specs.clone(), values).unwrap();
        weights.to_safetensors(Some(("a", "1"))).unwrap()
    };
    let reached = |bytes: &[u8]| match ModuleWeights::from_safetensors(bytes, specs.clone()) {
        Ok(weights) => {
            assert_eq!(weights.values.len(), parameters(&specs));
            Reached::Accepted
        }
        Err(ModelError::Safetensors(_)) => Reached::Outside,
        Err(_) => Reached::Inside,
    };
    // Most damage hits the JSON of the header, where a single byte ends it.
    Campaign::new("safetensors").past(0.05).memory(1 << 20).play(valid, reached);
}
