//! The parts of a case that its seed draws.

use std::time::Duration;

use dipaco_sync::{Quorum, Rests, Scheme};
use dipaco_topology::{PathId, Topology};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Diverging, Faults, Habit, SynchronizerCase};
use crate::chaos::Peers;

/// A quorum for these paths.
pub(super) fn quorum(random: &mut ChaCha8Rng, paths: u32, dynamic_steps: bool) -> Scheme {
    Scheme::Quorum(Quorum {
        learners: random.random_range(1..=paths),
        grace: Duration::from_millis(random.random_range(0..300)),
        grace_share: 0.5,
        throttle: if random.random_bool(0.7) { 0.0 } else { random.random_range(0.0..1.0) },
        dynamic_steps,
    })
}

/// Numbers of peers that only lie, and of workers that lie, beside this number of honest workers.
pub(super) fn liars(random: &mut ChaCha8Rng, peers: Peers, honest: usize) -> (usize, usize) {
    // At most half as many as the honest workers, rounded up: one of two peers, two of five.
    let most = honest.div_ceil(2);
    let liars = match peers {
        Peers::Honest => 0,
        Peers::SomeLie => random.random_range(1..=most),
        Peers::Mixed if random.random_bool(0.5) => random.random_range(0..=most),
        Peers::Mixed => 0,
    };
    let lying_workers = if liars > 0 { random.random_range(0..=1) } else { 0 };
    (liars - lying_workers, lying_workers)
}

/// Chosen in this share of the cases. Drawn from a stream of random numbers of its own, so that the other cases stay as they
/// are.
pub(super) fn drawn_apart(seed: u64, stream: u64, share: f64) -> bool {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random.random_bool(share)
}

/// In a quarter of the cases, a synchronizer of some modules. Drawn apart, so that the other cases stay as they are.
pub(super) fn synchronizer(seed: u64, topology: &Topology) -> Option<SynchronizerCase> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(8);
    let chosen = random.random_bool(0.25);
    let first = random.random_range(0..topology.module_ids().count());
    let mut often = || Duration::from_millis(random.random_range(500..5_000));
    let (dies, hangs) = (often(), often());
    // From one of them to the last, so that the coordinator has some of its own in most cases.
    let modules = topology.module_ids().skip(first).collect();
    chosen.then_some(SynchronizerCase { modules, dies, hangs })
}

/// In one of eight cases, a path that diverges after some of its steps.
pub(super) fn diverging(seed: u64, topology: &Topology, steps: u64) -> Option<Diverging> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(2);
    // The last path of a run never goes into quarantine.
    let kept = topology.paths() - u32::try_from(topology.trained_paths().len()).unwrap_or(0);
    let chosen = random.random_bool(0.125) && topology.trained_paths().len() > 1;
    chosen.then(|| Diverging {
        path: PathId(random.random_range(kept..topology.paths())),
        after: random.random_range(0..steps),
    })
}

/// Drawn apart, so that the other cases stay as they are.
pub(super) fn habit(seed: u64) -> Habit {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(6);
    if random.random_bool(0.5) { Habit::WrongSteps } else { Habit::StandsStill }
}

/// In a fifth of the cases, rounds in which some paths rest. Drawn apart, so that the other cases stay as they are.
pub(super) fn rests(seed: u64, topology: &Topology) -> Rests {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(5);
    let trained = u32::try_from(topology.trained_paths().len()).unwrap_or(0);
    if trained < 2 || !random.random_bool(0.2) {
        return Rests::default();
    }
    let kept = topology.paths() - trained;
    Rests::new(seed, kept..topology.paths(), random.random_range(1..trained))
}

pub(super) fn faults(random: &mut ChaCha8Rng) -> Faults {
    // Each kind of fault is absent in a part of the cases, so no fault hides the bugs that another would reveal.
    let share = |random: &mut ChaCha8Rng, most: f64| {
        if random.random_bool(0.4) { 0.0 } else { random.random_range(0.0..most) }
    };
    let every = |random: &mut ChaCha8Rng, least: u64, most: u64| {
        let never = Duration::from_secs(1 << 30);
        if random.random_bool(0.35) { never } else { Duration::from_millis(random.random_range(least..most)) }
    };
    Faults {
        lost: share(random, 0.3),
        doubled: share(random, 0.3),
        delay: Duration::from_millis(random.random_range(1..400)),
        forged: share(random, 0.3),
        worker_crash: every(random, 300, 6_000),
        worker_pause: every(random, 300, 6_000),
        partition: every(random, 500, 6_000),
        coordinator_crash: every(random, 300, 6_000),
        disk: Duration::from_millis(random.random_range(1..60)),
        until: Duration::from_secs(20),
    }
}
