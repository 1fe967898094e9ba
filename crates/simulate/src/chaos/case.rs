//! The run that a seed selects: settings and faults of a small run.

use std::time::Duration;

use dipaco_ledger::{LedgerPlan, ShardRecord};
use dipaco_sync::{
    Drops, FragmentId, LeaseLimits, Numerics, OuterRule, Rescale, Rests, Schedule, Scheme, Weighting,
    learner::Blend,
};
use dipaco_topology::{ModuleId, PathId, Topology};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Peers;

mod draws;
mod topologies;

use draws::{diverging, drawn_apart, faults, habit, liars, quorum, rests, synchronizer};
use topologies::{extended, freeze, topology};

/// Settings of a small run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) topology: Topology,
    pub(crate) schedule: Schedule,
    pub(crate) scheme: Scheme,
    pub(crate) blend: Blend,
    /// True if paths use eager updates.
    pub(crate) eager: bool,
    /// Seed of shard sampling; absent without sampling.
    pub(crate) sampling: Option<u64>,
    pub(crate) workers: Vec<Machine>,
    /// Number of peers that only lie.
    pub(crate) liars: usize,
    /// Number of workers that lie; the last ones of `workers`.
    pub(crate) lying_workers: usize,
    /// What these workers do.
    pub(crate) habit: Habit,
    /// Number of leases of a path after which it uploads its state.
    pub(crate) state_every: u32,
    /// Number of checkpoints to keep.
    pub(crate) checkpoints: usize,
    pub(crate) weighting: Weighting,
    /// A path whose training diverges for every worker.
    pub(crate) diverging: Option<Diverging>,
    /// A synchronizer with a process of its own.
    pub(crate) synchronizer: Option<SynchronizerCase>,
    /// True if a reader pins objects of the store.
    pub(crate) reads: bool,
    pub(crate) faults: Faults,
}

/// A synchronizer. Durations are means between two faults of the kind.
#[derive(Clone, Debug)]
pub(crate) struct SynchronizerCase {
    /// The modules that it claims.
    pub(crate) modules: Vec<ModuleId>,
    pub(crate) dies: Duration,
    pub(crate) hangs: Duration,
}

/// A path whose training diverges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverging {
    pub(crate) path: PathId,
    /// Every lease that goes beyond this inner step diverges.
    pub(crate) after: u64,
}

/// What a lying worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// It trains, and uploads states with wrong steps.
    WrongSteps,
    /// It trains a lease, so that it holds the newest state of a path. From then on it only says that it lives.
    StandsStill,
}

/// A machine of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Time of an inner step.
    pub(crate) step: Duration,
    /// Speed of its clock, 1 for a correct clock.
    pub(crate) clock: f64,
}

/// Faults of a run. Durations named after a fault are means between two faults of the kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Share of lost messages.
    pub(crate) lost: f64,
    /// Share of duplicated messages.
    pub(crate) doubled: f64,
    /// Longest delay of a message.
    pub(crate) delay: Duration,
    /// Share of answered requests that are repeated with different content.
    pub(crate) forged: f64,
    pub(crate) worker_crash: Duration,
    pub(crate) worker_pause: Duration,
    pub(crate) partition: Duration,
    pub(crate) coordinator_crash: Duration,
    /// Longest duration of a write to the disk.
    pub(crate) disk: Duration,
    /// End of all faults, so the run can end.
    pub(crate) until: Duration,
}

/// Rescaling and optimizer of outer steps, in every case.
pub(crate) const RESCALE: Rescale = Rescale::SQRT_PATHS;
pub(crate) const RULE: OuterRule = OuterRule { learning_rate: 0.5, momentum: 0.8 };

/// Duration of a lease without a heartbeat.
pub(crate) const LEASE: Duration = Duration::from_millis(2000);

/// Duration of a lease without a further inner step.
const STANDSTILL: Duration = Duration::from_millis(8000);

impl Case {
    /// The case of a seed among these peers.
    pub(crate) fn of_seed(seed: u64, peers: Peers) -> Result<Self, String> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let random = &mut random;
        let grid = freeze(seed, topology(random));
        let inner_steps: u64 = random.random_range(1..=5);
        let waits_for_some = random.random_bool(0.4);
        let dynamic = waits_for_some && random.random_bool(0.4);
        let most = u32::try_from(inner_steps.min(3)).unwrap_or(1);
        let fragments = if dynamic { 1 } else { random.random_range(1..=most) };
        let overlap = if dynamic { 0 } else { random.random_range(0..=inner_steps) };
        let mut ends = vec![random.random_range(1..=3) * inner_steps];
        if random.random_bool(0.3) {
            // Phases need not end where a fragment is received.
            ends.push(ends[0] + random.random_range(1..=2 * inner_steps));
        }
        let topology = extended(seed, &grid, ends.len()).map_err(|e| e.to_string())?;
        let eager = !waits_for_some && random.random_bool(0.2);
        let overlap = if eager { inner_steps } else { overlap };
        let drops = if dynamic || eager || random.random_bool(0.7) {
            Drops::default()
        } else {
            Drops::new(seed, random.random_range(0.0..0.7))
        };
        let rests = if waits_for_some { Rests::default() } else { rests(seed, &topology) };
        let schedule = if rests.any() {
            // Each outer gradient belongs to one round.
            Schedule::new(inner_steps, 1, 0, ends).and_then(|schedule| schedule.resting(rests.clone()))
        } else {
            Schedule::new(inner_steps, fragments, overlap, ends)
                .map(|schedule| schedule.eager(eager).without(drops))
        };
        let schedule = schedule.map_err(|e| e.to_string())?;
        let eager = eager && !rests.any();
        let sampling = (waits_for_some && random.random_bool(0.3)).then_some(seed);
        let scheme =
            if waits_for_some { quorum(random, topology.paths(), dynamic) } else { Scheme::Synchronous };
        let own = if eager || random.random_bool(0.5) { 0.0 } else { random.random_range(0.0..1.0) };
        let blend = Blend { own: if rests.any() { 0.0 } else { own } };
        let worker = |random: &mut ChaCha8Rng| Machine {
            step: Duration::from_micros(random.random_range(1_000..60_000)),
            clock: random.random_range(0.7..1.4),
        };
        let mut workers: Vec<_> = (0..random.random_range(1..=5)).map(|_| worker(random)).collect();
        let faults = faults(random);
        let (liars, lying_workers) = liars(random, peers, workers.len());
        workers.extend((0..lying_workers).map(|_| worker(random)));
        let state_every = if random.random_bool(0.5) { 1 } else { random.random_range(2..=4) };
        let checkpoints = random.random_range(0..=2);
        // Drawn apart, so that the cases of seeds without such a path stay as they are.
        let diverging = diverging(seed, &topology, schedule.total())
            // A path that rests from then on never diverges.
            .filter(|diverging| schedule.trained(diverging.path, diverging.after, schedule.total()) > 0);
        let synchronizer = synchronizer(seed, &topology);
        let weighting = if random.random_bool(0.8) { Weighting::ShardSize } else { Weighting::Uniform };
        Ok(Self {
            topology,
            schedule,
            scheme,
            blend,
            eager,
            sampling,
            workers,
            liars,
            lying_workers,
            habit: habit(seed),
            state_every,
            checkpoints,
            weighting,
            diverging,
            reads: drawn_apart(seed, 7, 0.25),
            synchronizer,
            faults,
        })
    }

    /// True if a fragment belongs to a level that trains.
    pub(crate) fn trains(&self, fragment: FragmentId) -> bool {
        self.topology.module_trains(fragment.module)
    }

    /// The same training by one worker, without faults.
    pub(crate) fn undisturbed(&self) -> Self {
        let never = Duration::from_secs(1 << 30);
        let faults = Faults {
            lost: 0.0,
            doubled: 0.0,
            delay: Duration::from_millis(1),
            forged: 0.0,
            worker_crash: never,
            worker_pause: never,
            partition: never,
            coordinator_crash: never,
            disk: Duration::from_millis(1),
            until: Duration::ZERO,
        };
        let workers = vec![Machine { step: Duration::from_millis(1), clock: 1.0 }];
        Self { faults, workers, liars: 0, lying_workers: 0, reads: false, synchronizer: None, ..self.clone() }
    }

    pub(crate) fn plan(&self) -> LedgerPlan {
        // Some runs have workers with more paths than states. No random number is drawn for it, so that older seeds
        // still name the same cases.
        let held_paths = if self.state_every.is_multiple_of(2) { 2 } else { usize::MAX };
        let of_silence = LeaseLimits::of_silence(LEASE);
        let limits = LeaseLimits { standstill: STANDSTILL, per_worker: 2, held_paths, ..of_silence };
        LedgerPlan {
            schedule: self.schedule.clone(),
            scheme: self.scheme,
            limits,
            state_every: self.state_every,
            checkpoints: self.checkpoints,
            sampling: self.sampling,
            weighting: self.weighting,
            rescale: RESCALE,
            guard: 0.0,
            quarantine_after: self.quarantine_after(),
            one_by_one: false,
            compares: false,
            numerics: Numerics::Any,
        }
    }

    /// Number of accounts that put a path into quarantine: a single honest worker must suffice for a path that diverges.
    pub(crate) fn quarantine_after(&self) -> usize {
        (self.workers.len() - self.lying_workers).clamp(1, 2)
    }

    /// The shards of all paths in a phase.
    pub(crate) fn shards(&self, phase: u32) -> Vec<ShardRecord> {
        let shard = |path: PathId| ShardRecord {
            file: format!("phase-{phase}/{path}"),
            hash: format!("{phase}-{path}"),
            documents: 1,
            tokens: 100 + 10 * u64::from(path.0),
        };
        self.topology.path_ids().map(shard).collect()
    }

    /// Description of the case in a line.
    pub(crate) fn describe(&self) -> String {
        let Faults { lost, doubled, worker_crash, coordinator_crash, .. } = self.faults;
        let scheme = match self.scheme {
            Scheme::Synchronous => "synchronous".to_owned(),
            Scheme::Quorum(quorum) => format!(
                "quorum of {}, grace {} ms{}",
                quorum.learners,
                quorum.grace.as_millis(),
                if quorum.dynamic_steps { ", dynamic steps" } else { "" }
            ),
        };
        format!(
            "{} paths {:?}{}{}{}{}, H {}, F {}, overlap {}{}{}{}, {} steps, {scheme}{}; {} workers, {} liars{}; of messages {:.0} % lost, {:.0} % doubled; \
             a worker dies every {:.1} s, the coordinator every {:.1} s",
            self.topology.paths(),
            self.topology.radices(),
            match (0..self.topology.levels()).find(|&level| !self.topology.trains(level)) {
                Some(level) => format!(", level {level} frozen"),
                None => String::new(),
            },
            match self.topology.paths() as usize - self.topology.trained_paths().len() {
                0 => String::new(),
                kept => format!(", {kept} kept"),
            },
            self.diverging.map_or(String::new(), |diverging| format!(", path {} diverges", diverging.path)),
            match &self.synchronizer {
                Some(synchronizer) => format!(", a synchronizer of {} modules", synchronizer.modules.len()),
                None => String::new(),
            },
            self.schedule.inner_steps(),
            self.schedule.fragments(),
            self.schedule.overlap(),
            if self.eager { ", eager" } else { "" },
            if self.schedule.drops().any() { ", some dropped" } else { "" },
            if self.schedule.rests().any() { ", some rest" } else { "" },
            self.schedule.total(),
            if self.sampling.is_some() { ", paths drawn" } else { "" },
            self.workers.len() - self.lying_workers,
            self.liars + self.lying_workers,
            if self.state_every > 1 { ", workers keep states" } else { "" },
            lost * 100.0,
            doubled * 100.0,
            worker_crash.as_secs_f64(),
            coordinator_crash.as_secs_f64(),
        )
    }
}
