//! The beginning and the end of rounds, for the event file.

use std::collections::BTreeMap;

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
    /// Training losses of the leases of a round, in nats per token.
    losses: BTreeMap<u64, Vec<f64>>,
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

    /// Notes the loss of a lease that ended at this step.
    pub(crate) fn committed(&mut self, step: u64, loss: f64) {
        self.losses.entry(step.saturating_sub(1) / self.inner_steps).or_default().push(loss);
    }

    /// Notes that all paths have completed so many rounds. Returns the events of those that are new, in their order.
    pub(crate) fn completes(&mut self, rounds: u64, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        // A lease may reach into the next round, which then ends with this one and has no first lease of its own.
        let mut begun = now;
        for round in self.completed..rounds {
            begun = self.begun.remove(&round).unwrap_or(begun);
            let losses = self.losses.remove(&round).unwrap_or_default();
            // The mean is NaN when this coordinator has seen no lease of the round.
            let loss =
                losses.iter().sum::<f64>() / f64::from(u32::try_from(losses.len()).unwrap_or(u32::MAX));
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
        tally.committed(35, 5.0);
        tally.committed(40, 4.0);
        assert!(tally.completes(3, at(3)).is_empty());
        assert_eq!(tally.leased(40, at(4)), Some(Event::RoundStarted { round: 4 }), "rounds overlap");
        tally.committed(40, 3.0);
        assert_eq!(tally.completes(4, at(6)), [completed(3, 4.0, 5.0)]);
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
            tally.committed(step + 10, loss);
        }
        let expected = [completed(0, 5.0, 9.0), completed(1, 4.0, 6.0), completed(2, 3.0, 4.0)];
        assert_eq!(tally.completes(3, at(9)), expected);
        assert!(tally.losses.is_empty() && tally.begun.is_empty());
        // A lease of one and a half rounds ends two of them.
        assert!(tally.leased(35, at(10)).is_some());
        tally.committed(50, 2.0);
        let seconds = tally.completes(5, at(12)).into_iter().map(|event| match event {
            Event::RoundCompleted { round, seconds, .. } => (round, seconds),
            other => panic!("{other:?}"),
        });
        assert_eq!(seconds.collect::<Vec<_>>(), [(3, 2.0), (4, 2.0)]);
    }
}
