//! A module that is packed while its file comes piece by piece.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use dipaco_model::{
    Device, Dtype, ModelConfig, ModelError, Module, ModulePacker, ModuleWeights, PackedModule, Path,
    Positions, StepSequence, Stepper, TokenRows, WeightFormat, WeightStream, init, packing_bytes, split,
};
use dipaco_topology::{Topology, TopologyConfig};

const FORMATS: [WeightFormat; 4] =
    [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8_0, WeightFormat::Q4_0];

fn config(tied: bool) -> ModelConfig {
    ModelConfig {
        vocab_size: 200,
        hidden_size: 64,
        blocks: 2,
        heads: 3,
        head_dim: 32,
        kv_heads: Some(1),
        ffn_size: 96,
        context: 32,
        tie_embeddings: tied,
        ..ModelConfig::default()
    }
}

/// A path as one module, and its file.
fn module(config: &ModelConfig) -> (Topology, ModuleWeights, Vec<u8>) {
    let topology = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks).unwrap();
    let weights = split(config, &topology, &init(config, 3).unwrap()).unwrap().remove(0);
    let file = weights.to_safetensors(Some(("round", "3"))).unwrap();
    (topology, weights, file)
}

fn packed(
    config: &ModelConfig,
    topology: &Topology,
    (weights, file): (&ModuleWeights, &[u8]),
    piece: usize,
    format: WeightFormat,
) -> Result<PackedModule, ModelError> {
    let mut packer = ModulePacker::new(config, topology, 0, format)?;
    let mut stream = WeightStream::new(weights.specs.clone(), file.len());
    for piece in file.chunks(piece) {
        stream.read(piece, |spec, values| packer.add(&spec.name, values))?;
    }
    stream.finish()?;
    packer.finish()
}

fn logits(config: &ModelConfig, topology: &Topology, module: PackedModule) -> Vec<f32> {
    let stepper = Stepper::new(config, topology).unwrap();
    let mut pages = stepper.pages(2, Dtype::F32);
    let (modules, tokens) = ([Arc::new(module)], [7, 199, 0, 31]);
    let sequence = StepSequence {
        modules: &modules,
        tokens: &tokens,
        start: 0,
        stage: 0,
        pages: &[0],
        logits: Positions::All,
    };
    stepper.step(&[sequence], &mut pages).unwrap().remove(0)
}

#[test]
fn a_file_in_pieces_of_any_size_gives_the_bits_of_the_whole_module() {
    for tied in [false, true] {
        let config = config(tied);
        let (topology, weights, file) = module(&config);
        for format in FORMATS {
            let whole = PackedModule::new(&config, &topology, 0, &weights, format).unwrap();
            let (bytes, whole) = (whole.bytes(), logits(&config, &topology, whole));
            for piece in [1, 3, 4, 1001, file.len()] {
                let module = packed(&config, &topology, (&weights, &file), piece, format).unwrap();
                assert_eq!(module.bytes(), bytes, "{format}, pieces of {piece}");
                assert!(logits(&config, &topology, module) == whole, "{format}, pieces of {piece}");
            }
        }
    }
}

#[test]
fn a_module_that_is_not_whole_is_refused() {
    let config = config(false);
    let (topology, weights, file) = module(&config);
    for length in [0, 7, 100, file.len() - 1] {
        assert!(packed(&config, &topology, (&weights, &file[..length]), 64, WeightFormat::F32).is_err());
    }
    let mut longer = WeightStream::new(weights.specs.clone(), file.len());
    longer.read(&file, |_, _| Ok(())).unwrap();
    assert!(longer.read(&[0], |_, _| Ok(())).is_err());

    let mut packer = ModulePacker::new(&config, &topology, 0, WeightFormat::F32).unwrap();
    let mut tensors = weights.tensors();
    let (spec, values) = tensors.next().unwrap();
    assert!(packer.add(&spec.name, &values[1..]).unwrap_err().to_string().contains("values"));
    let mut packer = ModulePacker::new(&config, &topology, 0, WeightFormat::F32).unwrap();
    packer.add(&spec.name, values).unwrap();
    assert!(packer.add(&spec.name, values).unwrap_err().to_string().contains("added twice"));
    assert!(packer.add("model.layers.9.mlp.up_proj.weight", &[]).is_err());
    // All but the last.
    let others: Vec<_> = tensors.collect();
    let (last, others) = others.split_last().unwrap();
    others.iter().for_each(|(spec, values)| packer.add(&spec.name, values).unwrap());
    let error = packer.finish().unwrap_err().to_string();
    assert!(error.contains("is missing") && error.contains(&last.0.name), "{error}");
}

#[test]
fn a_module_is_packed_in_little_more_than_its_own_memory() {
    let config = ModelConfig { vocab_size: 4096, hidden_size: 256, ffn_size: 512, blocks: 6, ..config(true) };
    let (topology, weights, file) = module(&config);
    // One thread does all the work, so that its memory is counted.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for format in FORMATS {
        let bytes = PackedModule::bytes_of(&config, &topology, 0, format).unwrap();
        let tensors = packing_bytes(&config, &topology, 0, false);
        let most = pool.install(|| {
            let pack = || drop(packed(&config, &topology, (&weights, &file), 1 << 16, format).unwrap());
            allocation_counter::measure(pack).bytes_max as usize
        });
        assert!(most < bytes + bytes / 5 + tensors, "{format}: {most} for {bytes} and {tensors}");
        assert!(most > bytes, "{format}: {most} for {bytes}");
    }
}

#[test]
fn passes_of_rising_lengths_keep_little_more_than_the_longest_alone() {
    let config = ModelConfig { context: 256, ..config(true) };
    let (topology, weights, _) = module(&config);
    let kept = |lengths: &[usize]| {
        let module = Module::load(&weights, &Device::Cpu).unwrap();
        let path = Path::compose(&config, &topology, &[Arc::new(module)]).unwrap();
        // One new thread does all the work, so that its memory is counted.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let pass = |&length: &usize| {
            let tokens = TokenRows::new(vec![1u32; length], 1, config.vocab_size).unwrap();
            drop(path.position_logits(&tokens, &[length - 1]).unwrap());
        };
        pool.install(|| allocation_counter::measure(|| lengths.iter().for_each(pass)).bytes_current)
    };
    let rising: Vec<usize> = (1..=32).map(|n| 8 * n).collect();
    let (alone, rising) = (kept(&[256]), kept(&rising));
    assert!(alone > 0 && rising <= 2 * alone, "{rising} bytes in place of {alone}");
}
