//! A tiny Llama for the tests of this package, with the numbers of `fixtures/llama.py`.

// Every test file compiles these helpers and uses some of them.
#![allow(dead_code)]

use std::sync::Arc;

use dipaco_model::*;
use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};
use serde_json::Value;

pub(crate) const BATCH: usize = 2;
pub(crate) const TIME: usize = 12;

pub(crate) fn config(tied: bool) -> ModelConfig {
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
pub(crate) fn grouped() -> ModelConfig {
    ModelConfig { heads: 8, kv_heads: Some(2), ..config(true) }
}

pub(crate) fn dense() -> Topology {
    Topology::new(&TopologyConfig::dense(2), 2).unwrap()
}

/// Two levels, each with a block; the first holds the embedding and the head.
pub(crate) fn two_levels() -> Topology {
    let level = |blocks: &str, rest| LevelConfig {
        modules: Modules::Count(2),
        blocks: blocks.into(),
        embedding: rest,
        head: rest,
        frozen: false,
    };
    Topology::new(&TopologyConfig::grid(1, vec![level("0", true), level("1", false)]), 2).unwrap()
}

/// One sequence on packed weights of a path.
pub(crate) struct Decoder {
    stepper: Stepper,
    modules: Vec<Arc<PackedModule>>,
    kv: StepPages,
    length: usize,
}

impl Decoder {
    pub(crate) fn new(config: &ModelConfig, topology: &Topology, weights: &ModuleWeights) -> Self {
        let modules = split(config, topology, weights).unwrap();
        let pack = |(level, module)| {
            PackedModule::new(config, topology, level, module, WeightFormat::F32).unwrap().into()
        };
        let modules = modules.iter().enumerate().map(pack).collect();
        let stepper = Stepper::new(config, topology).unwrap();
        Self { kv: stepper.pages(2, Dtype::F32), stepper, modules, length: 0 }
    }

    /// Appends tokens and returns the logits of each.
    pub(crate) fn append(&mut self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let Self { stepper, modules, kv, length } = self;
        let logits = Positions::All;
        let rows = StepSequence { modules, tokens, start: *length, stage: 0, pages: &[0, 1], logits };
        let logits = stepper.step(&[rows], kv)?.swap_remove(0);
        *length += tokens.len();
        Ok(logits)
    }
}

/// The same numbers as in `fixtures/llama.py`.
pub(crate) fn weights(config: &ModelConfig) -> ModuleWeights {
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

pub(crate) fn compose(
    config: &ModelConfig,
    topology: &Topology,
    path: &ModuleWeights,
    trainable: bool,
) -> Path {
    let modules = split(config, topology, path).unwrap();
    let load = |(level, module): (usize, &ModuleWeights)| {
        let load = if trainable && topology.trains(level) { Module::load_trainable } else { Module::load };
        Arc::new(load(module, &Device::Cpu).unwrap())
    };
    let modules: Vec<_> = modules.iter().enumerate().map(load).collect();
    Path::compose(config, topology, &modules).unwrap()
}

pub(crate) fn tokens() -> Vec<u32> {
    (0..BATCH).flat_map(|b| (0..TIME).map(move |i| ((7 * i + 13 * b + i * i) % 64) as u32)).collect()
}

pub(crate) fn targets() -> Vec<u32> {
    let target = |b, i| if b == 1 && i >= 8 { IGNORE } else { ((5 * i + 11 * b + 3) % 64) as u32 };
    (0..BATCH).flat_map(|b| (0..TIME).map(move |i| target(b, i))).collect()
}

/// Tokens and targets of a vocabulary, or of a number of outputs.
pub(crate) fn batch_of(
    tokens: &[u32],
    targets: &[u32],
    rows: usize,
    vocabulary: usize,
    outputs: usize,
) -> TokenBatch {
    let tokens = TokenRows::new(tokens, rows, vocabulary).unwrap();
    TokenBatch::new(tokens, targets, outputs).unwrap()
}

/// The batch of [`tokens`] and [`targets`].
pub(crate) fn batch() -> TokenBatch {
    batch_of(&tokens(), &targets(), BATCH, 64, 64)
}

pub(crate) fn rows(tokens: &[u32], rows: usize) -> TokenRows {
    TokenRows::new(tokens, rows, 64).unwrap()
}

pub(crate) fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

pub(crate) fn assert_close(
    found: impl IntoIterator<Item = f32>,
    expected: &[f64],
    tolerance: f64,
    what: &str,
) {
    let found: Vec<f32> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < tolerance, "{what}[{i}]: {found} is not {expected}");
    }
}
