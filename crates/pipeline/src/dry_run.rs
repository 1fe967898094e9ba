//! The plan of a training: topology, sizes, memory, traffic and speed, before anything is started.

mod remedies;
mod speed;

use dipaco_codec::{Compression, encoded_len};
use dipaco_config::{Optimizer, RunConfig};
use dipaco_model::{Dtype, ModelConfig, StepMemory, StepShape, level_specs, parameters, trained_specs};
use dipaco_path::MomentSpecs;
use dipaco_topology::{Topology, parts_in_words};
use serde::Serialize;

pub use self::remedies::Remedy;
use self::remedies::remedies;
pub use self::speed::{Measured, Speed, measured};
use crate::error::PipelineError;
use crate::step_speed::{memory_of_step, shape};

/// Bytes of a number on the wire and in memory.
const F32: u64 = 4;

/// A level of the topology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// K, the number of modules.
    pub modules: u32,
    /// The parts of the transformer, as in "embedding, blocks 0..6".
    pub holds: String,
    /// Parameters of one module.
    pub parameters: u64,
    /// Paths through each module.
    pub paths_per_module: u32,
    /// False for a frozen level, whose weights stay those of the seed.
    pub trains: bool,
}

/// Numbers of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// Parameters of a path.
    pub path: u64,
    /// Parameters of a path that train.
    pub trained: u64,
    /// Parameters of all modules together.
    pub all_modules: u64,
}

/// Memory in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// A training step, part by part.
    pub step: StepMemory,
    /// Further copies of the weights, for the next lease and the outer gradient.
    pub round: u64,
    /// A worker: `step` and `round`.
    pub worker: u64,
    /// All workers of this machine.
    pub all_workers: u64,
    /// Free memory of this machine; absent where the system does not report it.
    pub available: Option<u64>,
    /// True if all workers fit; absent where `available` is.
    pub fits: Option<bool>,
    /// Settings that need less memory, when the workers do not fit.
    pub remedies: Vec<Remedy>,
}

/// Bytes on the wire for one worker and round. Fetching shards adds to them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// Modules that train, and the states of paths that another worker trained last.
    pub to_worker: u64,
    /// Outer gradients and path states.
    pub from_worker: u64,
}

/// Training tokens, padding included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokenCounts {
    /// An inner step of a path.
    pub step: u64,
    /// A round of all paths.
    pub round: u64,
    /// All rounds of all paths.
    pub all: u64,
}

/// The plan of a training.
#[derive(Clone, Debug, Serialize)]
pub struct DryRun {
    /// Name of the run.
    pub run: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Source of the size of the vocabulary, in words.
    pub vocab_size_from: String,
    /// Number type of matrix products.
    pub dtype: Dtype,
    /// Number of paths.
    pub paths: u32,
    /// The levels, in order.
    pub levels: Vec<Level>,
    /// Numbers of parameters.
    pub parameters: Parameters,
    /// Number of workers.
    pub workers: usize,
    /// Threads of each worker.
    pub threads_per_worker: usize,
    /// Paths that the busiest worker trains in a round.
    pub paths_per_worker: u64,
    /// Memory of the workers.
    pub memory: Memory,
    /// Bytes of the path states that the busiest worker keeps on its disk: all but that of its current path.
    pub kept_states: u64,
    /// Traffic of a worker.
    pub wire: Wire,
    /// Training tokens.
    pub tokens: TokenCounts,
    /// Expected speed of a worker; absent when it could not be measured.
    pub speed: Option<Speed>,
    /// Method of the measurement, or the reason why there is none.
    pub speed_from: String,
    /// Seconds of the inner steps of all rounds.
    pub seconds: Option<f64>,
}

impl DryRun {
    /// The plan without the speed. `config` has its vocabulary; `available` is the free memory of this machine in bytes.
    ///
    /// # Errors
    /// [`PipelineError::Topology`] when the topology does not fit the model.
    pub fn new(
        config: &RunConfig,
        vocab_size_from: String,
        workers: usize,
        threads_per_worker: usize,
        available: Option<u64>,
    ) -> Result<Self, PipelineError> {
        let model = &config.model;
        let topology = Topology::new(&config.topology, model.blocks)?;
        let levels: Vec<Level> =
            (0..topology.levels()).map(|level| self::level(model, &topology, level)).collect();
        let parameters = Parameters {
            path: levels.iter().map(|level| level.parameters).sum(),
            trained: levels.iter().filter(|level| level.trains).map(|level| level.parameters).sum(),
            all_modules: levels
                .iter()
                .map(|level| level.parameters.saturating_mul(level.modules.into()))
                .fold(0, u64::saturating_add),
        };
        let trained = config.train.paths_per_round.most(topology.trained_paths().len() as u64);
        let paths_per_worker = trained.div_ceil(workers.max(1) as u64);
        let moments = moments(config, &topology);
        let kept = paths_per_worker.min(config.train.held_paths as u64).saturating_sub(1);
        Ok(Self {
            run: config.run.name.clone(),
            vocab_size: model.vocab_size,
            vocab_size_from,
            dtype: model.dtype,
            paths: topology.paths(),
            levels,
            parameters,
            workers,
            threads_per_worker,
            paths_per_worker,
            memory: memory(config, &topology, workers, available),
            kept_states: kept.saturating_mul(moments),
            wire: wire(parameters.trained, moments, paths_per_worker, config),
            tokens: tokens(config, trained),
            speed: None,
            speed_from: "not measured".to_owned(),
            seconds: None,
        })
    }

    /// The plan with the result of the measurement.
    pub fn with_speed(self, config: &RunConfig, measured: Measured) -> Self {
        let (speed, speed_from) = match measured {
            Measured::Speed(speed) => (Some(speed), speed.how(&config.model)),
            Measured::Not { reason } => (None, reason),
        };
        let steps = u64::from(config.train.rounds)
            .saturating_mul(self.paths_per_worker)
            .saturating_mul(config.train.inner_steps);
        let seconds = speed.map(|speed| steps as f64 * speed.seconds_per_step);
        Self { speed, speed_from, seconds, ..self }
    }
}

fn level(model: &ModelConfig, topology: &Topology, level: usize) -> Level {
    let modules = topology.modules_in(level);
    Level {
        modules,
        holds: parts_in_words(topology.parts(level)),
        parameters: parameters(&level_specs(model, topology, level)) as u64,
        paths_per_module: topology.paths() / modules.max(1),
        trains: topology.trains(level),
    }
}

/// Memory of one worker in bytes.
struct WorkerMemory {
    step: StepMemory,
    /// Further copies of the weights.
    round: u64,
    all: u64,
}

/// Besides the weights in training a worker holds the fetched weights of the next lease, and the base of the outer
/// gradient.
fn worker_memory(
    model: &ModelConfig,
    topology: &Topology,
    optimizer: Optimizer,
    shape: &StepShape,
) -> WorkerMemory {
    let step = memory_of_step(model, topology, optimizer, shape);
    let base = (parameters(&trained_specs(model, topology)) as u64).saturating_mul(F32);
    let round = step.weights.saturating_add(base);
    WorkerMemory { all: step.total().saturating_add(round), step, round }
}

fn memory(config: &RunConfig, topology: &Topology, workers: usize, available: Option<u64>) -> Memory {
    // With fewer paths than workers, some workers are idle and hold nothing.
    let busy = (workers as u64).min(u64::from(topology.paths()));
    let all = |model: &ModelConfig, shape: &StepShape| {
        worker_memory(model, topology, config.inner_optimizer(), shape).all.saturating_mul(busy)
    };
    let (model, shape) = (&config.model, shape(&config.train));
    let WorkerMemory { step, round, all: worker } =
        worker_memory(model, topology, config.inner_optimizer(), &shape);
    let all_workers = all(model, &shape);
    let fits = available.map(|available| all_workers <= available);
    let remedies = match available {
        Some(available) if all_workers > available => remedies(
            model,
            &shape,
            available,
            &|model, shape| all(model, shape),
            (busy > 1).then_some(worker),
        ),
        _ => Vec::new(),
    };
    Memory { step, round, worker, all_workers, available, fits, remedies }
}

/// For each lease a worker fetches the path's modules and uploads outer gradients, and every `train.state_every`
/// leases it uploads the path's state, which consists of the `moments` (bytes). A worker that trains more paths than
/// it holds fetches and uploads a state with each lease. `path` counts the parameters that train: a worker fetches
/// frozen ones once.
fn wire(path: u64, moments: u64, paths_per_worker: u64, config: &RunConfig) -> Wire {
    let gradients = encoded_len(path, config.outer.compression).unwrap_or(u64::MAX);
    let held = paths_per_worker <= config.train.held_paths as u64;
    let fetched = if held { 0 } else { moments };
    let weights = match config.outer.broadcast {
        Compression::F32 => path.saturating_mul(F32),
        broadcast => encoded_len(path, broadcast).unwrap_or(u64::MAX),
    };
    let uploaded = if held { moments / u64::from(config.train.state_every.max(1)) } else { moments };
    Wire {
        to_worker: weights.saturating_add(fetched).saturating_mul(paths_per_worker),
        from_worker: gradients.saturating_add(uploaded).saturating_mul(paths_per_worker),
    }
}

/// Bytes of the moments of a path on the wire and on a disk.
fn moments(config: &RunConfig, topology: &Topology) -> u64 {
    let moments = MomentSpecs::new(&config.model, topology, config.inner_optimizer());
    moments.stored_as(config.train.state_dtype).file_bytes()
}

fn tokens(config: &RunConfig, paths: u64) -> TokenCounts {
    let train = &config.train;
    let step = (train.batch as u64).saturating_mul(train.sequence_tokens as u64);
    let round = step.saturating_mul(train.inner_steps).saturating_mul(paths);
    TokenCounts { step, round, all: round.saturating_mul(u64::from(train.rounds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RunConfig {
        let mut config = RunConfig::default();
        config.model.vocab_size = 4096;
        config
    }

    #[test]
    fn a_grid_is_counted() {
        let plan = DryRun::new(&config(), String::new(), 2, 1, None).unwrap();
        let (d, f, v) = (256, 704, 4096);
        let block = 4 * d * d + 3 * f * d + 2 * d;
        let levels: Vec<_> =
            plan.levels.iter().map(|l| (l.modules, l.parameters, l.paths_per_module)).collect();
        assert_eq!(levels, [(2, v * d + 2 * block, 2), (2, v * d + d + 2 * block, 2)]);
        let path = 2 * v * d + d + 4 * block;
        assert_eq!(plan.parameters, Parameters { path, trained: path, all_modules: 2 * path });
        assert_eq!(plan.paths_per_worker, 2);
        // The worker keeps both states, and sends each with each fifth lease.
        assert_eq!(plan.kept_states, 8 * path);
        let from_worker = 2 * (4 * path + 24 + 8 * path / 5);
        assert_eq!(plan.wire, Wire { to_worker: 2 * 4 * path, from_worker });
        // Without room for them, modules and state go to the worker with each lease, gradients and state from it.
        let mut full = config();
        full.train.held_paths = 1;
        let plan = DryRun::new(&full, String::new(), 2, 1, None).unwrap();
        assert_eq!((plan.kept_states, plan.paths_per_worker), (0, 2));
        assert_eq!(plan.wire, Wire { to_worker: 2 * 12 * path, from_worker: 2 * (12 * path + 24) });
        assert_eq!(plan.tokens, TokenCounts { step: 2048, round: 4 * 30 * 2048, all: 10 * 4 * 30 * 2048 });
        assert_eq!((plan.memory.fits, plan.memory.remedies.len()), (None, 0));
    }

    #[test]
    fn a_frozen_level_needs_no_wire_and_less_memory() {
        let mut frozen = config();
        frozen.topology.levels[0].frozen = true;
        let whole = DryRun::new(&config(), String::new(), 4, 1, None).unwrap();
        let plan = DryRun::new(&frozen, String::new(), 4, 1, None).unwrap();
        assert_eq!(plan.levels.iter().map(|level| level.trains).collect::<Vec<_>>(), [false, true]);
        let trained = plan.levels[1].parameters;
        assert_eq!((plan.parameters.path, plan.parameters.trained), (whole.parameters.path, trained));
        // The state, 8 bytes a parameter, travels with each fifth lease.
        let from_worker = 4 * trained + 24 + 8 * trained / 5;
        assert_eq!(plan.wire, Wire { to_worker: 4 * trained, from_worker });
        let saved = 4 * (whole.parameters.path - trained);
        // The base of the outer gradient, and in the step the gradients, two moments and kept activations.
        assert_eq!(whole.memory.round - plan.memory.round, saved);
        assert!(whole.memory.step.total() - plan.memory.step.total() > 2 * saved);
    }

    #[test]
    fn muon_moves_and_keeps_one_moment_of_a_matrix() {
        let mut muon = config();
        muon.train.optimizer = Optimizer::Muon;
        let adamw = DryRun::new(&config(), String::new(), 4, 1, None).unwrap();
        let plan = DryRun::new(&muon, String::new(), 4, 1, None).unwrap();
        let (d, f) = (256, 704);
        let matrices = 4 * (4 * d * d + 3 * f * d);
        assert_eq!(adamw.memory.step.moments - plan.memory.step.moments, 4 * matrices);
        // The state travels with each fifth lease.
        let path = plan.parameters.path;
        assert_eq!(
            adamw.wire.from_worker - plan.wire.from_worker,
            8 * path / 5 - (8 * path - 4 * matrices) / 5
        );
        assert_eq!(plan.memory.step.workspace - adamw.memory.step.workspace, 4 * 2 * (f * d + d * d));
    }

    #[test]
    fn states_in_bf16_halve_the_wire_and_the_disk_and_not_the_memory() {
        let mut bf16 = config();
        bf16.train.state_dtype = Dtype::Bf16;
        let f32 = DryRun::new(&config(), String::new(), 2, 1, None).unwrap();
        let plan = DryRun::new(&bf16, String::new(), 2, 1, None).unwrap();
        assert_eq!(plan.kept_states, f32.kept_states / 2);
        // Each of the two states travels with each fifth lease: 4 bytes less for each parameter.
        let path = plan.parameters.path;
        assert_eq!(f32.wire.from_worker - plan.wire.from_worker, 2 * (8 * path / 5 - 4 * path / 5));
        assert_eq!(plan.memory, f32.memory);
    }

    #[test]
    fn a_worker_for_each_path_keeps_its_state() {
        let plan = DryRun::new(&config(), String::new(), 4, 1, None).unwrap();
        let path = plan.parameters.path;
        // The state travels with each fifth lease.
        let from_worker = 4 * path + 24 + 8 * path / 5;
        assert_eq!(plan.wire, Wire { to_worker: 4 * path, from_worker });
        let idle = DryRun::new(&config(), String::new(), 40, 1, None).unwrap();
        assert_eq!(idle.memory.all_workers, plan.memory.all_workers, "idle workers hold no path");
    }

    #[test]
    fn what_does_not_fit_has_remedies_that_lower_it() {
        let plan = DryRun::new(&config(), String::new(), 2, 1, Some(1 << 20)).unwrap();
        assert_eq!(plan.memory.fits, Some(false));
        let sets: Vec<&str> = plan.memory.remedies.iter().map(|remedy| remedy.set.as_str()).collect();
        assert!(
            sets.contains(&"train.activation_checkpointing=true") && sets.contains(&"--workers 1"),
            "{sets:?}"
        );
        assert!(plan.memory.remedies.iter().all(|remedy| remedy.all_workers < plan.memory.all_workers));
        assert!(plan.memory.remedies.iter().all(|remedy| !remedy.fits));
        let all = "train.micro_batch=1 train.activation_checkpointing=true model.dtype=bf16";
        assert!(sets.contains(&all), "{sets:?}");
        // Between what the batch needs in one pass and in two.
        let half = StepShape { micro_batch: 4, ..shape(&config().train) };
        let topology = Topology::new(&config().topology, config().model.blocks).unwrap();
        let available = 2 * worker_memory(&config().model, &topology, Optimizer::AdamW, &half).all;
        let plan = DryRun::new(&config(), String::new(), 2, 1, Some(available)).unwrap();
        let first = &plan.memory.remedies[0];
        assert_eq!((first.set.as_str(), first.fits), ("train.micro_batch=4", true));
        let plan = DryRun::new(&config(), String::new(), 2, 1, Some(1 << 40)).unwrap();
        assert_eq!((plan.memory.fits, plan.memory.remedies.len()), (Some(true), 0));
    }
}
