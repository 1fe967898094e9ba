//! When rounds begin and end, for the event file.

use std::collections::BTreeMap;

use dipaco_telemetry::Event;
use dipaco_topology::{ModuleId, PathId};
use tokio::time::Instant;

/// What this coordinator has seen of the rounds that are not complete.
#[derive(Debug)]
pub(crate) struct RoundTally {
    created: Instant,
    /// Version of each module.
    versions: BTreeMap<ModuleId, u32>,
    /// When the first path of a round was leased.
    begun: BTreeMap<u32, Instant>,
    /// Mean training loss of each path in a round.
    losses: BTreeMap<u32, BTreeMap<PathId, f64>>,
}

impl RoundTally {
    /// Continues from these versions of the modules.
    pub(crate) fn new(versions: BTreeMap<ModuleId, u32>, now: Instant) -> Self {
        Self { created: now, versions, begun: BTreeMap::new(), losses: BTreeMap::new() }
    }

    /// A path of a round was leased: an event if it is the first.
    pub(crate) fn leased(&mut self, round: u32, now: Instant) -> Option<Event> {
        let first = round >= self.completed() && !self.begun.contains_key(&round);
        first.then(|| {
            self.begun.insert(round, now);
            Event::RoundStarted { round: round.into() }
        })
    }

    /// A round of a path counts.
    pub(crate) fn committed(&mut self, path: PathId, round: u32, loss: f64) {
        self.losses.entry(round).or_default().insert(path, loss);
    }

    /// A module took its outer step: an event if it was the last of its round.
    pub(crate) fn stepped(&mut self, module: ModuleId, version: u32, now: Instant) -> Option<Event> {
        let before = self.completed();
        self.versions.insert(module, version);
        let round = self.completed().checked_sub(1).filter(|round| *round >= before)?;
        let begun = self.begun.remove(&round).unwrap_or(self.created);
        let losses = self.losses.remove(&round).unwrap_or_default();
        let sum: f64 = losses.values().sum();
        Some(Event::RoundCompleted {
            round: round.into(),
            // Without any, as when they came before this coordinator, there is no mean: it is NaN.
            loss: sum / f64::from(u32::try_from(losses.len()).unwrap_or(u32::MAX)),
            seconds: now.duration_since(begun).as_secs_f64(),
        })
    }

    /// Rounds that all modules have stepped in.
    fn completed(&self) -> u32 {
        self.versions.values().min().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_round_begins_with_its_first_lease_and_ends_with_its_last_module() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let [one, two] = [0, 1].map(|index| ModuleId { level: 0, index });
        let mut tally = RoundTally::new([(one, 3), (two, 3)].into(), start);
        assert_eq!(tally.leased(3, at(1)), Some(Event::RoundStarted { round: 3 }));
        assert_eq!(tally.leased(3, at(2)), None);
        tally.committed(PathId(0), 3, 4.0);
        assert_eq!(tally.stepped(one, 4, at(3)), None);
        assert_eq!(tally.leased(4, at(4)), Some(Event::RoundStarted { round: 4 }), "rounds overlap");
        tally.committed(PathId(1), 3, 2.0);
        let completed = Event::RoundCompleted { round: 3, loss: 3.0, seconds: 5.0 };
        assert_eq!(tally.stepped(two, 4, at(6)), Some(completed));
        assert_eq!(tally.leased(3, at(7)), None, "it is over");
    }
}
