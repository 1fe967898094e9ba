use dipaco_topology::{LevelConfig, Modules, TopologyConfig};
use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(60);

fn grid() -> Topology {
    let level = |blocks: &str, embedding, head| LevelConfig {
        modules: Modules::Count(2),
        blocks: blocks.into(),
        embedding,
        head,
    };
    let config =
        TopologyConfig { replicas: 1, levels: vec![level("0", true, false), level("1", false, true)] };
    Topology::new(&config, 2).unwrap()
}

fn start(rounds: u32) -> Rounds {
    let topology = grid();
    let progress = Progress::start(&topology);
    Rounds::new(topology, Plan { rounds, until: rounds, lease: LEASE }, progress, 1).unwrap()
}

fn lease(grant: Grant) -> Lease {
    match grant {
        Grant::Lease(lease) => lease,
        other => panic!("expected a lease, got {other:?}"),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_path_goes_on_when_its_own_modules_have_stepped() {
    let mut rounds = start(2);
    let leases: Vec<_> = (0..4).map(|_| lease(rounds.grant(at(0), "w", &[]))).collect();
    for l in &leases[..3] {
        assert_eq!(rounds.commit(l.path, 0, l.fence), Commit::Accepted);
    }
    // Paths 0 and 1 share 0/0, paths 0 and 2 share 1/0; the other two modules wait for path 3.
    let ready: Vec<_> = rounds.ready().iter().map(ToString::to_string).collect();
    assert_eq!(ready, ["0/0", "1/0"]);
    for module in rounds.ready() {
        assert_eq!(rounds.stepped(module), Some(1));
    }
    let next = lease(rounds.grant(at(1), "w", &[]));
    assert_eq!((next.path, next.round), (PathId(0), 1));
    let Grant::Wait(reason) = rounds.grant(at(1), "w", &[]) else { panic!() };
    assert_eq!(reason.to_string(), "module 0/1 waits for path 3 (leased to w)");
}

#[test]
fn a_worker_that_lost_its_lease_is_refused_and_a_retry_is_told_so() {
    let mut rounds = start(1);
    let zombie = lease(rounds.grant(at(0), "slow", &[]));
    assert!(rounds.expire(at(59)).is_empty());
    assert_eq!(rounds.expire(at(60)), vec![zombie.clone()]);
    let heir = lease(rounds.grant(at(61), "fast", &[]));
    assert_eq!(heir.path, zombie.path);
    assert!(heir.fence > zombie.fence);
    assert!(rounds.heartbeat(at(62), zombie.path, zombie.fence).is_err());
    assert!(matches!(rounds.commit(zombie.path, 0, zombie.fence), Commit::Refused(LeaseError::Lost { .. })));
    assert_eq!(rounds.commit(heir.path, 0, heir.fence), Commit::Accepted);
    assert_eq!(rounds.commit(heir.path, 0, heir.fence), Commit::Duplicate);
    assert_eq!(rounds.progress().paths[0].rounds, 1);
}

#[test]
fn heartbeats_keep_a_lease_alive() {
    let mut rounds = start(1);
    let held = lease(rounds.grant(at(0), "w", &[]));
    assert_eq!(rounds.heartbeat(at(50), held.path, held.fence).unwrap(), at(110));
    assert!(rounds.expire(at(109)).is_empty());
    assert_eq!(rounds.next_deadline(), Some(at(110)));
}

#[test]
fn a_restarted_coordinator_never_reuses_a_fence() {
    let mut before = start(1);
    let old = lease(before.grant(at(0), "w", &[]));
    let plan = Plan { rounds: 1, until: 1, lease: LEASE };
    let mut after = Rounds::new(grid(), plan, before.progress().clone(), 2).unwrap();
    let new = lease(after.grant(at(0), "w", &[]));
    assert!(new.fence > old.fence);
    assert!(matches!(after.commit(old.path, 0, old.fence), Commit::Refused(_)));
}

#[test]
fn a_worker_gets_the_path_whose_state_it_holds() {
    let mut rounds = start(1);
    assert_eq!(lease(rounds.grant(at(0), "w", &[PathId(2)])).path, PathId(2));
    assert_eq!(lease(rounds.grant(at(0), "w", &[PathId(2)])).path, PathId(0));
}

#[test]
fn at_the_end_of_a_phase_every_path_waits_and_goes_on_when_the_next_begins() {
    let topology = grid();
    let progress = Progress::start(&topology);
    let plan = Plan { rounds: 2, until: 1, lease: LEASE };
    let mut rounds = Rounds::new(topology, plan, progress, 1).unwrap();
    for _ in 0..4 {
        let lease = lease(rounds.grant(at(0), "w", &[]));
        rounds.commit(lease.path, lease.round, lease.fence);
    }
    assert!(!rounds.at_boundary(), "no module has stepped");
    let Grant::Wait(Reason::ModuleWaits { .. } | Reason::AllLeased { .. }) = rounds.grant(at(0), "w", &[])
    else {
        panic!()
    };
    for module in rounds.ready() {
        rounds.stepped(module);
    }
    assert!(rounds.at_boundary() && !rounds.finished());
    let Grant::Wait(reason) = rounds.grant(at(0), "w", &[]) else { panic!() };
    assert_eq!(reason, Reason::PhaseEnds { rounds: 1 });
    rounds.go_on(u32::MAX);
    assert!(!rounds.at_boundary());
    assert_eq!(lease(rounds.grant(at(0), "w", &[])).round, 1);
}

#[test]
fn progress_of_another_run_is_refused() {
    let plan = Plan { rounds: 1, until: 1, lease: LEASE };
    let dense = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
    let error = Rounds::new(grid(), plan, Progress::start(&dense), 1).unwrap_err();
    assert!(matches!(error, ProgressError::Topology { saved_paths: 1, paths: 4, .. }));
    let mut torn = Progress::start(&grid());
    torn.modules.insert(ModuleId { level: 0, index: 0 }, 2);
    assert!(matches!(Rounds::new(grid(), plan, torn, 1).unwrap_err(), ProgressError::Inconsistent { .. }));
}

/// What happens to the run in the property test.
#[derive(Clone, Debug)]
enum Event {
    Ask(u8),
    Commit(u8),
    Replay(u8),
    Heartbeat(u8),
    Tick(u8),
    Step,
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<u8>().prop_map(Event::Ask),
        4 => any::<u8>().prop_map(Event::Commit),
        1 => any::<u8>().prop_map(Event::Replay),
        1 => any::<u8>().prop_map(Event::Heartbeat),
        1 => any::<u8>().prop_map(Event::Tick),
        3 => Just(Event::Step),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    /// Whatever happens: every (path, round) counts once, versions only rise, no module steps before all its
    /// paths are in, and the run can always be brought to its end.
    #[test]
    fn every_contribution_counts_exactly_once(events in prop::collection::vec(event(), 0..120)) {
        let plan = Plan { rounds: 3, until: 3, lease: LEASE };
        let mut rounds = start(3);
        let mut now = at(0);
        let mut incarnation = 1;
        let mut known: Vec<Lease> = Vec::new();
        let mut counted = std::collections::BTreeSet::new();
        let drain = [Event::Tick(255), Event::Ask(0), Event::Ask(0), Event::Ask(0), Event::Ask(0),
            Event::Commit(0), Event::Commit(1), Event::Commit(2), Event::Commit(3), Event::Step, Event::Step, Event::Step, Event::Step];
        let all = events.into_iter().chain(std::iter::repeat_n(drain, 8).flatten());
        for event in all {
            let before = rounds.progress().clone();
            match event {
                Event::Ask(worker) => if let Grant::Lease(lease) = rounds.grant(now, &worker.to_string(), &[]) {
                    known.push(lease);
                },
                Event::Commit(i) | Event::Replay(i) if !known.is_empty() => {
                    let fresh = known.len().saturating_sub(4);
                    let pick = if matches!(event, Event::Commit(_)) { fresh + i as usize % (known.len() - fresh) } else { i as usize % known.len() };
                    let lease = known[pick].clone();
                    if rounds.commit(lease.path, lease.round, lease.fence) == Commit::Accepted {
                        prop_assert!(counted.insert((lease.path, lease.round, lease.task == Task::Measure)));
                    }
                }
                Event::Heartbeat(i) if !known.is_empty() => {
                    let lease = &known[i as usize % known.len()];
                    let _ = rounds.heartbeat(now, lease.path, lease.fence);
                }
                Event::Tick(seconds) => { now += at(u64::from(seconds)); rounds.expire(now); }
                Event::Step => if let Some(&module) = rounds.ready().first() {
                    let version = before.modules[&module];
                    for path in rounds.topology().paths_through(module) {
                        prop_assert!(counted.contains(&(path, version, false)));
                    }
                    rounds.stepped(module);
                },
                Event::Restart => {
                    incarnation += 1;
                    rounds = Rounds::new(grid(), plan, before.clone(), incarnation).unwrap();
                }
                _ => {}
            }
            for (module, version) in &before.modules {
                prop_assert!(rounds.progress().modules[module] >= *version);
            }
        }
        prop_assert!(rounds.finished());
        prop_assert_eq!(counted.len(), 4 * 3 + 4);
    }
}
