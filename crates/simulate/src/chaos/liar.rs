//! Liars of a simulated run: peers with valid tokens that send what they like.

use std::collections::VecDeque;

use dipaco_ledger::{GrantedLease, LeaseReport, LeaseResult};
use dipaco_sync::{Fence, FragmentId, LeaseKey, LeaseSecret, ProcessId, fragment_ids_of};
use dipaco_topology::{ModuleId, PathId};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::case::Case;
use super::messages::ChaosRequest;
use super::object_store::Content;
use super::toy::{ToyGradient, ToyPathState, VALUES};

/// The token that all honest workers share.
pub(super) const HONEST: &str = "honest";

/// Leases and overheard requests that a liar remembers.
const REMEMBERED: usize = 8;

/// A liar, the leases that it got itself, and requests of others.
#[derive(Debug)]
pub(crate) struct Liar {
    pub(crate) process: ProcessId,
    own: VecDeque<GrantedLease>,
    overheard: VecDeque<ChaosRequest>,
}

impl Liar {
    /// A liar with a token of its own, under the name of an honest worker.
    pub(crate) fn new(number: usize) -> Self {
        let (token, name) = (format!("liar-{number}"), format!("worker-{number}"));
        let process = ProcessId { token, name, instance: u64::MAX };
        Self { process, own: VecDeque::new(), overheard: VecDeque::new() }
    }

    /// The process that sends a request. It has two names under its token, and it may also have the token of an honest worker
    /// and take its name. As that it asks for no lease: one token may train all paths alone, and this one trains nothing.
    pub(crate) fn next_process(&self, random: &mut ChaCha8Rng, request: &ChaosRequest) -> ProcessId {
        match random.random_range(0..4) {
            0 if !matches!(request, ChaosRequest::Ask { .. }) => {
                ProcessId { token: HONEST.to_owned(), ..self.process.clone() }
            }
            0 | 1 => self.process.clone(),
            _ => ProcessId { name: "twin".to_owned(), ..self.process.clone() },
        }
    }

    /// Remembers a granted lease.
    pub(crate) fn granted(&mut self, lease: GrantedLease) {
        self.own.push_back(lease);
        self.own.drain(..self.own.len().saturating_sub(REMEMBERED));
    }

    /// Remembers a request of an honest worker, with the secret of its lease. No liar can read it on the wire; it may
    /// leak from the machine of a worker.
    pub(crate) fn overhears(&mut self, request: ChaosRequest) {
        self.overheard.push_back(request);
        self.overheard.drain(..self.overheard.len().saturating_sub(REMEMBERED));
    }

    /// The next lie. `leases` are the leases of all workers: a liar may guess their fencing numbers.
    /// With `diverges` it also says of its own leases that their training diverges.
    pub(crate) fn lie(
        &self,
        case: &Case,
        random: &mut ChaCha8Rng,
        leases: &[LeaseKey],
        diverges: bool,
    ) -> ChaosRequest {
        let foreign = match leases {
            [] => LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::default() },
            leases => leases[random.random_range(0..leases.len())],
        };
        let guessed = LeaseKey { secret: LeaseSecret::new(random.random()), ..foreign };
        let own = self.own.back().map_or(guessed, GrantedLease::key);
        let upload = |lease, (item, content)| ChaosRequest::Upload { lease, item, content };
        match random.random_range(0..15) {
            // Leases that nobody trains, and paths that do not exist.
            0 => ChaosRequest::Ask { held: vec![PathId(0), PathId(99), PathId(u32::MAX)] },
            // Silence with heartbeats.
            1 => ChaosRequest::Heartbeat { lease: own, taken: 0, repeated: 0 },
            2 => ChaosRequest::Heartbeat { lease: guessed, taken: u64::MAX, repeated: u64::MAX },
            3 => ChaosRequest::Follow { lease: guessed },
            4 | 5 => upload(guessed, gradient(case, random, foreign.path)),
            6 => upload(guessed, state(case, foreign.path, case.schedule.total())),
            7 => ChaosRequest::Complete { lease: guessed, report: report(random) },
            8 => {
                let nowhere = LeaseKey { path: PathId(random.random_range(50..u32::MAX)), ..own };
                upload(nowhere, state(case, PathId(0), 1))
            }
            // A lease without its results.
            9 => ChaosRequest::Complete { lease: own, report: report(random) },
            // A state with wrong steps.
            10 => upload(own, state(case, own.path, u64::MAX)),
            11 if diverges => ChaosRequest::Diverged { lease: own, step: 0 },
            // The requests of others again.
            11..=13 if !self.overheard.is_empty() => {
                self.overheard[random.random_range(0..self.overheard.len())].clone()
            }
            // Fragments and numbers that no lease has.
            _ => upload(own, forged()),
        }
    }
}

/// An account of a lease that nobody trained.
fn report(random: &mut ChaCha8Rng) -> LeaseReport {
    let numbers = [f64::NAN, f64::INFINITY, -1e9, 1e-300, 0.0];
    let mut number = || numbers[random.random_range(0..numbers.len())];
    LeaseReport {
        loss: Some(number()),
        held_out_loss: Some(number()),
        seconds: number(),
        ..LeaseReport::default()
    }
}

/// An outer gradient to a fragment of a path, of large values.
fn gradient(case: &Case, random: &mut ChaCha8Rng, path: PathId) -> (LeaseResult, Content) {
    let point = random.random_range(1..=case.schedule.total());
    let module = case.topology.modules_of(path).first().copied();
    let module = module.unwrap_or(ModuleId { level: 0, index: 0 });
    let fragment = FragmentId { module, index: random.random_range(0..case.schedule.fragments()) };
    let number = u32::try_from(case.schedule.sent_through(fragment.index, point)).unwrap_or(u32::MAX).max(1);
    let item = LeaseResult::OuterGradient { fragment, number, tokens: random.random_range(0..100) };
    (item, Content::Gradient(ToyGradient { values: [1e9; VALUES], seen: 0, steps: 0..point }))
}

fn forged() -> (LeaseResult, Content) {
    let fragment = FragmentId { module: ModuleId { level: 9, index: 9 }, index: u32::MAX };
    let item = LeaseResult::OuterGradient { fragment, number: u32::MAX, tokens: u64::MAX };
    (item, Content::Gradient(ToyGradient { values: [f32::MAX; VALUES], seen: u32::MAX, steps: 0..u64::MAX }))
}

fn state(case: &Case, path: PathId, step: u64) -> (LeaseResult, Content) {
    let path = PathId(path.0 % case.topology.paths());
    let mut state = ToyPathState::start(&fragment_ids_of(&case.topology, case.schedule.fragments(), path));
    state.step = step;
    (LeaseResult::State, Content::State(Box::new(state)))
}
