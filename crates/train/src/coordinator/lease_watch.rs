//! Ends leases at their deadline, but not for a time in which the coordinator itself did not run.

use std::convert::Infallible;
use std::time::Duration;

use crate::coordinator::requests::CoordinatorRequests;

/// Longest time between two looks at the clock.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);

/// After a look that is later than this the coordinator knows that it did not run meanwhile: somebody stopped its process or its
/// virtual machine, or the machine was far too busy. It heard no worker in this time, whatever the workers did.
///
/// The clock of leases stands still while a Linux or macOS machine sleeps, so a sleep takes no time from a lease.
const LATE: Duration = Duration::from_secs(5);

/// Ends leases at their deadline.
pub(super) async fn watch_leases(requests: &CoordinatorRequests) -> Infallible {
    loop {
        let last = requests.now();
        // A statement of its own, so that the ledger is not locked during the wait.
        let deadline = requests.next_deadline();
        let look = last.saturating_add(BETWEEN_LOOKS);
        let next = deadline.map_or(look, |deadline| deadline.min(look));
        tokio::select! {
            () = tokio::time::sleep_until(requests.started + next) => {}
            () = requests.deadlines.notified() => {}
        }
        look_at_deadlines(requests, last, next);
    }
}

/// Ends what is over. The look before was at `last`, and this one was to come at `next` at the latest.
fn look_at_deadlines(requests: &CoordinatorRequests, last: Duration, next: Duration) {
    let now = requests.now();
    if now.saturating_sub(next) > LATE {
        let without = now.saturating_sub(last);
        tracing::warn!(
            seconds = without.as_secs(),
            "the coordinator did not run for some time, because it was stopped or its machine is too busy; leases last as much \
             longer"
        );
        requests.ledger().postpone(now, without);
    }
    // Heartbeats postpone deadlines, so every lease may still be valid.
    if requests.next_deadline().is_some_and(|deadline| deadline <= now) {
        requests.on_deadline();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dipaco_config::RunConfig;
    use dipaco_sync::{Grant, LeaseRequest, LeaseSecret, ProcessId};

    use super::*;
    use crate::coordinator::RunningCoordinator;
    use crate::coordinator::requests::test_support::{NUMERICS, two_paths};

    #[tokio::test]
    async fn the_silence_of_the_coordinator_itself_ends_no_lease() {
        for stopped in [true, false] {
            let lasts = |config: &mut RunConfig| config.train.lease_seconds = 60;
            let RunningCoordinator { mut requests, writer: _writer, .. } = two_paths(1, lasts).await;
            let worker = ProcessId::local("w");
            let secret = LeaseSecret::default();
            let ask = LeaseRequest { worker: &worker, held: &[], secret, numerics: NUMERICS };
            let last = requests.now();
            let lease = match requests.ledger().grant(last, &ask) {
                Grant::Lease(lease) => lease,
                other => panic!("no lease but {other:?}"),
            };
            let deadline = requests.next_deadline().unwrap();
            // 120 seconds pass.
            Arc::get_mut(&mut requests).unwrap().started -= Duration::from_secs(120);
            let now = requests.now();
            let (last, next) = if stopped { (last, deadline) } else { (now, now) };
            look_at_deadlines(&requests, last, next);
            assert_eq!(requests.ledger().is_out(&lease.claim()), stopped);
        }
    }
}
