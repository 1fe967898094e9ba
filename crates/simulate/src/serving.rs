//! Serving many paths under a limit of memory: what it gains to batch sequences by module.

mod modules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use self::modules::{LoadedModules, ModuleNumber};
use crate::SimulateError;

/// Which sequences go through weights together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Batching {
    /// All sequences of a module, whatever their paths. So the engine of `serve` does.
    Module,
    /// The sequences of one path. Paths share modules in memory.
    Path,
    /// The sequences of one path, and each path has its own copy of its modules: a server for each path.
    Copies,
}

/// A server with its traffic: `sequences` clients, each of which sends a request when its last one is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedTraffic {
    /// Number of levels. All levels have the same size.
    pub levels: u32,
    /// K, the number of modules of each level. There are K^levels paths.
    pub grid: u32,
    /// Number of parameters of a path.
    pub parameters: f64,
    /// Bits of a weight in memory.
    pub bits: f64,
    /// Largest memory of modules in bytes; `None` for no limit.
    pub memory: Option<f64>,
    /// Exponent of the popularity of paths: the path of rank r gets a share proportional to r^-zipf. 0 makes all equal.
    pub zipf: f64,
    /// Number of sequences at a time.
    pub sequences: usize,
    /// Number of requests in all.
    pub requests: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Generated tokens of a request.
    pub generated: usize,
    /// Tokens of a step of the engine.
    pub step_tokens: usize,
    /// Bytes of weights that the processor reads a second.
    pub bandwidth: f64,
    /// Floating-point operations a second.
    pub flops: f64,
    /// Bytes a second of reading and packing modules.
    pub store: f64,
    /// Seed of the traffic.
    pub seed: u64,
}

/// What a simulated server did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Served {
    /// Virtual time.
    pub seconds: f64,
    /// Generated tokens a second, over all sequences.
    pub tokens_per_second: f64,
    /// Bytes of weights that were read from memory for each generated token.
    pub bytes_per_token: f64,
    /// Mean number of sequences in a step.
    pub sequences_in_step: f64,
    /// Modules (or copies of paths) that were loaded, the first ones included.
    pub loads: u64,
    /// Largest memory of modules in bytes.
    pub most_memory: f64,
}

/// Most paths of a simulation.
const MOST_PATHS: u32 = 1 << 16;
/// Most levels of a simulation.
const MOST_LEVELS: u32 = 64;
/// Sequences that may overtake the first that waits for its modules, as in the engine.
const OVERTAKERS: usize = 256;

impl ServedTraffic {
    fn paths(&self) -> Option<u32> {
        self.grid.checked_pow(self.levels).filter(|paths| (1..=MOST_PATHS).contains(paths))
    }

    fn check(&self) -> Result<u32, SimulateError> {
        for (what, value) in [
            ("parameters", self.parameters),
            ("bits", self.bits),
            ("bandwidth", self.bandwidth),
            ("flops", self.flops),
            ("store", self.store),
        ] {
            SimulateError::positive(what, value)?;
        }
        SimulateError::not_negative("zipf", self.zipf)?;
        for (what, value, most) in [
            ("sequences", self.sequences, 4096),
            ("requests", self.requests, 1_000_000),
            ("prompt", self.prompt, 1 << 20),
            ("generated", self.generated, 1 << 20),
            ("step_tokens", self.step_tokens, 1 << 16),
        ] {
            if !(1..=most).contains(&value) {
                let problem = "must be at least 1, and no more than anybody serves";
                return Err(SimulateError::Setting { what, value: value as f64, problem });
            }
        }
        if !(1..=MOST_LEVELS).contains(&self.levels) {
            let problem = "must be from 1 to 64";
            return Err(SimulateError::Setting { what: "levels", value: self.levels.into(), problem });
        }
        let too_many = SimulateError::Setting {
            what: "grid",
            value: self.grid.into(),
            problem: "must be at least 1, with at most 65536 paths in all",
        };
        let paths = self.paths().ok_or(too_many)?;
        if let Some(memory) = self.memory.filter(|memory| memory.is_nan() || *memory < self.path_bytes()) {
            let problem = "must be at least the bytes of one path";
            return Err(SimulateError::Setting { what: "memory", value: memory, problem });
        }
        Ok(paths)
    }

    /// Bytes of a path in memory.
    #[must_use]
    pub fn path_bytes(&self) -> f64 {
        self.parameters * self.bits / 8.0
    }
}

/// A sequence that runs.
struct Sequence {
    path: u32,
    prompt: usize,
    generated: usize,
}

/// Plays a server until all requests are answered. Equal arguments give equal numbers.
///
/// # Errors
/// [`SimulateError::Setting`] if a setting is out of range, or one path does not fit the memory.
pub fn serve_traffic(traffic: &ServedTraffic, batching: Batching) -> Result<Served, SimulateError> {
    let paths = traffic.check()?;
    let mut server = Server {
        traffic,
        batching,
        requests: Requests::new(traffic, paths),
        modules: LoadedModules::new(traffic.memory.unwrap_or(f64::INFINITY)),
        running: Vec::new(),
        waiting: VecDeque::new(),
        overtaken: 0,
        loading: None,
        now: 0.0,
        read: 0.0,
        steps: 0,
        stepped: 0,
    };
    for _ in 0..traffic.sequences {
        server.arrive();
    }
    while !(server.running.is_empty() && server.waiting.is_empty()) {
        server.load();
        match server.loading {
            Some((_, end)) if server.running.is_empty() => server.now = end,
            _ => server.step(),
        }
        server.finish_load();
    }
    let tokens = (traffic.requests * traffic.generated) as f64;
    Ok(Served {
        seconds: server.now,
        tokens_per_second: tokens / server.now,
        bytes_per_token: server.read / tokens,
        sequences_in_step: server.stepped as f64 / server.steps.max(1) as f64,
        loads: server.modules.loads,
        most_memory: server.modules.most_bytes,
    })
}

/// The paths of the requests, in order.
struct Requests {
    rng: ChaCha8Rng,
    /// Paths by popularity, with the sum of the shares up to each.
    shares: Vec<(f64, u32)>,
    left: usize,
}

impl Requests {
    fn new(traffic: &ServedTraffic, paths: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(traffic.seed);
        // Neighbours on the grid must not be neighbours in popularity.
        let mut ranks: Vec<u32> = (0..paths).collect();
        ranks.shuffle(&mut rng);
        let mut sum = 0.0;
        let share = |(rank, path): (usize, u32)| {
            sum += ((rank + 1) as f64).powf(-traffic.zipf);
            (sum, path)
        };
        let shares = ranks.into_iter().enumerate().map(share).collect();
        Self { rng, shares, left: traffic.requests }
    }

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let draw = self.rng.random::<f64>() * self.shares.last()?.0;
        let at = self.shares.partition_point(|&(sum, _)| sum <= draw);
        self.shares.get(at).or(self.shares.last()).map(|&(_, path)| path)
    }
}

struct Server<'a> {
    traffic: &'a ServedTraffic,
    batching: Batching,
    requests: Requests,
    modules: LoadedModules,
    running: Vec<Sequence>,
    /// Paths of sequences without modules.
    waiting: VecDeque<u32>,
    /// Sequences that overtook the first of the waiting.
    overtaken: usize,
    /// The path that is being loaded, and the time when it is there.
    loading: Option<(u32, f64)>,
    now: f64,
    read: f64,
    steps: u64,
    stepped: u64,
}

impl Server<'_> {
    /// The modules of a path, with the bytes of each.
    fn modules_of(&self, path: u32) -> (Vec<ModuleNumber>, f64) {
        let ServedTraffic { levels, grid, .. } = *self.traffic;
        if self.batching == Batching::Copies {
            return (vec![(0, path)], self.traffic.path_bytes());
        }
        let modules = (0..levels).map(|level| (level, path / grid.pow(level) % grid)).collect();
        (modules, self.traffic.path_bytes() / f64::from(levels))
    }

    /// The next request of a client.
    fn arrive(&mut self) {
        let Some(path) = self.requests.next() else { return };
        let (modules, _) = self.modules_of(path);
        let first = self.waiting.is_empty();
        if (first || self.overtaken < OVERTAKERS) && self.modules.has(&modules) {
            self.overtaken += usize::from(!first);
            self.begin(path);
        } else {
            self.waiting.push_back(path);
        }
    }

    fn begin(&mut self, path: u32) {
        let (modules, bytes) = self.modules_of(path);
        self.modules.hold(&modules, bytes);
        let ServedTraffic { prompt, generated, .. } = *self.traffic;
        self.running.push(Sequence { path, prompt, generated });
    }

    /// Begins to load the first path that waits, if there is room.
    fn load(&mut self) {
        let Some(&path) = self.waiting.front().filter(|_| self.loading.is_none()) else { return };
        let (modules, bytes) = self.modules_of(path);
        if let Some(missing) = self.modules.take_room(&modules, bytes) {
            self.loading = Some((path, self.now + missing as f64 * bytes / self.traffic.store));
        }
    }

    /// Starts the sequences whose modules are there.
    fn finish_load(&mut self) {
        let Some((path, _)) = self.loading.filter(|&(_, end)| end <= self.now) else { return };
        self.loading = None;
        self.modules.finish_load();
        self.waiting.pop_front();
        self.overtaken = 0;
        // `take_room` holds the modules already.
        let ServedTraffic { prompt, generated, .. } = *self.traffic;
        self.running.push(Sequence { path, prompt, generated });
        for path in std::mem::take(&mut self.waiting) {
            let may = self.waiting.is_empty() || self.overtaken < OVERTAKERS;
            if may && self.modules.has(&self.modules_of(path).0) {
                self.overtaken += usize::from(!self.waiting.is_empty());
                self.begin(path);
            } else {
                self.waiting.push_back(path);
            }
        }
    }

    /// One step of all running sequences.
    fn step(&mut self) {
        let mut budget = self.traffic.step_tokens.saturating_sub(self.running.len());
        // Rows of each group that goes through weights together, by what it reads.
        let mut groups: BTreeMap<ModuleNumber, (usize, f64)> = BTreeMap::new();
        let mut running = std::mem::take(&mut self.running);
        for sequence in &mut running {
            // A prompt gets a row like the others, and what is left of the step.
            let rows = if sequence.prompt > 0 {
                let more = budget.min(sequence.prompt - 1);
                budget -= more;
                sequence.prompt -= 1 + more;
                1 + more
            } else {
                1
            };
            if sequence.prompt == 0 {
                sequence.generated -= 1;
            }
            let (modules, bytes) = match self.batching {
                Batching::Module => self.modules_of(sequence.path),
                Batching::Path | Batching::Copies => (vec![(0, sequence.path)], self.traffic.path_bytes()),
            };
            for module in modules {
                groups.entry(module).or_insert((0, bytes)).0 += rows;
            }
        }
        let operations_of_byte = 2.0 * 8.0 / self.traffic.bits;
        for &(rows, bytes) in groups.values() {
            let compute = rows as f64 * bytes * operations_of_byte / self.traffic.flops;
            self.now += (bytes / self.traffic.bandwidth).max(compute);
            self.read += bytes;
        }
        self.steps += 1;
        self.stepped += running.len() as u64;
        let mut ended = 0;
        for sequence in running {
            if sequence.generated > 0 {
                self.running.push(sequence);
                continue;
            }
            let (modules, _) = self.modules_of(sequence.path);
            self.modules.release(&modules);
            ended += 1;
        }
        for _ in 0..ended {
            self.arrive();
        }
    }
}
