//! Paths with frozen levels.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use dipaco_model::*;
use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};

use support::*;

/// A level for each part of the model, of which those of the bits of `frozen` do not train. A tied head lies with the
/// embedding.
fn levels(tied: bool, frozen: u32) -> Option<Topology> {
    let level = |blocks: &str, embedding, head| LevelConfig {
        modules: Modules::Count(1),
        blocks: blocks.into(),
        embedding,
        head,
        frozen: false,
    };
    let mut levels = vec![level("", true, tied), level("0", false, false), level("1", false, false)];
    if !tied {
        levels.push(level("", false, true));
    }
    for (number, level) in levels.iter_mut().enumerate() {
        level.frozen = frozen >> number & 1 == 1;
    }
    Topology::new(&TopologyConfig::grid(1, levels), 2).ok()
}

/// The bits of the loss, and of the gradient of each tensor that has one.
fn bits(config: &ModelConfig, topology: &Topology, micro_batch: usize) -> (u32, BTreeMap<String, Vec<u32>>) {
    let path = compose(config, topology, &weights(config), true);
    let (loss, gradients) = path.gradients(&batch(), micro_batch).unwrap();
    let of = |(spec, values): (&TensorSpec, &[f32])| {
        (spec.name.clone(), values.iter().map(|value| value.to_bits()).collect())
    };
    (loss.mean.to_bits(), gradients.tensors().map(of).collect())
}

#[test]
fn what_trains_has_the_gradient_of_a_step_in_which_all_trains() {
    for tied in [false, true] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let config = ModelConfig { dtype, ..config(tied) };
            for micro_batch in [1, BATCH] {
                let (loss, all) = bits(&config, &levels(tied, 0).unwrap(), micro_batch);
                assert_eq!(all.len(), path_specs(&config).len());
                for frozen in 1..16 {
                    let Some(topology) = levels(tied, frozen) else { continue };
                    let specs = trained_specs(&config, &topology);
                    let expected: BTreeMap<_, _> =
                        specs.iter().map(|spec| (spec.name.clone(), all[&spec.name].clone())).collect();
                    assert!(!expected.is_empty() && (expected.len() < all.len() || frozen >> 3 == 1 && tied));
                    let found = bits(&config, &topology, micro_batch);
                    assert!(found == (loss, expected), "frozen {frozen:b}, tied {tied}, {dtype:?}");
                }
            }
        }
    }
}

#[test]
fn an_update_leaves_frozen_weights_alone() {
    let config = config(false);
    // The embedding and the first block.
    let topology = levels(false, 0b11).unwrap();
    let path = compose(&config, &topology, &weights(&config), true);
    let before = path.weights().unwrap();
    let (_, gradients) = path.gradients(&batch(), BATCH).unwrap();
    path.update(&gradients, |_, params, gradient| {
        params.iter_mut().zip(gradient).for_each(|(p, g)| *p -= 0.5 * g);
    })
    .unwrap();
    for ((spec, before), (_, after)) in before.tensors().zip(path.weights().unwrap().tensors()) {
        assert_eq!(before != after, topology.part_trains(spec.part), "{}", spec.name);
    }
    // Gradients of a path that trains other levels do not fit.
    let whole = compose(&config, &levels(false, 0).unwrap(), &weights(&config), true);
    assert!(whole.update(&gradients, |_, _, _| {}).is_err());
}
