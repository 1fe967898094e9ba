//! Leases whose length follows the speed of their workers.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use dipaco_model::split;
use dipaco_path::{
    GlobalFragment, LeaseTraining, LeaseWatch, MomentSpecs, PathData, PathState, PathWeights, TrainDevice,
    TrainerMemory, train_lease,
};
use dipaco_protocol::WorkerPlan;
use dipaco_shards::TokenSet;
use dipaco_sync::{FragmentId, ScheduledSend};
use dipaco_topology::{ModuleId, PathId, TopologyConfig};

use support::{config, tokens};

/// Of rounds of 30 steps a worker of half the speed takes leases of 16, which end elsewhere than rounds.
#[test]
fn an_outer_gradient_has_the_tokens_of_its_lease() {
    let folder = tempfile::tempdir().unwrap();
    let file = tokens(&folder.path().join("shard.h5"), 0, 30);
    let mut config = config();
    config.topology = TopologyConfig::dense(config.model.blocks);
    config.train.inner_steps = 30;
    (config.sync.quorum, config.sync.dynamic_steps) = (1, true);
    let plan = WorkerPlan::new(&config);
    let start = dipaco_model::init(&config.model, 1).unwrap();
    let modules = split(&config.model, &plan.topology().unwrap(), &start).unwrap();
    let fragment = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };
    let global =
        GlobalFragment { fragment, values: Arc::new(modules[0].values.clone()), received: true, share: 1.0 };
    let (from, to) = (16, 32);
    let position = from * config.train.batch as u64;
    let moments = MomentSpecs::of_plan(&plan).unwrap();
    let mut state = PathState { step: from, position, ..PathState::start(&moments) };
    let weights = PathWeights::new(&plan, PathId(0), &[global], &mut state, false).unwrap();
    let opened = TokenSet::open(file.path()).unwrap();
    let data = PathData::new(opened, file.content_hash(), PathId(0), &plan).unwrap();
    let send = ScheduledSend { fragment, step: to, number: 2 };
    let lease = LeaseTraining {
        device: &TrainDevice::Cpu,
        plan: &plan,
        path: PathId(0),
        data: &data,
        phase_step: 0,
        to,
        sends: &[send],
        measures: true,
        memory: &TrainerMemory::default(),
    };
    let trained = train_lease(lease, weights, state, &LeaseWatch::default(), |_| panic!("early"));
    let trained = trained.unwrap().unwrap();
    // Each sequence of a step has at least one target.
    assert!(trained.report.tokens >= (to - from) * config.train.batch as u64);
    let sent: Vec<_> = trained.last.iter().map(|gradient| (gradient.send, gradient.tokens)).collect();
    assert_eq!(sent, [(send, trained.report.tokens)]);
}
