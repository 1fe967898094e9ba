//! A liar of a simulated run: a peer with a valid token that sends what it likes.

use std::collections::VecDeque;

use dipaco_sync::{Fence, FragmentId, LeaseKey, LeaseOutcome, LeaseSecret, ProcessId, ScheduledSend};
use dipaco_topology::{ModuleId, PathId};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::case::Case;
use super::coordinator::ChaosRequest;
use super::object_store::Item;
use super::toy::{ToyGradient, ToyPathState, VALUES};

/// Leases that a liar remembers.
const REMEMBERED: usize = 8;

/// A liar and the leases that it got itself.
#[derive(Debug)]
pub(crate) struct Liar {
    pub(crate) process: ProcessId,
    own: VecDeque<LeaseKey>,
}

impl Liar {
    /// A liar with a token of its own, under the name of an honest worker.
    pub(crate) fn new(number: usize) -> Self {
        let (token, name) = (format!("liar-{number}"), format!("worker-{number}"));
        Self { process: ProcessId { token, name, instance: u64::MAX }, own: VecDeque::new() }
    }

    /// Remembers a granted lease. The liar never trains it.
    pub(crate) fn granted(&mut self, lease: LeaseKey) {
        self.own.push_back(lease);
        self.own.drain(..self.own.len().saturating_sub(REMEMBERED));
    }

    /// The next lie. `leases` are the leases of all workers: a liar may guess their fencing numbers, but no secret.
    pub(crate) fn lie(&self, case: &Case, random: &mut ChaCha8Rng, leases: &[LeaseKey]) -> ChaosRequest {
        let foreign = match leases {
            [] => LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::default() },
            leases => leases[random.random_range(0..leases.len())],
        };
        let guessed = LeaseKey { secret: LeaseSecret::new(random.random()), ..foreign };
        let own = self.own.back().copied().unwrap_or(guessed);
        match random.random_range(0..10) {
            // Leases that nobody trains, and paths that do not exist.
            0 => ChaosRequest::Ask { held: vec![PathId(0), PathId(99), PathId(u32::MAX)] },
            1 => ChaosRequest::Heartbeat { lease: own, taken: 0 },
            2 => ChaosRequest::Heartbeat { lease: guessed, taken: u64::MAX },
            3 => ChaosRequest::Follow { lease: guessed },
            4 | 5 => ChaosRequest::Upload { lease: guessed, item: gradient(case, random, foreign.path) },
            6 => ChaosRequest::Upload { lease: guessed, item: state(case, foreign.path) },
            7 => ChaosRequest::Complete { lease: guessed, done: LeaseOutcome::default() },
            8 => {
                let nowhere = LeaseKey { path: PathId(random.random_range(50..u32::MAX)), ..own };
                ChaosRequest::Upload { lease: nowhere, item: state(case, PathId(0)) }
            }
            // Fragments and numbers that no lease has.
            _ => ChaosRequest::Upload { lease: own, item: forged() },
        }
    }
}

/// An outer gradient to a fragment of a path, of large values.
fn gradient(case: &Case, random: &mut ChaCha8Rng, path: PathId) -> Item {
    let steps = case.schedule.total();
    let point = random.random_range(1..=steps);
    let module = case.topology.modules_of(path).first().copied();
    let module = module.unwrap_or(ModuleId { level: 0, index: 0 });
    let fragment = FragmentId { module, index: random.random_range(0..case.schedule.fragments()) };
    let number = u32::try_from(case.schedule.sent_through(fragment.index, point)).unwrap_or(u32::MAX);
    let send = ScheduledSend { fragment, step: point, number: number.max(1) };
    Item::Gradient(send, ToyGradient { values: [1e9; VALUES], seen: 0, steps: 0..point })
}

fn forged() -> Item {
    let fragment = FragmentId { module: ModuleId { level: 9, index: 9 }, index: u32::MAX };
    let send = ScheduledSend { fragment, step: u64::MAX, number: u32::MAX };
    Item::Gradient(send, ToyGradient { values: [f32::MAX; VALUES], seen: u32::MAX, steps: 0..u64::MAX })
}

fn state(case: &Case, path: PathId) -> Item {
    let fragments = dipaco_sync::fragment_ids_of(&case.topology, case.schedule.fragments(), path);
    let mut state = ToyPathState::start(&fragments);
    state.step = case.schedule.total();
    Item::State(Box::new(state))
}
