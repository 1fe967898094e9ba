//! Configurations, batches and weight files that do not fit or are damaged.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_model::*;
use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};
use support::*;

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
        &TopologyConfig::grid(
            1,
            vec![
                LevelConfig {
                    modules: Modules::Count(1),
                    blocks: "0..2".into(),
                    embedding: true,
                    head: false,
                    frozen: false,
                },
                LevelConfig {
                    modules: Modules::Count(2),
                    blocks: String::new(),
                    embedding: false,
                    head: true,
                    frozen: false,
                },
            ],
        ),
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

/// The values of a file that comes in pieces, in the order of the specs.
fn streamed(bytes: &[u8], specs: &Arc<[TensorSpec]>) -> Result<Vec<f32>, ModelError> {
    let (mut stream, mut found) = (WeightStream::new(specs.clone(), bytes.len()), BTreeMap::new());
    for piece in bytes.chunks(7) {
        stream.read(piece, |spec, values| {
            found.insert(spec.name.clone(), values.to_vec());
            Ok(())
        })?;
    }
    stream.finish()?;
    let values: Vec<f32> = specs.iter().filter_map(|spec| found.remove(&spec.name)).flatten().collect();
    let mut reader = WeightReader::new(specs.clone(), bytes.len());
    bytes.chunks(5).try_for_each(|piece| reader.read(piece))?;
    let read = reader.finish()?.values;
    assert!(read.iter().zip(&values).all(|(one, other)| one.to_bits() == other.to_bits()));
    assert_eq!(read.len(), values.len());
    Ok(values)
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
            // The bits may be those of numbers that are unequal to themselves.
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&streamed(bytes, &specs).unwrap()), bits(&weights.values));
            Reached::Accepted
        }
        Err(_) if streamed(bytes, &specs).is_ok() => panic!("a piece by piece reader accepts it"),
        Err(ModelError::Safetensors(_)) => Reached::Outside,
        Err(_) => Reached::Inside,
    };
    // Most damage hits the JSON of the header, where a single byte ends it.
    Campaign::new("safetensors").past(0.05).memory(1 << 20).play(valid, reached);
}
