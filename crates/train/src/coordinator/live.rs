//! The present state of the training for those who watch it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dipaco_net::TrafficSource;
use dipaco_sync::Lease;
use dipaco_telemetry::{LiveLease, LiveModule, LivePath, LiveRun, LiveSource};

use crate::coordinator::requests::CoordinatorRequests;

/// Age from which on a look is repeated. A look goes through all paths while the ledger is locked, so it does not depend on
/// the number of people who watch.
const FRESH: Duration = Duration::from_millis(100);

/// The source of a running coordinator. It keeps nothing of the coordinator alive.
pub(super) fn source(requests: &Arc<CoordinatorRequests>, traffic: TrafficSource) -> LiveSource {
    let requests: Weak<CoordinatorRequests> = Arc::downgrade(requests);
    let last: Mutex<Option<(Duration, LiveRun)>> = Mutex::default();
    Arc::new(move || {
        let requests = requests.upgrade()?;
        let now = requests.now();
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, run)) = last.as_ref().filter(|(at, _)| now.saturating_sub(*at) < FRESH) {
            return Some(run.clone());
        }
        let run = look(&requests, &traffic);
        *last = Some((now, run.clone()));
        Some(run)
    })
}

fn look(requests: &CoordinatorRequests, traffic: &TrafficSource) -> LiveRun {
    let plan = &requests.intake.plan;
    let silence = Duration::from_secs(plan.train.lease_seconds);
    let now = requests.now();
    let traffic = traffic.read();
    let ledger = requests.ledger();
    let (state, topology) = (ledger.state(), ledger.state().topology());
    let mut modules: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for (fragment, version) in state.progress().versions.iter() {
        modules.entry(fragment.module).or_default().push(*version);
    }
    let modules = modules.into_iter().map(|(module, versions)| LiveModule {
        module,
        versions,
        paths: topology.paths_through(module).count(),
    });
    let lease = |lease: &Lease| LiveLease {
        worker: lease.worker.name.clone(),
        taken: lease.taken,
        asked: lease.to - lease.from,
        // A heartbeat sets the deadline to the longest silence from then on.
        silent_seconds: (now + silence).saturating_sub(lease.deadline).as_secs_f64(),
    };
    let paths = state.progress().paths.iter().map(|(&path, progress)| {
        let shard = ledger.shard(path).ok();
        LivePath {
            path,
            modules: topology.modules_of(path),
            steps: progress.steps,
            documents: shard.map_or(0, |shard| shard.documents),
            tokens: shard.map_or(0, |shard| shard.tokens),
            quarantined: state.is_quarantined(path),
            lease: state.lease(path).map(lease),
        }
    });
    LiveRun {
        run: ledger.run().to_owned(),
        rounds: plan.train.rounds,
        rounds_done: ledger.rounds_done(),
        inner_steps: plan.train.inner_steps,
        phase: state.phase() as u32,
        modules: modules.collect(),
        paths: paths.collect(),
        bytes_sent: traffic.udp_sent,
        bytes_received: traffic.udp_received,
        bytes_linked: requests.progress.linked(),
        bugs: requests.reception.bugs(),
        seconds: now.as_secs_f64(),
    }
}
