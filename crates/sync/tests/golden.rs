//! Schemes of the literature against numbers from outside, through the whole core: leases, schedule, what paths send and
//! receive, merging.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::learner::{self, Blend};
use dipaco_sync::{
    Commit, Drops, Fold, FoldRule, FoldTensor, FragmentId, Grant, LeaseLimits, LeaseOutcome, LeaseRequest,
    LeaseSecret, ProcessId, Rescale, RunPlan, RunState, Schedule, Scheme, TrainingProgress, Weighting,
    fragment_ids_of, merge_weights,
};
use dipaco_topology::{PathId, Topology, TopologyConfig};

/// `replicas` of one module of scalars, one a fragment, all of which begin at 1.
struct Replicas {
    rounds: RunState,
    schedule: Schedule,
    blend: Blend,
    outer: NesterovConfig,
    fragments: Vec<FragmentId>,
    global: BTreeMap<FragmentId, (f32, f32)>,
    /// Earlier versions.
    versions: BTreeMap<(FragmentId, u32), f32>,
    sent: BTreeMap<(FragmentId, PathId, u32), f32>,
    local: Vec<Vec<f32>>,
    base: Vec<Vec<f32>>,
    /// What each fragment of replica 0 is after each step.
    history: Vec<Vec<f32>>,
}

impl Replicas {
    fn new(replicas: u32, schedule: Schedule, own: f32, outer: NesterovConfig) -> Self {
        let topology = Topology::new(&TopologyConfig { replicas, ..TopologyConfig::dense(1) }, 1).unwrap();
        let fragments = schedule.fragments();
        let fragments = fragment_ids_of(&topology, fragments, PathId(0));
        let progress = TrainingProgress::start(&topology, schedule.fragments());
        let limits = LeaseLimits::of_silence(Duration::from_secs(60));
        let plan = RunPlan { schedule: schedule.clone(), scheme: Scheme::Synchronous, phase: 0, limits };
        let ones = vec![vec![1.0; fragments.len()]; replicas as usize];
        Self {
            rounds: RunState::new(topology, plan, progress, 1).unwrap(),
            schedule,
            blend: Blend { own },
            outer,
            global: fragments.iter().map(|&fragment| (fragment, (1.0, 0.0))).collect(),
            versions: fragments.iter().map(|&fragment| ((fragment, 0), 1.0)).collect(),
            sent: BTreeMap::new(),
            history: vec![vec![1.0]; fragments.len()],
            fragments,
            local: ones.clone(),
            base: ones,
        }
    }

    /// Trains to the end; `inner` is what an inner step adds to the fragments of a replica.
    fn run(mut self, inner: impl Fn(PathId, u64) -> f32) -> Vec<Vec<f32>> {
        loop {
            let worker = ProcessId::local("w");
            let request =
                LeaseRequest { worker: &worker, held: &[], secret: LeaseSecret::default(), numerics: "" };
            let lease = match self.rounds.grant(Duration::ZERO, &request) {
                Grant::Lease(lease) => *lease,
                Grant::Finished => return self.history,
                Grant::Wait(reason) => panic!("{reason}"),
            };
            let (path, i) = (lease.path, lease.path.index());
            for receive in &lease.receives {
                let slot = receive.fragment.index as usize;
                let global = self.versions[&(receive.fragment, receive.version)];
                let (base, local) = (&mut self.base[i][slot], &mut self.local[i][slot]);
                learner::receive(
                    std::slice::from_mut(base),
                    std::slice::from_mut(local),
                    &[global],
                    match (lease.from, self.schedule.keeps_own(path, receive.fragment.index, lease.from)) {
                        (0, _) => Blend::default(),
                        (_, true) => Blend { own: 1.0 },
                        (_, false) => self.blend,
                    },
                );
                if path == PathId(0) && lease.from > 0 {
                    // What is received after a step belongs to the step.
                    *self.history[slot].last_mut().unwrap() = self.local[i][slot];
                }
            }
            for step in lease.from + 1..=lease.to {
                self.local[i].iter_mut().for_each(|value| *value += inner(path, step));
                if path == PathId(0) {
                    let after = self.history.iter_mut().zip(&self.local[i]);
                    after.for_each(|(history, value)| history.push(*value));
                }
                for send in lease.sends.iter().filter(|send| send.step == step) {
                    let slot = send.fragment.index as usize;
                    let base = std::slice::from_mut(&mut self.base[i][slot]);
                    let gradient = learner::send(base, self.local[i][slot..=slot].to_vec())[0];
                    self.sent.insert((send.fragment, path, send.number), gradient);
                    if step < lease.to {
                        let expected =
                            self.rounds.expects(&lease.claim(), send.fragment, send.number, 0).unwrap();
                        let counted = self.rounds.contribute(&expected);
                        assert!(matches!(counted, Commit::Accepted(_)));
                    }
                }
                self.step();
            }
            let committed = self.rounds.commit(Duration::ZERO, &lease.claim(), &LeaseOutcome::default());
            assert!(matches!(committed, Commit::Accepted(_)));
            self.step();
        }
    }

    /// Takes the outer steps that are due.
    fn step(&mut self) {
        for step in self.rounds.due(Duration::ZERO) {
            let sizes: Vec<_> = step.contributions.iter().map(|c| (c.path, 1)).collect();
            if sizes.is_empty() {
                // All outer gradients are dropped: a new version with the same weights.
                self.versions.insert((step.fragment, step.version), self.global[&step.fragment].0);
                assert!(self.rounds.stepped(&step, Duration::ZERO));
                continue;
            }
            let weights = merge_weights(Weighting::Uniform, &sizes).unwrap();
            let rule = FoldRule { rescale: Rescale::NONE, ..FoldRule::default() };
            let mut fold = Fold::new(vec![FoldTensor::plain(1)], weights, rule);
            for c in &step.contributions {
                fold.announce(c.path).unwrap();
                fold.merge(c.path, vec![self.sent[&(step.fragment, c.path, c.number)]]).unwrap();
            }
            let merged = fold.finish().unwrap();
            let (weights, momentum) = self.global.get_mut(&step.fragment).unwrap();
            nesterov_step(
                std::slice::from_mut(weights),
                &merged,
                std::slice::from_mut(momentum),
                &self.outer,
            );
            self.versions.insert((step.fragment, step.version), *weights);
            assert!(self.rounds.stepped(&step, Duration::ZERO));
        }
        assert_eq!(self.fragments.len(), self.history.len());
    }
}

fn sgd(learning_rate: f64) -> NesterovConfig {
    NesterovConfig { learning_rate, momentum: 0.0 }
}

/// torchft's fixtures of DiLoCo: two replicas, two fragments synchronised every six steps and three apart, an inner step
/// of -2, an outer step of SGD with learning rate 2, a delay and a blend. Sixteen values, the first before training.
fn torchft(delay: u64, blend: f32) -> [Vec<f32>; 2] {
    let schedule = Schedule::new(6, 2, delay, vec![18]).unwrap();
    let mut history = Replicas::new(2, schedule, blend, sgd(2.0)).run(|_, _| -2.0);
    history.iter_mut().for_each(|values| values.truncate(16));
    history.try_into().unwrap()
}

#[test]
fn streaming_without_delay_as_in_torchft() {
    let [first, second] = torchft(0, 0.0);
    let expected =
        [1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59].map(|v: i16| v as f32);
    assert_eq!(first, expected);
    // 6 × 2 = 12 down, twice as far: 1 - 24 = -23; then -23 - 24.
    let expected =
        [1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53].map(|v: i16| v as f32);
    assert_eq!(second, expected);
}

#[test]
fn streaming_with_delay_as_in_torchft() {
    let [first, second] = torchft(1, 0.0);
    // Sent after step 2: 4 down, twice as far: 1 - 8 = -7 after step 3. Then 10 down after step 8: -7 - 20.
    let expected =
        [1, -1, -3, -7, -9, -11, -13, -15, -17, -27, -29, -31, -33, -35, -37, -47].map(|v: i16| v as f32);
    assert_eq!(first, expected);
    let expected =
        [1, -1, -3, -5, -7, -9, -19, -21, -23, -25, -27, -29, -39, -41, -43, -45].map(|v: i16| v as f32);
    assert_eq!(second, expected);
}

#[test]
fn streaming_that_blends_as_in_torchft() {
    let [first, _] = torchft(0, 0.5);
    // Global -11 and own -5 make -8. Six steps later own -20 is 9 below the anchor -11: global -29, and -24.5.
    // Then own -36.5 is 7.5 below -29: global -44, and -40.25.
    let expected = [
        1.0, -1.0, -3.0, -8.0, -10.0, -12.0, -14.0, -16.0, -18.0, -24.5, -26.5, -28.5, -30.5, -32.5, -34.5,
        -40.25,
    ];
    assert_eq!(first, expected);
    let [first, _] = torchft(1, 0.5);
    // Sent -3: global -7, with own -5 makes -6. Sent -16, 9 below -7: global -25, with own -18 makes -21.5.
    // Sent -31.5, 6.5 below -25: global -38, with own -33.5 makes -35.75.
    let expected = [
        1.0, -1.0, -3.0, -6.0, -8.0, -10.0, -12.0, -14.0, -16.0, -21.5, -23.5, -25.5, -27.5, -29.5, -31.5,
        -35.75,
    ];
    assert_eq!(first, expected);
    let [first, _] = torchft(1, 1.0);
    // Its own weights only: training without communication.
    assert_eq!(first, std::array::from_fn::<f32, 16, _>(|i| 1.0 - 2.0 * i as f32));
}

/// DiLoCo is F = 1, τ = 0: with the learning rate 1 and no momentum a module becomes the mean of its replicas (FedAvg),
/// and the first outer step with Nesterov overshoots it by 33 % (learning rate 0.7, momentum 0.9: 0.7 × 1.9 = 1.33).
#[test]
fn diloco_averages_and_nesterov_overshoots() {
    let down = |path: PathId, _| if path.0 == 0 { -2.0 } else { -4.0 };
    let plain = Schedule::new(5, 1, 0, vec![15]).unwrap();
    let history = Replicas::new(2, plain.clone(), 0.0, sgd(1.0)).run(down);
    assert_eq!((history[0][4], history[0][5], history[0][10]), (-7.0, -14.0, -29.0));
    let nesterov = NesterovConfig { learning_rate: 0.7, momentum: 0.9 };
    let history = Replicas::new(2, plain, 0.0, nesterov).run(down);
    assert!((history[0][5] - (1.0 - 1.33 * 15.0)).abs() < 1e-5, "{}", history[0][5]);
}

/// DiLoCo with dropped communication (arXiv:2311.08105, figure 8), written out: a replica whose outer gradient is dropped
/// goes on from its own weights, and its next outer gradient is the global weights of that time minus its own.
#[test]
fn a_dropped_replica_goes_on_from_its_own_weights() {
    let schedule = Schedule::new(2, 1, 0, vec![24]).unwrap().without(Drops::new(3, 0.4));
    let down = |path: PathId, step: u64| -f32::from(path.0 as u8 + 1) - f32::from((step % 5) as u8);
    let (mut global, mut local) = (1.0f32, [1.0f32; 3]);
    let mut expected = Vec::new();
    let mut drops = 0;
    for round in 1..=12 {
        for (path, local) in (0..).map(PathId).zip(&mut local) {
            *local += down(path, 2 * round - 1);
            *local += down(path, 2 * round);
        }
        let sent: Vec<PathId> =
            (0..3).map(PathId).filter(|&path| !schedule.dropped(path, 0, round)).collect();
        drops += 3 - sent.len();
        if !sent.is_empty() {
            let sum: f32 = sent.iter().map(|path| global - local[path.index()]).sum();
            global -= 0.5 * sum / sent.len() as f32;
        }
        sent.iter().for_each(|path| local[path.index()] = global);
        expected.push(local[0]);
    }
    assert!(drops > 8, "{drops}");
    let history = Replicas::new(3, schedule, 0.0, sgd(0.5)).run(down);
    let found: Vec<f32> = history[0].iter().skip(2).step_by(2).copied().collect();
    // The history ends with the replica's own weights, before the last outer step.
    for (round, (found, expected)) in found.iter().zip(&expected).enumerate().take(11) {
        assert!((found - expected).abs() < 1e-3, "round {round}: {found} for {expected}");
    }
}

/// Single-worker DiLoCo (Lookahead): one replica, the outer step alone makes the difference.
#[test]
fn one_replica_looks_ahead() {
    let schedule = Schedule::new(5, 1, 0, vec![10]).unwrap();
    let history = Replicas::new(1, schedule, 0.0, sgd(0.5)).run(|_, _| -2.0);
    assert_eq!((history[0][4], history[0][5]), (-7.0, -4.0));
}

/// Delayed updates (arXiv:2502.12996, algorithm 2) are τ = H without blending: what was sent a round ago is applied
/// while the next round trains from it.
#[test]
fn delayed_updates_apply_what_was_sent_a_round_ago() {
    let schedule = Schedule::new(2, 1, 2, vec![10]).unwrap();
    let history = Replicas::new(2, schedule, 0.0, sgd(1.0)).run(|_, _| -2.0);
    // Sent 4 after step 2, which comes with step 4: 1 - 4. Sent another 4 after step 4, which comes with step 6, and so
    // on; at the end what was sent after step 8 and what came after it: each of the ten inner steps counts once.
    assert_eq!(history[0], [1.0, -1.0, -3.0, -5.0, -3.0, -5.0, -7.0, -9.0, -11.0, -13.0, -19.0]);
}

/// With three fragments and more, some sends of a round move to the end of the run, and the take-overs at their steps with them.
#[test]
fn with_delayed_updates_of_any_number_of_fragments_each_inner_step_counts_once() {
    for (inner_steps, fragments) in [(4, 1), (4, 2), (6, 3), (7, 4), (5, 5)] {
        for rounds in 1..=3 {
            let steps = rounds * inner_steps;
            let schedule = Schedule::new(inner_steps, fragments, inner_steps, vec![steps]).unwrap();
            let history = Replicas::new(2, schedule, 0.0, sgd(1.0)).run(|_, _| -2.0);
            let last: Vec<f32> = history.iter().filter_map(|values| values.last().copied()).collect();
            let expected = vec![1.0 - 2.0 * steps as f32; fragments as usize];
            assert_eq!(last, expected, "{fragments} fragments, {rounds} rounds");
        }
    }
}
