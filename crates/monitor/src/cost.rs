//! The cost of a training: seconds, and bytes on the wire.

use dipaco_telemetry::{Event, EventRecord, WireBytes};
use serde::Serialize;

use crate::event_time::seconds_since_1970;

/// The cost of a training up to an event, over all its coordinators. The time between two coordinators does not count, and
/// repeated rounds do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrainingCost {
    /// Seconds from the start of each coordinator to its last event of the training.
    pub seconds: f64,
    /// Bytes that the coordinators have sent and received in UDP datagrams, up to their last complete round or their end.
    pub wire_bytes: u64,
}

/// Adds up the cost of a training, event by event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostMeter {
    /// Cost under earlier coordinators.
    before: TrainingCost,
    /// Cost under the present coordinator.
    present: TrainingCost,
    /// Time at which the present coordinator started, in seconds since 1970.
    started: Option<f64>,
    /// True if a coordinator of an older version left events: they tell neither its start nor its bytes.
    older: bool,
}

impl CostMeter {
    /// Adds an event, and returns the cost up to it; `None` while no coordinator has started, and when a coordinator of an
    /// older version has left its events.
    pub fn add(&mut self, record: &EventRecord) -> Option<TrainingCost> {
        match &record.event {
            // Other processes write these, before, between and after the coordinators. Rounds also wait for their validation
            // after the end of the training.
            Event::SeedStep { .. }
            | Event::SeedValidated { .. }
            | Event::Validated { .. }
            | Event::RolledBack { .. }
            | Event::Evaluated { .. } => return self.cost(),
            Event::CoordinatorStarted { .. } => {
                self.before = self.sum();
                self.present = TrainingCost::default();
                self.started = seconds_since_1970(&record.time);
            }
            Event::CoordinatorStopped { wire_bytes } => self.present.wire_bytes = wire_bytes.total(),
            Event::RoundCompleted { wire_bytes, .. } => match wire_bytes.map(WireBytes::total) {
                Some(bytes) => self.present.wire_bytes = bytes,
                None => self.older = true,
            },
            _ => {}
        }
        match (self.started, seconds_since_1970(&record.time)) {
            // A clock that is set back does not take time back.
            (Some(start), Some(now)) => self.present.seconds = self.present.seconds.max(now - start),
            (None, _) => self.older = true,
            (_, None) => {}
        }
        self.cost()
    }

    fn cost(&self) -> Option<TrainingCost> {
        (self.started.is_some() && !self.older).then(|| self.sum())
    }

    fn sum(&self) -> TrainingCost {
        TrainingCost {
            seconds: self.before.seconds + self.present.seconds,
            wire_bytes: self.before.wire_bytes.saturating_add(self.present.wire_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: WireBytes = WireBytes { sent: 100, received: 20 };

    fn started() -> Event {
        Event::CoordinatorStarted { rounds: 0 }
    }

    fn round(wire_bytes: Option<WireBytes>) -> Event {
        Event::RoundCompleted { round: 0, loss: 4.0, seconds: 1.0, wire_bytes }
    }

    fn left() -> Event {
        Event::WorkerLeft { worker: "a".to_owned(), reason: String::new() }
    }

    fn evaluated() -> Event {
        Event::Evaluated { model: "routed".to_owned(), perplexity: 9.0, loss: 2.2, tokens: 1, documents: 1 }
    }

    fn validated() -> Event {
        Event::Validated {
            rounds: 1,
            steps: 1,
            trained_tokens: 1,
            seconds: 1.0,
            loss: 2.2,
            bits_per_byte: None,
            tokens: 1,
        }
    }

    /// The seconds and bytes after the last of these events, each with its minute and second.
    fn cost(events: impl IntoIterator<Item = (&'static str, Event)>) -> Option<(f64, u64)> {
        let mut meter = CostMeter::default();
        let records = events
            .into_iter()
            .map(|(time, event)| EventRecord { time: format!("2026-01-01T00:{time}.000Z"), event });
        let last = records.map(|record| meter.add(&record)).last().flatten();
        last.map(|cost| (cost.seconds, cost.wire_bytes))
    }

    #[test]
    fn coordinators_add_up_without_the_time_between_them() {
        let first = [("00:10", started()), ("00:40", round(Some(BYTES))), ("00:50", left())];
        assert_eq!(cost(first.clone()), Some((40.0, 120)));
        // Killed after its last event. Half an hour later the run goes on.
        let second = [
            ("30:00", started()),
            ("30:05", round(Some(WireBytes { sent: 1, received: 2 }))),
            ("30:06", Event::CoordinatorStopped { wire_bytes: WireBytes { sent: 3, received: 4 } }),
            ("40:00", validated()),
            ("50:00", evaluated()),
        ];
        assert_eq!(cost(first.into_iter().chain(second)), Some((46.0, 127)));
    }

    #[test]
    fn events_of_older_versions_do_not_tell_the_cost() {
        assert_eq!(cost([("00:00", evaluated())]), None);
        assert_eq!(cost([("00:00", evaluated()), ("00:01", started())]), Some((0.0, 0)));
        assert_eq!(
            cost([("00:00", left()), ("00:01", started())]),
            None,
            "a coordinator before had no start"
        );
        let resumed = [("00:01", started()), ("00:02", round(Some(BYTES))), ("00:03", round(None))];
        assert_eq!(cost(resumed), None, "an older version went on");
    }

    #[test]
    fn a_clock_that_is_set_back_takes_no_time_back() {
        assert_eq!(cost([("10:00", started()), ("10:09", left()), ("09:00", left())]), Some((9.0, 0)));
    }
}
