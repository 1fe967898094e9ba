//! Steps of serving against whole passes, and the promise of equal bits.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use dipaco_model::{
    Device, Dtype, ModelConfig, ModelError, Module, ModuleWeights, PAGE_TOKENS, PackedModule, Path,
    Positions, StepPages, StepSequence, Stepper, TokenRows, WeightFormat, init, split,
};
use dipaco_topology::{LevelConfig, Modules, PathId, Topology, TopologyConfig};

const VOCAB: usize = 97;
const LONGEST: usize = 90;

/// Three levels, the first of which comes back at the end: blocks 0 and 3 with the head, block 1, block 2.
struct Grid {
    config: ModelConfig,
    topology: Topology,
    weights: Vec<Vec<ModuleWeights>>,
    packed: Vec<Vec<Arc<PackedModule>>>,
    stepper: Stepper,
}

impl Grid {
    fn new(config: ModelConfig) -> Self {
        Self::with_format(config, WeightFormat::F32)
    }

    fn with_format(config: ModelConfig, format: WeightFormat) -> Self {
        let topology = topology();
        let path = |seed| split(&config, &topology, &init(&config, seed).unwrap()).unwrap();
        let weights = (0..2).map(path).collect();
        Self::of(config, weights, format)
    }

    /// Module i of a level is that level of the path `weights[i]`.
    fn of(config: ModelConfig, weights: Vec<Vec<ModuleWeights>>, format: WeightFormat) -> Self {
        let topology = topology();
        let pack = |modules: &Vec<ModuleWeights>| -> Vec<_> {
            let pack = |(level, m)| PackedModule::new(&config, &topology, level, m, format).unwrap().into();
            modules.iter().enumerate().map(pack).collect()
        };
        let packed = weights.iter().map(pack).collect();
        let stepper = Stepper::new(&config, &topology).unwrap();
        Self { config, topology, weights, packed, stepper }
    }

    fn modules(&self, path: u32) -> Vec<Arc<PackedModule>> {
        let ids = self.topology.modules_of(PathId(path)).into_iter();
        ids.map(|id| self.packed[id.index as usize][usize::from(id.level)].clone()).collect()
    }

    fn path(&self, path: u32) -> Path {
        let ids = self.topology.modules_of(PathId(path)).into_iter();
        let weights = ids.map(|id| &self.weights[id.index as usize][usize::from(id.level)]);
        let modules: Vec<_> = weights.map(|w| Arc::new(Module::load(w, &Device::Cpu).unwrap())).collect();
        Path::compose(&self.config, &self.topology, &modules).unwrap()
    }
}

fn topology() -> Topology {
    let level = |modules, blocks: &str, ends| LevelConfig {
        modules: Modules::Count(modules),
        blocks: blocks.into(),
        embedding: ends,
        head: ends,
        frozen: false,
    };
    let levels = vec![level(2, "0, 3", true), level(1, "1", false), level(2, "2", false)];
    Topology::new(&TopologyConfig::grid(1, levels), 4).unwrap()
}

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: VOCAB,
        hidden_size: 48,
        blocks: 4,
        heads: 4,
        head_dim: 24,
        ffn_size: 80,
        context: LONGEST,
        init_std: Some(0.3),
        ..ModelConfig::default()
    }
}

/// Sizes that blocks of 32 weights divide.
fn of_blocks() -> ModelConfig {
    ModelConfig { hidden_size: 64, ffn_size: 96, head_dim: 32, ..config() }
}

fn tokens(number: usize) -> Vec<u32> {
    (0..LONGEST - 5 * number).map(|i| ((i * i * 7 + 31 * number + i) % VOCAB) as u32).collect()
}

/// Pages of sequence `number` of six.
fn pages(number: usize) -> Vec<u32> {
    // In no order: a sequence's pages lie anywhere.
    (0..LONGEST.div_ceil(PAGE_TOKENS)).map(|page| (page * 6 + (number * 5 + page) % 6) as u32).collect()
}

/// Runs sequences on their paths, `chunk` tokens a step, and returns all logits of each.
fn run(grid: &Grid, kv: &mut StepPages, sequences: &[(usize, u32)], chunk: usize) -> Vec<Vec<f32>> {
    let inputs: Vec<_> = sequences.iter().map(|&(number, _)| (tokens(number), pages(number))).collect();
    let modules: Vec<_> = sequences.iter().map(|&(_, path)| grid.modules(path)).collect();
    let mut logits = vec![Vec::new(); sequences.len()];
    for start in (0..LONGEST).step_by(chunk) {
        let alive: Vec<usize> = (0..sequences.len()).filter(|&i| start < inputs[i].0.len()).collect();
        let rows = |&i: &usize| {
            let (tokens, pages) = &inputs[i];
            let tokens = &tokens[start..tokens.len().min(start + chunk)];
            StepSequence { modules: &modules[i], tokens, start, stage: 0, pages, logits: Positions::All }
        };
        let batch: Vec<_> = alive.iter().map(rows).collect();
        for (i, own) in alive.into_iter().zip(grid.stepper.step(&batch, kv).unwrap()) {
            logits[i].extend(own);
        }
    }
    logits
}

/// A path's modules differ from those of another in one level: what is below stays, and the bits are those of a whole pass.
#[test]
fn a_sequence_that_changes_its_path_goes_on_from_the_first_stage_that_differs() {
    let grid = Grid::new(config());
    let (text, own, others) = (tokens(0), pages(0), pages(1));
    let path = |a: u32, b: u32| {
        grid.topology.path_ids().find(|path| {
            let modules = grid.topology.modules_of(*path);
            (modules[0].index, modules[2].index) == (a, b)
        })
    };
    let (before, after) = (path(0, 0).unwrap(), path(0, 1).unwrap());
    let (one, other) = (grid.modules(before.0), grid.modules(after.0));
    let levels = grid.stepper.stage_levels();
    assert_eq!(levels, [vec![0, 0], vec![0, 0, 1], vec![0, 0, 1, 2], vec![0, 0, 1, 2, 0]]);
    let same = |level: &usize| Arc::ptr_eq(&one[*level], &other[*level]);
    // Block 0 and block 1; block 2 differs, and block 3 lies behind it.
    let shared = levels.iter().take_while(|levels| levels.iter().all(same)).count();
    assert_eq!(shared, 2);

    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut kv = grid.stepper.pages_with_borders(36, dtype);
        let elsewhere = pages(3);
        let whole = |modules, tokens, start, stage, pages| StepSequence {
            modules,
            tokens,
            start,
            stage,
            pages,
            logits: Positions::All,
        };
        let expected =
            grid.stepper.step(&[whole(&other, &text, 0, 0, &elsewhere)], &mut kv).unwrap().swap_remove(0);
        for start in (0..48).step_by(13) {
            let end = (start + 13).min(48);
            grid.stepper.step(&[whole(&one, &text[start..end], start, 0, &others)], &mut kv).unwrap();
        }
        // The pages of the first path stay as they are: others may read them.
        for (&from, &to) in others.iter().zip(&own).take(3) {
            grid.stepper.copy_page(&mut kv, from, to, shared).unwrap();
        }
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let neighbour = pages(2);
        let mut found = Vec::new();
        for (start, end, stage) in [(0, 20, shared), (20, 48, shared), (48, LONGEST, 0)] {
            let rows = whole(&other, &text[start..end], start, stage, &own);
            let among = [whole(&one, &text[..5], 0, 0, &neighbour), rows];
            found.extend(grid.stepper.step(&among, &mut kv).unwrap().swap_remove(1));
        }
        assert!(bits(&found) == bits(&expected), "{dtype}");
    }
    let mut kv = grid.stepper.pages(36, Dtype::F32);
    assert!(grid.stepper.copy_page(&mut kv, 0, 1, 1).unwrap_err().to_string().contains("border"));
    assert_eq!(grid.stepper.border_bytes(), 3 * PAGE_TOKENS * 48 * 4);
}

/// Paths of the six sequences: all four, two of them twice.
const SEQUENCES: [(usize, u32); 6] = [(0, 0), (1, 3), (2, 1), (3, 3), (4, 2), (5, 0)];

#[test]
fn a_sequence_gets_the_same_bits_alone_among_others_in_any_chunks_and_with_any_threads() {
    let f32 = WeightFormat::F32;
    for (tie_embeddings, dtype, format) in [
        (false, Dtype::F32, f32),
        (true, Dtype::F32, f32),
        (true, Dtype::Bf16, f32),
        (false, Dtype::F32, WeightFormat::Bf16),
        (false, Dtype::F32, WeightFormat::Q8_0),
        (true, Dtype::Bf16, WeightFormat::Q4_0),
    ] {
        let grid =
            Grid::with_format(ModelConfig { tie_embeddings, kv_heads: Some(2), ..of_blocks() }, format);
        let mut kv = grid.stepper.pages(36, dtype);
        let alone: Vec<_> = SEQUENCES.iter().flat_map(|&one| run(&grid, &mut kv, &[one], LONGEST)).collect();
        for (chunk, threads) in [(1, 2), (7, 1), (33, 3)] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let together = pool.install(|| run(&grid, &mut kv, &SEQUENCES, chunk));
            for (number, (together, alone)) in together.iter().zip(&alone).enumerate() {
                let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(together) == bits(alone), "{number}, chunks of {chunk}, {dtype}, {format}");
            }
        }
    }
}

#[test]
fn logits_are_those_of_a_whole_pass() {
    for (tie_embeddings, kv_heads, head_dim) in [(false, None, 24), (true, Some(1), 32), (false, Some(2), 8)]
    {
        let grid = Grid::new(ModelConfig { tie_embeddings, kv_heads, head_dim, ..config() });
        let mut kv = grid.stepper.pages(36, Dtype::F32);
        for (&(number, path), logits) in SEQUENCES.iter().zip(run(&grid, &mut kv, &SEQUENCES, 20)) {
            let tokens = tokens(number);
            let rows = TokenRows::new(&*tokens, 1, VOCAB).unwrap();
            let positions: Vec<usize> = (0..tokens.len()).collect();
            let whole = grid.path(path).position_logits(&rows, &positions).unwrap();
            assert_eq!(logits.len(), whole.len());
            for (i, (one, other)) in logits.iter().zip(&whole).enumerate() {
                assert!((one - other).abs() < 1e-5 * other.abs().max(1.0), "{number}, {i}: {one} {other}");
            }
        }
    }
}

#[test]
fn rounded_keys_and_values_change_logits_a_little() {
    let grid = Grid::new(config());
    let [exact, rounded] = [Dtype::F32, Dtype::Bf16].map(|dtype| {
        let mut kv = grid.stepper.pages(36, dtype);
        run(&grid, &mut kv, &SEQUENCES[..1], 30).swap_remove(0)
    });
    let relative = difference(&exact, &rounded);
    assert!((1e-5..2e-2).contains(&relative), "{relative}");
    let bytes = [Dtype::F32, Dtype::Bf16].map(|dtype| grid.stepper.page_bytes(dtype));
    assert_eq!(bytes[0], 2 * bytes[1]);
}

/// The weights as an exported file of the format has them.
fn exported(module: &ModuleWeights, format: WeightFormat) -> ModuleWeights {
    let rounded = module.tensors().flat_map(|(spec, values)| {
        let end = ["model.embed_tokens.weight", "lm_head.weight"].contains(&&*spec.name);
        let format = match spec.shape.len() {
            1 => WeightFormat::F32,
            _ if end => format.of_ends(),
            _ => format,
        };
        let tensor = format.quantize(values, &spec.shape).unwrap().dequantize(&Device::Cpu).unwrap();
        tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    });
    ModuleWeights::new(module.specs.clone(), rounded.collect()).unwrap()
}

#[test]
fn weights_in_a_format_are_those_of_an_exported_file() {
    let config = ModelConfig { init_std: Some(0.1), ..of_blocks() };
    for (format, bound) in [(WeightFormat::Bf16, 0.0), (WeightFormat::Q8_0, 3e-2), (WeightFormat::Q4_0, 3e-2)]
    {
        let grid = Grid::with_format(config.clone(), format);
        let weights = grid.weights.iter().map(|path| path.iter().map(|m| exported(m, format)).collect());
        let wide = Grid::of(config.clone(), weights.collect(), WeightFormat::F32);
        let [own, expected] = [&grid, &wide].map(|grid| {
            let mut kv = grid.stepper.pages(36, Dtype::F32);
            run(grid, &mut kv, &SEQUENCES[..1], 30).swap_remove(0)
        });
        // What is left is the rounding of activations to int8.
        let error = difference(&expected, &own);
        assert!(error <= bound, "{format}: {error}");
    }
}

#[test]
fn the_memory_of_a_module_is_known_before_it_is_packed() {
    let tied = ModelConfig { tie_embeddings: true, kv_heads: Some(2), ..of_blocks() };
    for config in [of_blocks(), tied] {
        for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8_0, WeightFormat::Q4_0] {
            let grid = Grid::with_format(config.clone(), format);
            for (level, module) in grid.packed[0].iter().enumerate() {
                let bytes = PackedModule::bytes_of(&config, &grid.topology, level, format).unwrap();
                assert_eq!(bytes, module.bytes(), "level {level}, {format}");
            }
        }
    }
}

#[test]
fn a_format_whose_blocks_do_not_fit_is_refused() {
    let config = ModelConfig { hidden_size: 48, ..of_blocks() };
    let topology = Topology::new(&TopologyConfig::dense(4), 4).unwrap();
    let weights = init(&config, 1).unwrap();
    let error = PackedModule::new(&config, &topology, 0, &weights, WeightFormat::Q8_0).unwrap_err();
    let ModelError::Operation(error) = error else { panic!("{error}") };
    assert!(error.to_string().contains("multiples of 32"), "{error}");
}

/// The Euclidean norm of the difference, as a part of the norm of `exact`.
fn difference(exact: &[f32], other: &[f32]) -> f64 {
    let (error, size) = exact.iter().zip(other).fold((0.0, 0.0), |(error, size), (a, b)| {
        (error + f64::from(a - b).powi(2), size + f64::from(*a).powi(2))
    });
    (error / size).sqrt()
}

#[test]
fn a_packed_module_has_one_copy_of_its_matrices() {
    let grid = Grid::new(ModelConfig { tie_embeddings: true, hidden_size: 64, ffn_size: 96, ..config() });
    for (packed, weights) in grid.packed[0].iter().zip(&grid.weights[0]) {
        // Whole panels of 32 rows: the vocabulary of 97 takes 128.
        let most = size_of_val(weights.values.as_slice()) + 31 * 64 * 4;
        assert!(packed.bytes() <= most, "{} {most}", packed.bytes());
    }
}

#[test]
fn a_wrong_step_is_refused_and_changes_nothing() {
    let grid = Grid::new(config());
    let mut kv = grid.stepper.pages(8, Dtype::F32);
    let (modules, prompt, pages) = (grid.modules(0), tokens(0), [0, 1, 2]);
    let step = |tokens, start, pages, modules| StepSequence {
        modules,
        tokens,
        start,
        stage: 0,
        pages,
        logits: Positions::Last,
    };
    let good = step(&prompt[..20], 0, &pages[..2], &modules);
    let before = grid.stepper.step(std::slice::from_ref(&good), &mut kv).unwrap();
    let refused = |batch: &[StepSequence<'_>], kv: &mut StepPages| grid.stepper.step(batch, kv).unwrap_err();
    let bad = step(&[97], 20, &pages, &modules);
    assert!(matches!(refused(&[bad], &mut kv), ModelError::Token { token: 97, vocabulary: 97 }));
    let bad = step(&prompt[..1], 90, &pages, &modules);
    assert!(matches!(refused(&[bad], &mut kv), ModelError::Context { positions: 91, context: 90 }));
    for (bad, problem) in [
        (step(&[], 20, &pages, &modules), "no token"),
        (step(&prompt[..13], 20, &pages[..2], &modules), "2 pages have no room for 33 tokens"),
        (step(&prompt[..1], 20, &pages, &modules[..2]), "one module for each level"),
    ] {
        let error = refused(&[good.clone(), bad], &mut kv).to_string();
        assert!(error.contains(problem), "{error}");
    }
    let twice =
        [step(&prompt[..1], 20, &pages[..2], &modules), step(&prompt[..1], 21, &pages[..2], &modules)];
    assert!(matches!(refused(&twice, &mut kv), ModelError::Operation(_)));
    let after = step(&prompt[19..20], 19, &pages[..2], &modules);
    assert_eq!(grid.stepper.step(&[after], &mut kv).unwrap(), before);
}
