//! Tests of rounds in which some paths rest.

use super::*;
use crate::Rests;

/// A run of four paths, of which `awake` train in each round.
fn resting(awake: u32, ends: &[u64]) -> RunState {
    let plan = plan(ends);
    let schedule = plan.schedule.resting(Rests::new(5, 0..4, awake)).unwrap();
    let mut rounds = begin(RunPlan { schedule, ..plan });
    rounds.pass_over_idle();
    rounds
}

/// Grants and commits all leases that the run has now, and takes all outer steps that are due. Returns the leases.
fn play(rounds: &mut RunState) -> (Vec<Lease>, Vec<OuterStep>) {
    let (worker, mut leases) = (ProcessId::local("w"), Vec::new());
    while let Grant::Lease(granted) = rounds.grant(at(0), &request(&worker, &[])) {
        leases.push(*granted);
    }
    for lease in &leases {
        assert!(matches!(commit(rounds, lease), Commit::Accepted(_)));
        rounds.pass_over_idle();
    }
    let mut steps = Vec::new();
    loop {
        let due = step_all(rounds, at(0));
        rounds.pass_over_idle();
        if due.is_empty() {
            return (leases, steps);
        }
        steps.extend(due);
    }
}

/// The paths that train in the round which ends at this step.
fn awake(rounds: &RunState, end: u64) -> Vec<PathId> {
    let schedule = rounds.schedule();
    (0..4).map(PathId).filter(|&path| !schedule.rests_after(path, end - STEPS)).collect()
}

#[test]
fn only_the_drawn_paths_train_and_their_modules_merge_only_them() {
    let mut rounds = resting(2, &[40 * STEPS]);
    let (mut leases, mut steps) = (Vec::new(), Vec::new());
    while !rounds.finished() {
        let (granted, taken) = play(&mut rounds);
        assert!(!granted.is_empty() || !taken.is_empty(), "the run stands still");
        leases.extend(granted);
        steps.extend(taken);
    }
    for end in (1..=40).map(|round| round * STEPS) {
        let mut trained: Vec<PathId> = leases
            .iter()
            .filter(|lease| lease.to == end && lease.task == LeaseTask::Train)
            .map(|lease| {
                assert_eq!(lease.from, end - STEPS);
                lease.path
            })
            .collect();
        trained.sort_unstable();
        assert_eq!(trained, awake(&rounds, end), "round to {end}");
    }
    // Every module takes a step in every round; where all of its paths rest, of no contribution.
    assert_eq!(steps.len(), 4 * 40);
    for step in &steps {
        let expected = awake(&rounds, u64::from(step.version) * STEPS).into_iter();
        let through: Vec<PathId> = rounds.topology().paths_through(step.fragment.module).collect();
        let expected: Vec<PathId> = expected.filter(|path| through.contains(path)).collect();
        let merged: Vec<PathId> = step.contributions.iter().map(|c| c.path).collect();
        assert_eq!(merged, expected, "{} {}", step.fragment, step.version);
    }
    assert!(steps.iter().any(|step| step.contributions.is_empty()));
    for path in rounds.progress().paths.values() {
        assert_eq!((path.steps, path.measured, &path.sent[..]), (40 * STEPS, true, &[40, 40][..]));
    }
}

#[test]
fn a_run_goes_on_from_any_progress_and_over_the_end_of_a_phase() {
    let mut rounds = resting(1, &[3 * STEPS, 6 * STEPS]);
    let mut phases = 0;
    while !rounds.finished() {
        play(&mut rounds);
        if rounds.at_boundary() {
            rounds.go_on(1);
            rounds.pass_over_idle();
            phases += 1;
        }
        // A coordinator that takes over finds nothing to complain of, and the same work.
        let again = RunState::new(rounds.topology.clone(), rounds.plan.clone(), rounds.progress().clone(), 2);
        let again = again.unwrap();
        let open = |state: &RunState| state.ready.free().collect::<Vec<_>>();
        assert_eq!(open(&again), open(&rounds));
    }
    assert_eq!(phases, 1);
}

#[test]
fn a_round_in_which_all_paths_train_is_as_before() {
    assert!(!resting(4, &[STEPS]).schedule().rests().any());
    let schedule = resting(1, &[8 * STEPS]).schedule().clone();
    let total: u64 = (0..4).map(|path| schedule.trained(PathId(path), 0, 8 * STEPS)).sum();
    assert_eq!(total, 8 * STEPS);
    let refused = Schedule::new(STEPS, 2, 0, vec![STEPS]).unwrap().resting(Rests::new(1, 0..4, 2));
    assert_eq!(refused, Err(crate::ScheduleError::Rests));
    let refused = Schedule::new(STEPS, 1, 1, vec![STEPS]).unwrap().resting(Rests::new(1, 0..4, 2));
    assert_eq!(refused, Err(crate::ScheduleError::Rests));
}
