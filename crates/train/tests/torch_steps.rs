//! Whole training steps against PyTorch's: losses, gradients and weights of `fixtures/torch_steps.py`.
//!
//! The reference is float64. A tolerance is a small multiple of the distance that PyTorch itself has from it when it
//! computes in f32, which the fixture holds for every tensor.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use std::sync::Arc;

use dipaco_model::{ModelConfig, ModuleWeights, TensorSpec, TokenBatch, TokenRows, join, path_specs, split};
use dipaco_optim::{AdamWConfig, Optimizer, ScheduleConfig, clip_scale};
use dipaco_path::{InnerConfig, MomentSpecs, PathState, StepReport, TrainDevice, Trainer};
use dipaco_topology::{LevelConfig, Modules, PathId, Topology, TopologyConfig};
use safetensors::{Dtype, SafeTensors};

const BATCH: usize = 3;
const STEPS: usize = 5;

/// The fixture's numbers of one path.
struct Reference {
    file: SafeTensors<'static>,
    variant: &'static str,
    model: ModelConfig,
}

impl Reference {
    fn all() -> [Self; 2] {
        let bytes = include_bytes!("fixtures/torch_steps.safetensors");
        let variant = |variant, blocks, tied| {
            let model = ModelConfig {
                hidden_size: 36,
                blocks,
                heads: 3,
                head_dim: 10,
                ffn_size: 47,
                vocab_size: 61,
                context: 23,
                tie_embeddings: tied,
                ..ModelConfig::default()
            };
            Self { file: SafeTensors::deserialize(bytes).unwrap(), variant, model }
        };
        [variant("untied", 3, false), variant("tied", 2, true)]
    }

    fn elements<T, const N: usize>(&self, name: &str, dtype: Dtype, from: fn([u8; N]) -> T) -> Vec<T> {
        let view = self.file.tensor(name).unwrap();
        assert_eq!(view.dtype(), dtype, "{name}");
        view.data().as_chunks::<N>().0.iter().map(|&bytes| from(bytes)).collect()
    }

    /// Tokens or targets, (B, T) for each step.
    fn ids(&self, name: &str) -> Vec<Vec<u32>> {
        let ids = self.elements(name, Dtype::U32, u32::from_le_bytes);
        ids.chunks(ids.len() / STEPS).map(<[u32]>::to_vec).collect()
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        self.elements(&format!("{}/{name}", self.variant), Dtype::F64, f64::from_le_bytes)
    }

    fn tensors(&self, group: &str) -> ModuleWeights {
        let specs: Arc<[TensorSpec]> = path_specs(&self.model).into();
        let read = |spec: &TensorSpec| {
            self.elements(&format!("{group}/{}", spec.name), Dtype::F32, f32::from_le_bytes)
        };
        let values = specs.iter().flat_map(read).collect();
        ModuleWeights::new(specs, values).unwrap()
    }

    fn gradients(&self) -> ModuleWeights {
        self.tensors(&format!("{}/gradients", self.variant))
    }

    /// One level, or two with alternating blocks.
    fn topologies(&self) -> [Topology; 2] {
        let blocks = self.model.blocks;
        let list = |odd: bool| {
            let own = (0..blocks).filter(|block| (block % 2 == 1) == odd).map(|block| block.to_string());
            own.collect::<Vec<_>>().join(", ")
        };
        let level = |odd: bool| LevelConfig {
            modules: Modules::Count(1),
            blocks: list(odd),
            embedding: odd,
            head: odd,
            frozen: false,
        };
        let two = TopologyConfig::grid(1, vec![level(false), level(true)]);
        [TopologyConfig::dense(blocks), two].map(|config| Topology::new(&config, blocks).unwrap())
    }

    fn inner(&self) -> InnerConfig {
        InnerConfig {
            optimizer: Optimizer::AdamW,
            adamw: AdamWConfig { learning_rate: 1e-2, ..AdamWConfig::default() },
            schedule: ScheduleConfig { warmup_steps: 2, ..ScheduleConfig::default() },
            first_step: 0,
            rested: 0,
            total_steps: STEPS as u64,
            batch: BATCH,
            micro_batch: 0,
            sequence_tokens: self.model.context,
            activation_checkpointing: false,
        }
    }
}

/// Ways to take a step that give the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Way {
    /// Sequences whose gradients are computed at a time and added up; 0 takes all.
    micro_batch: usize,
    /// Whether the backward pass computes a block again from its input.
    activation_checkpointing: bool,
}

/// What training computed.
struct Trained {
    reports: Vec<StepReport>,
    /// AdamW's first moments after the first step, which are that step's clipped gradient times 1 - beta1.
    moments: Vec<f32>,
    weights: ModuleWeights,
}

/// Takes the fixture's steps.
fn train(reference: &Reference, topology: &Topology, way: Way) -> Trained {
    let initial = split(&reference.model, topology, &reference.tensors("initial")).unwrap();
    let state = PathState::start(&MomentSpecs::whole(&reference.model, Optimizer::AdamW));
    let Way { micro_batch, activation_checkpointing } = way;
    let config = InnerConfig { micro_batch, activation_checkpointing, ..reference.inner() };
    let mut trainer =
        Trainer::new(&TrainDevice::Cpu, &reference.model, topology, &initial, state, config).unwrap();
    let (mut reports, mut moments) = (Vec::new(), Vec::new());
    for (tokens, targets) in reference.ids("tokens").iter().zip(reference.ids("targets")) {
        let vocabulary = reference.model.vocab_size;
        let tokens = TokenRows::new(tokens.clone(), BATCH, vocabulary).unwrap();
        let batch = TokenBatch::new(tokens, targets, vocabulary).unwrap();
        reports.push(trainer.step(&batch, PathId(0)).unwrap());
        if reports.len() == 1 {
            moments.clone_from(&trainer.state().unwrap().first);
        }
    }
    let weights = trainer.weights().unwrap();
    Trained { reports, moments, weights: join(&reference.model, topology, &weights).unwrap() }
}

/// How many times as far from the reference as PyTorch a result may be: in the root mean square of a tensor's elements,
/// and in its worst element.
const RMS_FACTOR: f64 = 2.0;
const WORST_FACTOR: f64 = 4.0;

/// `errors` are PyTorch's root mean square and largest difference of each tensor.
fn assert_close(found: &ModuleWeights, expected: &ModuleWeights, errors: &[f64], what: &str) {
    for (((spec, found), (_, expected)), errors) in
        found.tensors().zip(expected.tensors()).zip(errors.chunks_exact(2))
    {
        let differences =
            found.iter().zip(expected).map(|(&found, &exact)| f64::from(found) - f64::from(exact));
        let (squared, largest) =
            differences.fold((0f64, 0f64), |(squared, largest), d| (squared + d * d, largest.max(d.abs())));
        let rms = (squared / found.len() as f64).sqrt();
        let name = &spec.name;
        assert!(rms <= RMS_FACTOR * errors[0], "{what} {name}: rms {rms:e}, PyTorch {:e}", errors[0]);
        assert!(largest <= WORST_FACTOR * errors[1], "{what} {name}: {largest:e}, PyTorch {:e}", errors[1]);
    }
}

/// The largest magnitude of PyTorch's differences over the steps, at least an f32's rounding of a number near `near`.
fn tolerance(errors: &[f64], near: f64) -> f64 {
    let rounding = near * f64::from(f32::EPSILON);
    RMS_FACTOR * errors.iter().fold(rounding, |largest, error| largest.max(error.abs()))
}

fn assert_is_pytorch(reference: &Reference, topology: &Topology, way: Way) {
    let trained = train(reference, topology, way);
    let (losses, norms) = (reference.numbers("losses"), reference.numbers("norms"));
    let loss_tolerance = tolerance(&reference.numbers("f32/losses"), losses[0]);
    let norm_tolerance = tolerance(&reference.numbers("f32/norms"), norms[0]);
    let rates = reference.elements("learning_rates", Dtype::F64, f64::from_le_bytes);
    let targets = reference.ids("targets");
    assert_eq!(trained.reports.len(), STEPS);
    for (step, report) in trained.reports.iter().enumerate() {
        let (loss, norm) = (f64::from(report.loss) - losses[step], report.gradient_norm - norms[step]);
        assert!(loss.abs() <= loss_tolerance, "loss of step {step}: off by {loss:e}");
        assert!(norm.abs() <= norm_tolerance, "gradient norm of step {step}: off by {norm:e}");
        assert!((report.learning_rate - rates[step]).abs() < 1e-15);
        let counted = targets[step].iter().filter(|&&target| target != dipaco_model::IGNORE).count();
        assert_eq!(report.tokens, counted as u64);
    }

    let expected = reference.gradients();
    let adamw = reference.inner().adamw;
    let clipped = clip_scale(trained.reports[0].gradient_norm.powi(2), adamw.clip_norm);
    let unscale = 1.0 / (clipped * (1.0 - adamw.beta1));
    let values = trained.moments.iter().map(|&moment| (f64::from(moment) * unscale) as f32).collect();
    let gradients = ModuleWeights::new(expected.specs.clone(), values).unwrap();
    for ((spec, found), (_, expected)) in gradients.tensors().zip(expected.tensors()) {
        assert!(found.iter().any(|&g| g != 0.0), "{} has no gradient", spec.name);
        // Only the rows of tokens that do not occur.
        let none = expected.iter().zip(found).filter(|&(&exact, _)| exact == 0.0);
        assert!(none.into_iter().all(|(_, &found)| found == 0.0), "{}", spec.name);
    }
    assert_close(&gradients, &expected, &reference.numbers("f32/gradients"), "gradient");
    let expected = reference.tensors(&format!("{}/parameters", reference.variant));
    // AdamW takes steps of about the same size in all tensors, so PyTorch's largest errors count for all.
    let errors = reference.numbers("f32/parameters");
    let largest = |i: usize| errors[i..].iter().step_by(2).fold(0f64, |largest, &error| largest.max(error));
    let errors = [largest(0), largest(1)].repeat(expected.specs.len());
    assert_close(&trained.weights, &expected, &errors, "weights");
}

#[test]
fn five_steps_are_those_of_pytorch_in_f32() {
    for reference in Reference::all() {
        for topology in reference.topologies() {
            for (micro_batch, activation_checkpointing) in [(0, false), (0, true), (1, false), (1, true)] {
                assert_is_pytorch(&reference, &topology, Way { micro_batch, activation_checkpointing });
            }
        }
    }
}

#[test]
fn some_of_the_steps_are_clipped_and_some_are_not() {
    let [untied, _] = Reference::all();
    let clipped = untied.numbers("norms").iter().map(|&norm| norm > 1.0).collect::<Vec<_>>();
    assert_eq!(clipped, [false, true, false, true, false]);
}
