//! The rounds of paths, summed over their leases.

use std::collections::BTreeMap;

use dipaco_telemetry::Event;
use dipaco_topology::PathId;

/// True if a lease has taken inner steps. A file of an earlier version does not tell their number: there a lease that only
/// measured has no loss.
pub(crate) fn has_trained(steps: Option<u64>, loss: f64) -> bool {
    steps.map_or(loss.is_finite(), |steps| steps > 0)
}

/// The leases of a path in a round so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathRound {
    round: u64,
    /// Number of these leases.
    pub leases: u64,
    /// Seconds of their inner steps.
    pub seconds: f64,
    /// Seconds before these without inner steps.
    pub waited_seconds: f64,
    /// Sum of the losses, each times its weight.
    losses: f64,
    weights: f64,
}

impl PathRound {
    /// Mean training loss in nats per token, weighted by inner steps; `None` without any.
    #[must_use]
    pub fn loss(&self) -> Option<f64> {
        (self.weights > 0.0).then(|| self.losses / self.weights)
    }
}

/// The last round of each path.
#[derive(Clone, Debug, Default)]
pub struct PathRounds {
    paths: BTreeMap<PathId, PathRound>,
}

impl PathRounds {
    /// Adds an event. If it ends a lease that has trained, returns the leases of its path in its round so far. A round that
    /// training repeats begins anew.
    pub fn add(&mut self, event: &Event) -> Option<PathRound> {
        match event {
            Event::RolledBack { .. } => {
                self.paths.clear();
                None
            }
            &Event::PathCompleted { path, round, steps, loss, seconds, waited_seconds, .. }
                if has_trained(steps, loss) =>
            {
                let sum = self.paths.entry(path).or_default();
                if sum.round != round {
                    *sum = PathRound { round, ..PathRound::default() };
                }
                sum.leases += 1;
                sum.seconds += seconds;
                sum.waited_seconds += waited_seconds;
                if loss.is_finite() {
                    // The leases of an earlier version weigh the same.
                    let weight = steps.unwrap_or(1) as f64;
                    sum.losses += weight * loss;
                    sum.weights += weight;
                }
                Some(*sum)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(path: u32, round: u64, steps: Option<u64>, loss: f64) -> Event {
        Event::PathCompleted {
            path: PathId(path),
            round,
            worker: "a".to_owned(),
            steps,
            loss,
            heldout_loss: None,
            best: false,
            seconds: 2.0,
            waited_seconds: 0.5,
        }
    }

    /// The losses of the rounds after these events, and their numbers of leases.
    fn losses(events: &[Event]) -> Vec<Option<(Option<f64>, u64)>> {
        let mut rounds = PathRounds::default();
        events.iter().map(|event| rounds.add(event).map(|round| (round.loss(), round.leases))).collect()
    }

    #[test]
    fn the_loss_of_a_round_is_the_mean_over_its_leases_by_inner_steps() {
        let events = [
            lease(0, 0, Some(10), 6.0),
            lease(1, 0, Some(40), 9.0),
            lease(0, 0, Some(30), 4.0),
            lease(0, 1, Some(40), 3.0),
            // Measures the end of the run.
            lease(0, 2, Some(0), f64::NAN),
        ];
        let expected =
            [Some((Some(6.0), 1)), Some((Some(9.0), 1)), Some((Some(4.5), 2)), Some((Some(3.0), 1))];
        assert_eq!(losses(&events), [&expected[..], &[None]].concat());
        let mut rounds = PathRounds::default();
        let last = [0, 1, 2].map(|index| rounds.add(&events[index]))[2].unwrap();
        assert_eq!((last.seconds, last.waited_seconds), (4.0, 1.0));
    }

    #[test]
    fn leases_of_an_earlier_version_weigh_the_same() {
        let events = [lease(0, 0, None, 6.0), lease(0, 0, None, 4.0), lease(0, 1, None, f64::NAN)];
        assert_eq!(losses(&events), [Some((Some(6.0), 1)), Some((Some(5.0), 2)), None]);
    }

    #[test]
    fn a_round_that_is_repeated_after_a_rollback_begins_anew() {
        let back = Event::RolledBack { from: 1, to: 0, undone: vec![1] };
        let events = [lease(0, 0, Some(10), 6.0), back, lease(0, 0, Some(10), 4.0)];
        assert_eq!(losses(&events), [Some((Some(6.0), 1)), None, Some((Some(4.0), 1))]);
    }
}
