//! The plan of a training: topology, sizes, memory, traffic and speed, before anything is started.

mod remedies;
mod rounds;
mod speed;
mod whole_memory;

use std::collections::BTreeSet;

use dipaco_codec::{Compression, encoded_len};
use dipaco_config::{Optimizer, RunConfig};
use dipaco_model::{Dtype, ModelConfig, StepMemory, StepShape, level_specs, parameters, trained_specs};
use dipaco_path::MomentSpecs;
use dipaco_telemetry::human;
use dipaco_topology::{ModuleId, Topology, parts_in_words};
use serde::Serialize;

pub use self::remedies::Remedy;
use self::remedies::remedies;
pub use self::rounds::{RoundSpan, TokenCounts};
use self::rounds::{most, over_rounds, rounds, tokens};
pub use self::speed::{Measured, Speed, measured};
pub use self::whole_memory::{TooLargeToTrain, seed_too_large, workers_too_large};
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
    /// Most paths through a module that trains, or through any module where none trains.
    pub paths_per_module: u32,
    /// Fewest paths through such a module.
    pub least_paths_per_module: u32,
    /// False for a frozen level, whose weights stay those of the seed.
    pub trains: bool,
}

impl Level {
    /// The number of paths through each module, in words: "3", or "1 to 3" where modules differ.
    pub fn paths_in_words(&self) -> String {
        let most = human::integer(self.paths_per_module.into());
        if self.least_paths_per_module == self.paths_per_module {
            return most;
        }
        format!("{} to {most}", human::integer(self.least_paths_per_module.into()))
    }
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

/// Bytes on the wire for the busiest worker in a round of the most paths. Fetching shards adds to them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// Modules that train, and the states of paths that another worker trained last.
    pub to_worker: u64,
    /// Outer gradients and path states.
    pub from_worker: u64,
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
    /// The rounds, by the number of paths that train in them.
    pub rounds: Vec<RoundSpan>,
    /// Paths that the busiest worker trains in a round of the most paths.
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
        let rounds = rounds(&config.train, topology.trained_paths().len() as u64);
        let paths_per_worker = busiest(most(&rounds), workers);
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
            tokens: tokens(&config.train, &rounds),
            rounds,
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
        // A worker waits for the busiest one in every round.
        let paths = over_rounds(&self.rounds, |paths| busiest(paths, self.workers));
        let steps = paths.saturating_mul(config.train.inner_steps);
        let seconds = speed.map(|speed| steps as f64 * speed.seconds_per_step);
        Self { speed, speed_from, seconds, ..self }
    }
}

/// Paths that the busiest of so many workers trains in a round of `paths` paths.
fn busiest(paths: u64, workers: usize) -> u64 {
    paths.div_ceil(workers.max(1) as u64)
}

fn level(model: &ModelConfig, topology: &Topology, level: usize) -> Level {
    let through = paths_through_modules(topology, level);
    Level {
        modules: topology.modules_in(level),
        holds: parts_in_words(topology.parts(level)),
        parameters: parameters(&level_specs(model, topology, level)) as u64,
        paths_per_module: through.last().copied().unwrap_or(0),
        least_paths_per_module: through.first().copied().unwrap_or(0),
        trains: topology.trains(level),
    }
}

/// The numbers of paths through those modules of a level that train, or through all of them where none trains.
pub(crate) fn paths_through_modules(topology: &Topology, level: usize) -> BTreeSet<u32> {
    let modules: Vec<ModuleId> =
        topology.module_ids().filter(|module| usize::from(module.level) == level).collect();
    let any = modules.iter().any(|&module| topology.module_trains(module));
    let counted = modules.into_iter().filter(|&module| topology.module_trains(module) || !any);
    counted.map(|module| u32::try_from(topology.paths_through(module).count()).unwrap_or(u32::MAX)).collect()
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
            "train",
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

/// Bytes of a worker in a round. It fetches the modules of each of its paths and uploads their outer gradients once. With every
/// `train.state_every`th lease it uploads the path's state, which consists of the `moments` (bytes). A worker that trains more
/// paths than it holds fetches and uploads a state with each lease. `path` counts the parameters that train: a worker fetches
/// frozen ones once.
fn wire(path: u64, moments: u64, paths_per_worker: u64, config: &RunConfig) -> Wire {
    let gradients = encoded_len(path, config.outer.compression).unwrap_or(u64::MAX);
    let held = paths_per_worker <= config.train.held_paths as u64;
    // A path has a lease for each fragment in a round.
    let leases = u64::from(config.sync.fragments.max(1));
    let states = moments.saturating_mul(leases);
    let fetched = if held { 0 } else { states };
    let weights = match config.outer.broadcast {
        Compression::F32 => path.saturating_mul(F32),
        broadcast => encoded_len(path, broadcast).unwrap_or(u64::MAX),
    };
    let uploaded = if held { states / u64::from(config.train.state_every.max(1)) } else { states };
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

#[cfg(test)]
mod tests;
