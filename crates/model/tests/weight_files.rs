//! Weights: their start, their cut into modules, their files, and the export.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod support;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_model::*;
use dipaco_topology::PathId;
use serde_json::Value;
use support::*;

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
