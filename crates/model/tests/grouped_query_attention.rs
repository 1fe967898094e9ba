//! Heads of keys and values that several heads of queries share.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod support;

use std::sync::Arc;

use dipaco_model::*;
use support::*;

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
