//! The end of a lease wakes the requests that it may answer, and no others. A worker counts as silent only while the coordinator
//! listens. A result counts only if the ledger is whole.

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dipaco_config::RunConfig;
use dipaco_ledger::LedgerError;
use dipaco_protocol::LeaseReport;
use dipaco_store::{Loaded, RunManifest};

use super::*;
use crate::coordinator::RunningCoordinator;
use crate::coordinator::requests::test_support::{WAIT, complete, granted, pass, record, two_paths, worker};
use crate::host::HostError;

/// The coordinator of a run of two paths that share a module. Outer steps wait for `quorum` paths, and with 0 the paths wait
/// for outer steps too.
async fn of_quorum(quorum: u32) -> RunningCoordinator {
    two_paths(1, |config| config.sync.quorum = quorum).await
}

async fn written(requests: &CoordinatorRequests) -> Option<Loaded<RunManifest>> {
    requests.intake.store.load::<RunManifest>().await.unwrap()
}

/// A coordinator that has all results of a lease but its completion, the lease's claim, and the manifest.
async fn with_results() -> (RunningCoordinator, LeaseClaim, Option<Loaded<RunManifest>>) {
    let coordinator = of_quorum(2).await;
    let (requests, peer) = (&coordinator.requests, worker("a"));
    let lease = granted(requests.lease(&peer, &[], WAIT).await);
    record(requests, &peer, &lease).await;
    let (claim, manifest) = (peer.claim(lease.key()), written(requests).await);
    (coordinator, claim, manifest)
}

/// True if `wait` is over without any further event.
async fn is_over(wait: impl Future<Output = ()>) -> bool {
    tokio::select! {
        biased;
        () = wait => true,
        () = ready(()) => false,
    }
}

#[tokio::test]
async fn a_worker_that_waits_gets_a_path_as_soon_as_its_lease_ends() {
    let RunningCoordinator { requests, writer: _writer, .. } = of_quorum(2).await;
    let [a, b, waiting] = ["a", "b", "waiting"].map(worker);
    let first = granted(requests.lease(&a, &[], WAIT).await);
    granted(requests.lease(&b, &[], WAIT).await);
    let asking = requests.lease(&waiting, &[], WAIT);
    tokio::pin!(asking);
    let mut look = async || {
        tokio::select! {
            biased;
            answer = &mut asking => Some(granted(answer)),
            () = ready(()) => None,
        }
    };
    assert!(look().await.is_none(), "both paths are leased");
    complete(&requests, &a, &first).await;
    // The second contribution of the quorum is not there, so no outer step wakes anybody.
    let freed = look().await.expect("the path is free, and its lease is granted at once");
    assert_eq!((freed.path, freed.from), (first.path, first.to));
}

#[tokio::test]
async fn the_end_of_a_lease_that_frees_no_path_wakes_its_own_worker_alone() {
    let RunningCoordinator { requests, writer: _writer, .. } = of_quorum(0).await;
    let [a, b, waiting] = ["a", "b", "waiting"].map(worker);
    let first = granted(requests.lease(&a, &[], WAIT).await);
    granted(requests.lease(&b, &[], WAIT).await);
    // Registered before, as requests that wait do.
    let everybody = requests.changed.notified();
    tokio::pin!(everybody);
    everybody.as_mut().enable();
    let of_process = [&a, &waiting].map(|peer| requests.waiting.begin(&peer.process, None));
    complete(&requests, &a, &first).await;
    assert!(!requests.ledger().state().has_free_path(), "the path waits for the other contribution");
    assert!(!is_over(everybody).await);
    let [own, other] = of_process;
    assert!(is_over(own.changed()).await);
    assert!(!is_over(other.changed()).await);
}

#[tokio::test]
async fn a_worker_may_ask_again_before_its_wait_is_as_long_as_a_lease() {
    let short = |config: &mut RunConfig| (config.sync.quorum, config.train.lease_seconds) = (2, 1);
    let RunningCoordinator { requests, writer: _writer, .. } = two_paths(1, short).await;
    let [a, b, waiting] = ["a", "b", "waiting"].map(worker);
    granted(requests.lease(&a, &[], WAIT).await);
    granted(requests.lease(&b, &[], WAIT).await);
    let begun = Instant::now();
    let (answer, _) = requests.lease(&waiting, &[], WAIT).await.unwrap();
    assert!(matches!(answer, Response::Wait { .. }), "{answer:?}");
    // A slow machine needs more than the half second, and nothing near the time that the worker asked for.
    assert!(begun.elapsed() < WAIT / 2);
}

#[tokio::test]
async fn a_request_after_a_stop_of_the_coordinator_forgets_no_worker() {
    for runs in [false, true] {
        let kept_by_workers = |config: &mut RunConfig| {
            (config.sync.quorum, config.train.state_every, config.train.held_paths) = (2, 9, 2);
        };
        let RunningCoordinator { mut requests, writer: _writer, .. } = two_paths(1, kept_by_workers).await;
        let [a, b, other] = ["a", "b", "other"].map(worker);
        let first = granted(requests.lease(&a, &[], WAIT).await);
        granted(requests.lease(&b, &[], WAIT).await);
        complete(&requests, &a, &first).await;
        pass(&mut requests, Duration::from_secs(120), runs);
        // Before any look at the deadlines. One path is leased, and the other one waits for the worker with its state.
        let (answer, _) = requests.lease(&other, &[], Duration::ZERO).await.unwrap();
        let granted = matches!(&answer, Response::Lease(lease) if lease.path == first.path);
        assert_eq!(granted, runs, "{answer:?}");
    }
}

#[tokio::test]
async fn a_ledger_that_a_panic_has_left_half_changed_is_not_written() {
    let (RunningCoordinator { requests, writer, .. }, claim, before) = with_results().await;
    let stopped = catch_unwind(AssertUnwindSafe(|| requests.change(|_| panic!("the bug of this test"))));
    assert!(stopped.is_err());
    let completed = requests.complete_lease(&claim, LeaseReport::default()).await;
    assert!(matches!(completed, Err(CoordinatorError::Stopped)));
    assert!(matches!(writer.stop().await, Err(CoordinatorError::Host(HostError::Broken))));
    assert_eq!(written(&requests).await, before);
}

#[tokio::test]
async fn a_change_that_fails_ends_the_coordinator_also_without_its_request_and_is_not_written() {
    let (RunningCoordinator { requests, writer, .. }, claim, before) = with_results().await;
    let request = requests.try_change(|ledger| {
        ledger.complete_lease(requests.now(), &claim, &LeaseReport::default())?;
        Err::<(), _>(LedgerError::Internal { what: "the bug of this test".to_owned() })
    });
    assert!(matches!(request, Err(CoordinatorError::Stopped)));
    // Nobody waits for the change, as after the end of its connection.
    requests.written.ended().await;
    let failure = writer.stop().await.unwrap_err();
    assert!(failure.to_string().contains("the bug of this test"), "{failure}");
    assert_eq!(written(&requests).await, before);
}

#[tokio::test]
async fn a_phase_that_can_not_begin_ends_the_coordinator_with_the_reason() {
    let RunningCoordinator { requests, writer, .. } = of_quorum(2).await;
    let begun = requests.begin_phase(Vec::new()).await.unwrap_err();
    assert!(matches!(begun, CoordinatorError::Stopped));
    requests.written.ended().await;
    let cause = writer.stop_after(begun).await;
    let expected = matches!(cause, CoordinatorError::Ledger(LedgerError::ShardCount { shards: 0, paths: 2 }));
    assert!(expected, "{cause}");
}
