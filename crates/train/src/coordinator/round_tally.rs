//! The beginning and the end of rounds, for the event file.

use std::collections::BTreeMap;
use std::ops::Range;

use dipaco_telemetry::Event;
use tokio::time::Instant;

/// Progress of the incomplete rounds under this coordinator. A round is H inner steps of every path.
#[derive(Debug)]
pub(crate) struct RoundTally {
    inner_steps: u64,
    /// Number of rounds that all paths have completed.
    completed: u64,
    /// Time at which the first path of a round was leased.
    begun: BTreeMap<u64, Instant>,
    /// Training losses of the leases that began in a round.
    losses: BTreeMap<u64, LossSum>,
}

/// Training losses of leases, in nats per token.
#[derive(Clone, Copy, Debug, Default)]
struct LossSum {
    /// Sum of the losses, each times the inner steps of its lease.
    losses: f64,
    /// Inner steps of these leases.
    steps: f64,
}

impl RoundTally {
    /// Continues after `completed` rounds.
    pub(crate) fn new(inner_steps: u64, completed: u64) -> Self {
        let inner_steps = inner_steps.max(1);
        Self { inner_steps, completed, begun: BTreeMap::new(), losses: BTreeMap::new() }
    }

    /// Notes that a path at this step was leased. Returns an event if it is the first path of its round.
    pub(crate) fn leased(&mut self, step: u64, now: Instant) -> Option<Event> {
        let round = step / self.inner_steps;
        let first = round >= self.completed && !self.begun.contains_key(&round);
        first.then(|| {
            self.begun.insert(round, now);
            Event::RoundStarted { round }
        })
    }

    /// Notes the mean loss of a lease that took these inner steps. It belongs to the round in which the lease began, as in the
    /// events of paths. A lease without a loss does not count.
    pub(crate) fn committed(&mut self, trained: Range<u64>, loss: f64) {
        if loss.is_finite() {
            let sum = self.losses.entry(trained.start / self.inner_steps).or_default();
            let steps = trained.end.saturating_sub(trained.start) as f64;
            sum.losses += steps * loss;
            sum.steps += steps;
        }
    }

    /// Notes that all paths have completed so many rounds. Returns the events of those that are new, in their order.
    pub(crate) fn completes(&mut self, rounds: u64, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        // A lease may reach into the next round, which then ends with this one and has no first lease of its own.
        let mut begun = now;
        for round in self.completed..rounds {
            begun = self.begun.remove(&round).unwrap_or(begun);
            let LossSum { losses, steps } = self.losses.remove(&round).unwrap_or_default();
            // The mean is NaN when this coordinator has seen no loss of the round.
            let loss = losses / steps;
            let seconds = now.duration_since(begun).as_secs_f64();
            events.push(Event::RoundCompleted { round, loss, seconds, wire_bytes: None });
        }
        self.completed = self.completed.max(rounds);
        events
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn completed(round: u64, loss: f64, seconds: f64) -> Event {
        Event::RoundCompleted { round, loss, seconds, wire_bytes: None }
    }

    #[test]
    fn a_round_begins_with_its_first_lease_and_ends_with_its_last_path() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut tally = RoundTally::new(10, 3);
        assert_eq!(tally.leased(30, at(1)), Some(Event::RoundStarted { round: 3 }));
        assert_eq!(tally.leased(30, at(2)), None);
        tally.committed(30..32, 5.0);
        tally.committed(32..40, 3.0);
        tally.committed(30..40, f64::NAN);
        assert!(tally.completes(3, at(3)).is_empty());
        assert_eq!(tally.leased(40, at(4)), Some(Event::RoundStarted { round: 4 }), "rounds overlap");
        tally.committed(30..40, 4.6);
        assert_eq!(tally.completes(4, at(6)), [completed(3, 4.0, 5.0)], "the mean over the inner steps");
        assert!(tally.completes(3, at(7)).is_empty(), "a late word");
        assert_eq!(tally.leased(35, at(7)), None, "it is over");
    }

    #[test]
    fn rounds_that_end_together_have_an_event_each() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut tally = RoundTally::new(10, 0);
        // One of two paths trains in the first two rounds, and the other one in the third.
        for (step, seconds, loss) in [(0, 0, 5.0), (10, 3, 4.0), (20, 5, 3.0)] {
            assert!(tally.leased(step, at(seconds)).is_some());
            tally.committed(step..step + 10, loss);
        }
        let expected = [completed(0, 5.0, 9.0), completed(1, 4.0, 6.0), completed(2, 3.0, 4.0)];
        assert_eq!(tally.completes(3, at(9)), expected);
        assert!(tally.losses.is_empty() && tally.begun.is_empty());
        // A lease of one and a half rounds ends two of them.
        assert!(tally.leased(35, at(10)).is_some());
        tally.committed(35..50, 2.0);
        let rounds = tally.completes(5, at(12)).into_iter().map(|event| match event {
            Event::RoundCompleted { round, loss, seconds, .. } => (round, loss.is_finite(), seconds),
            other => panic!("{other:?}"),
        });
        let expected = [(3, true, 2.0), (4, false, 2.0)];
        assert_eq!(rounds.collect::<Vec<_>>(), expected, "its loss is in the round in which it began");
    }
}
