//! The beginning and the end of rounds, for the event file.

use std::collections::BTreeMap;

use dipaco_telemetry::Event;
use dipaco_topology::PathId;
use tokio::time::Instant;

/// Progress of the incomplete rounds under this coordinator. A round is H inner steps of every path.
#[derive(Debug)]
pub(crate) struct RoundTally {
    created: Instant,
    inner_steps: u64,
    /// Inner steps of each path.
    steps: Vec<u64>,
    /// Number of paths by the rounds that they have completed.
    completed: BTreeMap<u64, usize>,
    /// Time at which the first path of a round was leased.
    begun: BTreeMap<u64, Instant>,
    /// Training losses of the leases of a round, in nats per token.
    losses: BTreeMap<u64, Vec<f64>>,
}

impl RoundTally {
    /// Continues with paths that have taken `steps` inner steps.
    pub(crate) fn new(inner_steps: u64, steps: &[u64], now: Instant) -> Self {
        let inner_steps = inner_steps.max(1);
        let mut completed = BTreeMap::new();
        for steps in steps {
            *completed.entry(steps / inner_steps).or_default() += 1;
        }
        Self {
            created: now,
            inner_steps,
            steps: steps.to_vec(),
            completed,
            begun: BTreeMap::new(),
            losses: BTreeMap::new(),
        }
    }

    /// Notes that a path at this step was leased. Returns an event if it is the first path of its round.
    pub(crate) fn leased(&mut self, step: u64, now: Instant) -> Option<Event> {
        let round = step / self.inner_steps;
        let first = round >= self.completed() && !self.begun.contains_key(&round);
        first.then(|| {
            self.begun.insert(round, now);
            Event::RoundStarted { round }
        })
    }

    /// Notes that a path has been trained up to a step. Returns an event if this completes a round.
    pub(crate) fn committed(&mut self, path: PathId, step: u64, loss: f64, now: Instant) -> Option<Event> {
        let before = self.completed();
        self.losses.entry(step.saturating_sub(1) / self.inner_steps).or_default().push(loss);
        let passed = std::mem::replace(self.steps.get_mut(path.index())?, step) / self.inner_steps;
        self.moves(passed, step / self.inner_steps);
        let round = self.completed().checked_sub(1).filter(|round| *round >= before)?;
        let begun = self.begun.remove(&round).unwrap_or(self.created);
        let losses = self.losses.remove(&round).unwrap_or_default();
        // The mean is NaN when all leases of the round were completed under an earlier coordinator.
        let loss = losses.iter().sum::<f64>() / f64::from(u32::try_from(losses.len()).unwrap_or(u32::MAX));
        let seconds = now.duration_since(begun).as_secs_f64();
        Some(Event::RoundCompleted { round, loss, seconds, wire_bytes: None })
    }

    /// Notes that a path with so many completed rounds has completed another number.
    fn moves(&mut self, from: u64, to: u64) {
        if let Some(paths) = self.completed.get_mut(&from) {
            *paths -= 1;
            if *paths == 0 {
                self.completed.remove(&from);
            }
        }
        *self.completed.entry(to).or_default() += 1;
    }

    /// Number of rounds that all paths have completed.
    fn completed(&self) -> u64 {
        self.completed.keys().next().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_round_begins_with_its_first_lease_and_ends_with_its_last_path() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut tally = RoundTally::new(10, &[30, 30], start);
        assert_eq!(tally.leased(30, at(1)), Some(Event::RoundStarted { round: 3 }));
        assert_eq!(tally.leased(30, at(2)), None);
        assert_eq!(tally.committed(PathId(0), 35, 5.0, at(3)), None);
        assert_eq!(tally.committed(PathId(0), 40, 4.0, at(3)), None);
        assert_eq!(tally.leased(40, at(4)), Some(Event::RoundStarted { round: 4 }), "rounds overlap");
        let completed = Event::RoundCompleted { round: 3, loss: 4.0, seconds: 5.0, wire_bytes: None };
        assert_eq!(tally.committed(PathId(1), 40, 3.0, at(6)), Some(completed));
        assert_eq!(tally.leased(35, at(7)), None, "it is over");
    }
}
