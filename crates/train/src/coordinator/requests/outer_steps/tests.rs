//! The owner of an outer step is woken, whoever finds that the step is due.

use dipaco_config::RunConfig;

use super::*;
use crate::coordinator::RunningCoordinator;
use crate::coordinator::requests::test_support::{WAIT, complete, granted, pass, two_paths, worker};
use crate::host::Role;

/// The module of a level.
fn module(level: u16) -> ModuleId {
    ModuleId { level, index: 0 }
}

/// A process of a synchronizer.
fn synchronizer(instance: u64) -> Peer {
    let process = ProcessId { instance, ..ProcessId::local("synchronizer") };
    Peer { process, role: Role::Synchronizer, numerics: String::new() }
}

/// The orders for a synchronizer that claims these modules and does not wait.
async fn orders_for(
    requests: &CoordinatorRequests,
    peer: &Peer,
    modules: &[ModuleId],
) -> Vec<OuterStepOrder> {
    let asked = OrdersAsked { modules, address: "host:1", revoked: 0, uploads: &[] };
    match requests.give_orders(peer, asked, Duration::ZERO).await.unwrap() {
        (Response::Orders { orders, .. }, None) => orders,
        (other, _) => panic!("no orders but {other:?}"),
    }
}

#[tokio::test]
async fn a_step_that_goes_back_to_the_coordinator_wakes_it() {
    let RunningCoordinator { requests, writer: _writer, .. } = two_paths(2, |_| ()).await;
    for peer in ["a", "b"].map(worker) {
        let lease = granted(requests.lease(&peer, &[], WAIT).await);
        complete(&requests, &peer, &lease).await;
    }
    let orders = orders_for(&requests, &synchronizer(1), &[module(0), module(1)]).await;
    assert_eq!(orders.iter().filter(|order| order.due).count(), 2);
    // As the coordinator does while it waits for outer steps.
    let contributed = requests.contributed.subscribe();
    let orders = orders_for(&requests, &synchronizer(2), &[module(0)]).await;
    assert_eq!(orders.len(), 1);
    {
        let ledger = requests.ledger();
        assert_eq!(ledger.owner_fence(module(1)), ledger.own_fence());
    }
    assert!(contributed.has_changed().unwrap(), "nobody else takes the step that is due");
}

#[tokio::test]
async fn who_finds_that_the_time_of_another_owners_step_has_come_wakes_that_owner() {
    let grace = |config: &mut RunConfig| (config.sync.quorum, config.sync.grace_seconds) = (1, 600.0);
    let RunningCoordinator { mut requests, writer: _writer, .. } = two_paths(1, grace).await;
    let peer = worker("a");
    let lease = granted(requests.lease(&peer, &[], WAIT).await);
    complete(&requests, &peer, &lease).await;
    let owner = synchronizer(1);
    // The grace period of its step begins.
    assert!(orders_for(&requests, &owner, &[module(0)]).await.is_empty());
    pass(&mut requests, Duration::from_secs(700), true);
    let waiting = requests.contributed.subscribe();
    let own = requests.ledger().own_fence();
    assert!(requests.orders(own).unwrap().is_empty());
    assert!(waiting.has_changed().unwrap());
    let orders = orders_for(&requests, &owner, &[module(0)]).await;
    assert!(orders.iter().any(|order| order.due), "{orders:?}");
}

#[tokio::test]
async fn a_stop_of_the_coordinator_is_no_grace_period() {
    for runs in [false, true] {
        let grace = |config: &mut RunConfig| (config.sync.quorum, config.sync.grace_seconds) = (1, 600.0);
        let RunningCoordinator { mut requests, writer: _writer, .. } = two_paths(1, grace).await;
        let peer = worker("a");
        let lease = granted(requests.lease(&peer, &[], WAIT).await);
        complete(&requests, &peer, &lease).await;
        let own = requests.ledger().own_fence();
        let is_due =
            |requests: &CoordinatorRequests| requests.orders(own).unwrap().iter().any(|order| order.due);
        // The grace period of its step begins.
        assert!(!is_due(&requests));
        pass(&mut requests, Duration::from_secs(700), runs);
        // Before any look at the deadlines.
        assert_eq!(is_due(&requests), runs);
    }
}
