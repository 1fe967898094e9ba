use dipaco_topology::{LevelConfig, ModuleId, Modules, TopologyConfig};

use super::*;
use crate::{LeaseError, LeaseKey, LeaseRequest, LeaseSecret, LeaseTask, Reason};

mod costs;
mod early_sends;
mod following_leases;
mod holders;
mod leases;
mod quorum;
mod rests;
mod token_limits;

const LEASE: Duration = Duration::from_secs(60);
/// H.
const STEPS: u64 = 10;

impl RunState {
    /// Checks an outer gradient and counts it at once.
    fn contribute_claimed(
        &mut self,
        claim: &LeaseClaim,
        fragment: FragmentId,
        number: u32,
        tokens: u64,
    ) -> Commit<Option<EarlyContribution>> {
        match self.expects(claim, fragment, number, tokens) {
            Ok(expected) => self.contribute(&expected),
            Err(error) => Commit::Refused(error),
        }
    }
}

fn grid() -> Topology {
    let level = |blocks: &str, embedding, head| LevelConfig {
        modules: Modules::Count(2),
        blocks: blocks.into(),
        embedding,
        head,
        frozen: false,
    };
    let config = TopologyConfig::grid(1, vec![level("0", true, false), level("1", false, true)]);
    Topology::new(&config, 2).unwrap()
}

fn plan(ends: &[u64]) -> RunPlan {
    let schedule = Schedule::new(STEPS, 1, 0, ends.to_vec()).unwrap();
    RunPlan { schedule, scheme: Scheme::Synchronous, phase: 0, limits: LeaseLimits::of_silence(LEASE) }
}

fn begin(plan: RunPlan) -> RunState {
    let topology = grid();
    let progress = TrainingProgress::start(&topology, plan.schedule.fragments());
    RunState::new(topology, plan, progress, 1).unwrap()
}

fn start(rounds: u64) -> RunState {
    begin(plan(&[rounds * STEPS]))
}

fn request<'a>(worker: &'a ProcessId, held: &'a [PathId]) -> LeaseRequest<'a> {
    LeaseRequest { worker, held, secret: LeaseSecret::default(), numerics: "" }
}

fn lease(grant: Grant) -> Lease {
    match grant {
        Grant::Lease(lease) => *lease,
        other => panic!("expected a lease, got {other:?}"),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn commit(rounds: &mut RunState, lease: &Lease) -> Commit<BTreeMap<FragmentId, Contribution>> {
    rounds.commit(at(0), &lease.claim(), &LeaseOutcome::default())
}

fn step_all(rounds: &mut RunState, now: Duration) -> Vec<OuterStep> {
    let due = rounds.due(now);
    for step in &due {
        assert!(rounds.stepped(step, Duration::ZERO));
        assert!(!rounds.stepped(step, Duration::ZERO), "a step is taken once");
    }
    due
}

fn fragment(level: u16, index: u32, fragment: u32) -> FragmentId {
    FragmentId { module: ModuleId { level, index }, index: fragment }
}

#[test]
fn a_path_goes_on_when_its_own_modules_have_stepped() {
    let mut rounds = start(2);
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    assert_eq!((leases[0].from, leases[0].to), (0, STEPS));
    for l in &leases[..3] {
        assert!(matches!(commit(&mut rounds, l), Commit::Accepted(_)));
    }
    // Paths 0 and 1 share 0/0, paths 0 and 2 share 1/0; the other two modules wait for path 3.
    let stepped: Vec<_> =
        step_all(&mut rounds, at(0)).iter().map(|step| (step.fragment, step.version)).collect();
    assert_eq!(stepped, [(fragment(0, 0, 0), 1), (fragment(1, 0, 0), 1)]);
    let next = lease(rounds.grant(at(1), &request(&ProcessId::local("w"), &[])));
    assert_eq!((next.path, next.from), (PathId(0), STEPS));
    assert!(next.receives.iter().all(|receive| receive.version == 1));
    let Grant::Wait(reason) = rounds.grant(at(1), &request(&ProcessId::local("w"), &[])) else { panic!() };
    assert_eq!(reason.to_string(), "module 1/1 waits for path 3 (leased to w)");
}

#[test]
fn at_the_end_of_a_phase_every_path_waits_and_goes_on_when_the_next_begins() {
    let mut rounds = begin(plan(&[STEPS, 2 * STEPS]));
    for _ in 0..4 {
        let lease = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
        commit(&mut rounds, &lease);
    }
    assert!(!rounds.at_boundary(), "no module has stepped");
    let Grant::Wait(Reason::AllLeased { leases: 0 }) =
        rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))
    else {
        panic!()
    };
    step_all(&mut rounds, at(0));
    assert!(rounds.at_boundary() && !rounds.finished());
    let Grant::Wait(reason) = rounds.grant(at(0), &request(&ProcessId::local("w"), &[])) else { panic!() };
    assert_eq!(reason, Reason::PhaseEnds { steps: STEPS });
    rounds.go_on(1);
    assert!(!rounds.at_boundary());
    assert_eq!(lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))).from, STEPS);
}

#[test]
fn a_frozen_level_is_taken_over_and_never_sent_or_waited_for() {
    let mut level = TopologyConfig::dense(1).levels[0].clone();
    (level.blocks, level.modules, level.head, level.frozen) = (String::new(), Modules::Count(1), false, true);
    let trains = LevelConfig {
        modules: Modules::Count(2),
        blocks: "0".into(),
        embedding: false,
        head: true,
        frozen: false,
    };
    let topology = Topology::new(&TopologyConfig::grid(1, vec![level, trains]), 1).unwrap();
    let quorum =
        Quorum { learners: 1, grace: Duration::ZERO, grace_share: 0.0, throttle: 0.0, dynamic_steps: true };
    for scheme in [Scheme::Synchronous, Scheme::Quorum(quorum)] {
        let plan = RunPlan { scheme, ..plan(&[STEPS, 2 * STEPS]) };
        let progress = TrainingProgress::start(&topology, 1);
        let mut run = RunState::new(topology.clone(), plan.clone(), progress, 1).unwrap();
        let worker = ProcessId::local("w");
        for phase in 0..2 {
            run.go_on(phase);
            for _ in 0..2 {
                let lease = lease(run.grant(at(0), &request(&worker, &[])));
                let received: Vec<_> = lease.receives.iter().map(|r| (r.fragment, r.version)).collect();
                let own = fragment(1, lease.path.0, 0);
                assert_eq!(received, [(fragment(0, 0, 0), 0), (own, u32::try_from(phase).unwrap())]);
                assert_eq!(lease.sends.iter().map(|send| send.fragment).collect::<Vec<_>>(), [own]);
                let other = run.expects(&lease.claim(), fragment(0, 0, 0), 1, 0);
                assert!(matches!(other, Err(LeaseError::NotAsked { .. })), "{other:?}");
                assert!(matches!(commit(&mut run, &lease), Commit::Accepted(_)));
            }
            assert_eq!(step_all(&mut run, at(1)).len(), 2);
            RunState::new(topology.clone(), plan.clone(), run.progress().clone(), 2).unwrap();
        }
        for _ in 0..2 {
            let lease = lease(run.grant(at(2), &request(&worker, &[])));
            assert_eq!(lease.task, LeaseTask::Measure);
            assert!(matches!(commit(&mut run, &lease), Commit::Accepted(_)));
        }
        assert!(run.finished());
    }
}

#[test]
fn a_kept_path_gets_no_lease_and_nothing_waits_for_it() {
    // The grid and a path through the frozen module 0/0 and a new module 1/2.
    let level = |level: u16, modules| LevelConfig {
        modules: Modules::Count(modules),
        blocks: level.to_string(),
        embedding: level == 0,
        head: level == 1,
        frozen: level == 0,
    };
    let config = TopologyConfig {
        paths: [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]].map(|path| path.to_vec()).to_vec(),
        kept_paths: 4,
        ..TopologyConfig::grid(1, vec![level(0, 2), level(1, 3)])
    };
    let topology = Topology::new(&config, 2).unwrap();
    let quorum =
        Quorum { learners: 5, grace: Duration::ZERO, grace_share: 0.0, throttle: 0.0, dynamic_steps: true };
    for scheme in [Scheme::Synchronous, Scheme::Quorum(quorum)] {
        let plan = RunPlan { scheme, ..plan(&[2 * STEPS]) };
        let mut progress = TrainingProgress::start(&topology, 1);
        for kept in (0..4).map(PathId) {
            let kept = &mut progress.paths[&kept];
            (kept.steps, kept.measured) = (2 * STEPS, true);
        }
        let mut run = RunState::new(topology.clone(), plan.clone(), progress, 1).unwrap();
        run.sample_shards(1, vec![1000, 1000, 1000, 1000, 10]);
        let worker = ProcessId::local("w");
        for _ in 0..2 {
            let lease = lease(run.grant(at(0), &request(&worker, &[PathId(0)])));
            assert_eq!((lease.path, lease.task), (PathId(4), LeaseTask::Train));
            assert_eq!(lease.sends.iter().map(|send| send.fragment).collect::<Vec<_>>(), [fragment(1, 2, 0)]);
            let Grant::Wait(Reason::AllLeased { leases: 1 }) = run.grant(at(0), &request(&worker, &[]))
            else {
                panic!("a kept path has a task")
            };
            assert!(matches!(commit(&mut run, &lease), Commit::Accepted(_)));
            let stepped: Vec<_> = step_all(&mut run, at(1)).iter().map(|step| step.fragment).collect();
            assert_eq!(stepped, [fragment(1, 2, 0)]);
            RunState::new(topology.clone(), plan.clone(), run.progress().clone(), 2).unwrap();
        }
        let measure = lease(run.grant(at(2), &request(&worker, &[])));
        assert_eq!((measure.path, measure.task), (PathId(4), LeaseTask::Measure));
        assert!(matches!(commit(&mut run, &measure), Commit::Accepted(_)) && run.finished());
        assert_eq!(run.grant(at(3), &request(&worker, &[])), Grant::Finished);
    }
}

#[test]
fn progress_of_another_run_is_refused() {
    let dense = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
    let error = RunState::new(grid(), plan(&[STEPS]), TrainingProgress::start(&dense, 1), 1).unwrap_err();
    assert!(matches!(error, ProgressError::Topology { saved_paths: 1, paths: 4, .. }));
    let mut torn = TrainingProgress::start(&grid(), 1);
    torn.versions.insert(fragment(0, 0, 0), 2);
    assert!(matches!(
        RunState::new(grid(), plan(&[STEPS]), torn, 1).unwrap_err(),
        ProgressError::Inconsistent { .. }
    ));
}

/// Two fragments, H = 10, τ = 2: fragment 0 is sent at 3 and taken over at 5.
fn streaming() -> RunState {
    let schedule = Schedule::new(STEPS, 2, 2, vec![20]).unwrap();
    begin(RunPlan { schedule, scheme: Scheme::Synchronous, phase: 0, limits: LeaseLimits::of_silence(LEASE) })
}
