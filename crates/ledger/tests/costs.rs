//! What requests cost under the lock of the ledger: an answer to a synchronizer no more than what it says, and a result no look
//! at the results of other leases.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use dipaco_ledger::{
    CountRecord, FragmentRecord, LeaseResult, Ledger, LedgerPlan, ModuleRecord, Orders, PathRecord,
    Recording, RunManifest, ShardRecord, StoredResult, StoredRun, TrainingRecord,
};
use dipaco_sync::{ProcessId, Schedule, ScheduledSend};
use dipaco_topology::{LevelConfig, ModuleId, Modules, Topology, TopologyConfig};
use support::{NOW, lease, object, plan};

/// Fragments of a module.
const FRAGMENTS: u32 = 8;
/// Modules of each of the two levels; as many synchronizers own one module of each level.
const SIDE: u32 = 16;
const PATHS: u32 = SIDE * SIDE;

fn module(level: u16, index: u32) -> ModuleId {
    ModuleId { level, index }
}

/// A run of 256 paths through a grid of modules, each cut into fragments that a path sends within its first lease.
fn grid() -> Ledger {
    let level = |level: u16| LevelConfig {
        modules: Modules::Count(SIDE),
        blocks: level.to_string(),
        embedding: level == 0,
        head: level == 1,
        frozen: false,
    };
    let topology = Topology::new(&TopologyConfig::grid(1, vec![level(0), level(1)]), 2).unwrap();
    let fragment = |module: ModuleId, index: u32| FragmentRecord::first(object(&format!("{module}/{index}")));
    let modules = topology.module_ids().map(|module| ModuleRecord {
        module,
        fragments: (0..FRAGMENTS).map(|index| fragment(module, index)).collect(),
    });
    let counters = 2 * FRAGMENTS as usize;
    let path = PathRecord {
        sent: vec![0; counters],
        adopted: vec![0; counters],
        counted: vec![CountRecord::default(); counters],
        ..PathRecord::default()
    };
    let shard = ShardRecord { file: "shard".into(), hash: "h".into(), documents: 3, tokens: 100 };
    let training = TrainingRecord {
        origin: "origin".into(),
        rounds: 3,
        inner_steps: 16,
        boundaries: Vec::new(),
        phase: 0,
        shards: vec![shard; PATHS as usize],
        modules: modules.collect(),
        paths: vec![path; PATHS as usize],
        numerics: None,
        numerics_token: None,
    };
    let schedule = Schedule::new(16, FRAGMENTS, 16, vec![48]).unwrap();
    let plan = LedgerPlan { schedule, ..plan() };
    let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".into()) };
    Ledger::take_over(StoredRun { manifest, checkpoints: Vec::new(), names: Vec::new() }, topology, plan)
        .unwrap()
}

/// The result of an outer gradient.
fn gradient(send: &ScheduledSend) -> LeaseResult {
    LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 }
}

/// The orders for an owner, and the number of looks that they cost.
fn orders(ledger: &mut Ledger, fence: u64) -> (Orders, u64) {
    let before = ledger.state().looks();
    let orders = ledger.orders(NOW, fence).unwrap();
    (orders, ledger.state().looks() - before)
}

#[test]
fn orders_cost_what_they_say_and_not_what_other_owners_owe() {
    let mut ledger = grid();
    let own = ledger.own_fence();
    let synchronizers: Vec<u64> = (0..SIDE)
        .map(|index| {
            let owner = ProcessId::local(&format!("synchronizer {index:02}"));
            let modules = [module(0, index), module(1, index)];
            ledger.claim_modules(NOW, &owner, "host:1", &modules).unwrap().fence
        })
        .collect();
    let few = u64::from((PATHS * 2 * SIDE * FRAGMENTS).ilog2());
    let leases: Vec<_> = (0..PATHS).map(|path| lease(&mut ledger, &format!("worker {path:03}"))).collect();
    let (mut due, mut named) = (0, 0);
    for lease in &leases {
        for send in &lease.sends {
            let item = gradient(send);
            let object = object(&format!("{}-{}-{}", lease.path, send.fragment, send.number));
            let stored = StoredResult { object, norm: 1.0 };
            let recorded = ledger.check_and_record(&lease.claim(), item, send.step, stored).unwrap();
            assert!(matches!(recorded, Recording::Recorded), "{recorded:?}");
        }
        // Every result wakes all owners. The coordinator owns no module here: it finds what has become due, once.
        let (answer, looks) = orders(&mut ledger, own);
        assert!(answer.orders.is_empty() && answer.reduced.is_empty(), "{answer:?}");
        let at_most_due = if lease.path.0 < PATHS - SIDE { 1 } else { 2 } * u64::from(FRAGMENTS);
        assert!(looks <= at_most_due * u64::from(6 * SIDE), "{looks} looks after path {}", lease.path);
        assert_eq!(orders(&mut ledger, own).1, 0, "nothing is new");
        for &fence in &synchronizers {
            let (answer, looks) = orders(&mut ledger, fence);
            let says = answer.orders.iter().map(|order| 1 + order.shares.len() as u64).sum::<u64>();
            assert!(looks <= few + 3 * says, "{looks} looks for an answer that names {says}");
            due = answer.orders.iter().filter(|order| order.due).count();
            named += says;
        }
    }
    assert_eq!(due, 2 * FRAGMENTS as usize, "all steps of a synchronizer are due, and none has been taken");
    assert!(named > u64::from(PATHS * SIDE), "{named}");
    assert_eq!(ledger.next_deadline(Duration::from_secs(9)).unwrap(), Duration::from_secs(1), "of a lease");
}

#[test]
fn a_result_and_its_deletion_cost_no_look_at_the_results_of_other_leases() {
    let mut ledger = grid();
    let leases: Vec<_> = (0..PATHS).map(|path| lease(&mut ledger, &format!("worker {path:03}"))).collect();
    for lease in &leases {
        let of_lease = lease.sends.len() as u64 + 1;
        let gradients = lease.sends.iter().map(|send| (gradient(send), send.step));
        for (item, to) in gradients.chain([(LeaseResult::State, lease.to)]) {
            let object = object(&item.object_name(lease.key(), to, "hash"));
            let before = ledger.state().looks();
            let stored = StoredResult { object, norm: 1.0 };
            let recorded = ledger.check_and_record(&lease.claim(), item, to, stored).unwrap();
            assert!(matches!(recorded, Recording::Recorded), "{recorded:?}");
            let looks = ledger.state().looks() - before;
            assert!(looks <= of_lease, "{looks} looks for {item:?} of path {}", lease.path);
        }
        let state = LeaseResult::State.object_name(lease.key(), lease.to, "hash");
        let before = ledger.state().looks();
        assert!(ledger.unused([state]).is_empty(), "it counts with the end of its lease");
        let looks = ledger.state().looks() - before;
        assert!((1..=of_lease).contains(&looks), "{looks} looks for a deletion of path {}", lease.path);
    }
}
