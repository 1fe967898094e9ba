//! Ends leases at their deadline, but not for a time in which the coordinator itself did not run.

use std::convert::Infallible;
use std::time::Duration;

use dipaco_ledger::Ledger;

use crate::coordinator::requests::CoordinatorRequests;

impl CoordinatorRequests {
    /// Looks at the clock before a decision that depends on the silence of others, and returns the time. If the coordinator did not
    /// run until now, the ledger hears of it first: all timers are over then, and any task may be the first to decide.
    pub(super) fn look_at_clock(&self, ledger: &mut Ledger) -> Duration {
        let now = self.now();
        if let Some(without) = self.looks.look(now) {
            tracing::warn!(
                seconds = without.as_secs(),
                "the coordinator did not run for some time, because it was stopped or its machine is too busy; leases last \
                 as much longer"
            );
            ledger.postpone(now, without);
        }
        now
    }
}

/// Ends leases at their deadline.
pub(super) async fn watch_leases(requests: &CoordinatorRequests) -> Infallible {
    loop {
        // A statement of its own, so that the ledger is not locked during the wait.
        let deadline = requests.next_deadline();
        let look = requests.now().saturating_add(requests.looks.every);
        let next = deadline.map_or(look, |deadline| deadline.min(look));
        tokio::select! {
            () = tokio::time::sleep_until(requests.started + next) => {}
            () = requests.deadlines.notified() => {}
        }
        look_at_deadlines(requests);
    }
}

/// Ends what is over.
fn look_at_deadlines(requests: &CoordinatorRequests) {
    let now = requests.look_at_clock(&mut requests.ledger());
    // Heartbeats postpone deadlines, so every lease may still be valid.
    if requests.next_deadline().is_some_and(|deadline| deadline <= now) {
        requests.on_deadline();
    }
}

#[cfg(test)]
mod tests {
    use dipaco_config::RunConfig;
    use dipaco_sync::{Grant, LeaseRequest, LeaseSecret, ProcessId};

    use super::*;
    use crate::coordinator::RunningCoordinator;
    use crate::coordinator::requests::test_support::{NUMERICS, pass, two_paths};

    #[tokio::test]
    async fn the_silence_of_the_coordinator_itself_ends_no_lease() {
        // A stop is long or short for the leases of the run.
        for ((lease_seconds, passed), runs) in
            [(60, 120), (4, 5)].into_iter().flat_map(|times| [(times, false), (times, true)])
        {
            let lasts = |config: &mut RunConfig| config.train.lease_seconds = lease_seconds;
            let RunningCoordinator { mut requests, writer: _writer, .. } = two_paths(1, lasts).await;
            let worker = ProcessId::local("w");
            let secret = LeaseSecret::default();
            let ask = LeaseRequest { worker: &worker, held: &[], secret, numerics: NUMERICS };
            let now = requests.now();
            let lease = match requests.ledger().grant(now, &ask) {
                Grant::Lease(lease) => lease,
                other => panic!("no lease but {other:?}"),
            };
            pass(&mut requests, Duration::from_secs(passed), runs);
            look_at_deadlines(&requests);
            assert_eq!(requests.ledger().is_out(&lease.claim()), !runs, "{lease_seconds} {passed}");
        }
    }
}
