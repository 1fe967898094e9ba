//! A round whose turn it is to be validated.

use std::sync::Arc;
use std::time::Duration;

use dipaco_eval::Evaluation;
use dipaco_store::{PathRecord, TrainingRecord};
use dipaco_telemetry::Event;

use crate::weights::Weights;

/// A complete round with its weights, which stay in the store until this is dropped.
pub(super) struct DueRound {
    pub(super) cost: RoundCost,
    /// Length of its weights in the store.
    pub(super) bytes: u64,
    pub(super) weights: Arc<Weights>,
}

/// A complete round, and what the training had cost when it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundCost {
    pub(super) round: u32,
    steps: u64,
    trained_tokens: u64,
    time: Duration,
}

impl DueRound {
    /// The round that is due with these weights, `time` after the coordinator began. `None` if none is due.
    pub(super) fn of(weights: Weights, every: u32, last: u32, time: Duration) -> Option<Self> {
        let training = weights.manifest().training.as_ref()?;
        let cost = RoundCost::of(training, due(training, every, last)?, time);
        let bytes = weight_bytes(training);
        Some(Self { cost, bytes, weights: Arc::new(weights) })
    }
}

impl RoundCost {
    fn of(training: &TrainingRecord, round: u32, time: Duration) -> Self {
        let steps = u64::from(round).saturating_mul(training.inner_steps);
        Self { round, steps, trained_tokens: trained_tokens(training), time }
    }

    /// The event of the round's measurement.
    pub(super) fn event(self, found: &Evaluation) -> Event {
        Event::Validated {
            rounds: self.round.into(),
            steps: self.steps,
            trained_tokens: self.trained_tokens,
            seconds: self.time.as_secs_f64(),
            loss: found.nll_sum / found.tokens_counted.max(1) as f64,
            bits_per_byte: found.bits_per_byte,
            tokens: found.tokens_counted,
        }
    }
}

/// The number of complete rounds, if it is the turn of another round after `last`: of every `every`th round, and of the last.
/// Nothing is due before the outer steps of the complete rounds are taken.
pub(super) fn due(training: &TrainingRecord, every: u32, last: u32) -> Option<u32> {
    let rounds = training.rounds_done();
    let has_turn = turns(rounds, every) > turns(last, every) || (rounds == training.rounds && rounds > last);
    (has_turn && is_merged(training, rounds)).then_some(rounds)
}

/// The number of turns in so many rounds.
pub(super) fn turns(rounds: u32, every: u32) -> u32 {
    rounds.checked_div(every).unwrap_or(0)
}

/// True if no path stands at the end of this round with an outer gradient that still waits. A path beyond the round has begun with
/// its outcome, and with a quorum its outer gradients may wait for long.
fn is_merged(training: &TrainingRecord, round: u32) -> bool {
    let end = u64::from(round).saturating_mul(training.inner_steps);
    let waits = |path: &PathRecord| path.steps == end && !path.gradients.is_empty();
    training.finished() || !training.paths.iter().any(waits)
}

/// Length of the current weights of all modules in the store.
pub(super) fn weight_bytes(training: &TrainingRecord) -> u64 {
    let fragments = training.modules.iter().flat_map(|module| &module.fragments);
    fragments.map(|fragment| fragment.weights.bytes).fold(0, u64::saturating_add)
}

/// Tokens of the outer gradients so far, of all paths together, padding not counted.
#[must_use]
pub fn trained_tokens(training: &TrainingRecord) -> u64 {
    // Every fragment counts the same tokens of a path, but for sends that are under way and frozen levels, which count none.
    let of_path = |path: &PathRecord| path.counted.iter().map(|counted| counted.tokens).max().unwrap_or(0);
    training.paths.iter().map(of_path).sum()
}

#[cfg(test)]
mod tests {
    use dipaco_store::{CountRecord, GradientRecord, ObjectRef};
    use dipaco_topology::ModuleId;

    use super::*;

    /// A run of 10 rounds of 4 steps whose paths have done these steps.
    fn training(steps: &[u64]) -> TrainingRecord {
        let path = |&steps: &u64| PathRecord {
            steps,
            counted: vec![CountRecord { steps, tokens: 10 * steps }],
            ..PathRecord::default()
        };
        TrainingRecord {
            origin: "o".into(),
            rounds: 10,
            inner_steps: 4,
            paths: steps.iter().map(path).collect(),
            ..TrainingRecord::default()
        }
    }

    /// Lets an outer gradient of a path wait for its outer step.
    fn contribute(training: &mut TrainingRecord, path: usize) {
        training.paths[path].gradients.push(GradientRecord {
            module: ModuleId { level: 0, index: 0 },
            fragment: 0,
            number: 1,
            base: 0,
            steps: 4,
            tokens: 40,
            norm: 1.0,
            token: "t".into(),
            object: ObjectRef::of("gradient", b"gradient"),
        });
    }

    #[test]
    fn rounds_are_validated_once_in_their_turn_and_the_last_one_too() {
        let due_after = |steps: &[u64], last| due(&training(steps), 3, last);
        assert_eq!(due_after(&[12, 11], 0), None, "a path has not completed the third round");
        assert_eq!(due_after(&[12, 12], 0), Some(3));
        assert_eq!(due_after(&[16, 20], 3), None);
        assert_eq!(due_after(&[32, 32], 3), Some(8), "rounds that went by are not made up for");
        assert_eq!(due_after(&[40, 40], 9), Some(10), "the last round");
        assert_eq!(due_after(&[40, 40], 10), None);
        assert_eq!(due(&training(&[12, 12]), 0, 0), None);
    }

    #[test]
    fn a_round_is_due_when_its_outer_steps_are_taken() {
        let mut training = training(&[16, 12]);
        contribute(&mut training, 1);
        assert_eq!(due(&training, 3, 0), None, "the outer gradients of the third round wait");
        training.paths[1].gradients.clear();
        contribute(&mut training, 0);
        assert_eq!(due(&training, 3, 0), Some(3), "what waits belongs to the fourth round");
    }

    #[test]
    fn the_tokens_of_a_path_are_those_of_a_level_that_trains() {
        let mut frozen_below = training(&[12, 13]);
        for path in &mut frozen_below.paths {
            path.counted.insert(0, CountRecord::default());
        }
        assert_eq!(trained_tokens(&frozen_below), 250);
    }

    #[test]
    fn an_event_tells_the_cost_when_the_round_was_found() {
        let found: Evaluation = serde_json::from_value(serde_json::json!({
            "documents": 1, "sequences": 1, "tokens_counted": 4, "nll_sum": 8.0, "perplexity": 7.4,
            "bits_per_byte": 1.5, "prefix_tokens": 2, "sequence_tokens": 8, "per_path": [],
        }))
        .unwrap();
        let cost = RoundCost::of(&training(&[12, 13]), 3, Duration::from_millis(2500));
        let expected = Event::Validated {
            rounds: 3,
            steps: 12,
            trained_tokens: 250,
            seconds: 2.5,
            loss: 2.0,
            bits_per_byte: Some(1.5),
            tokens: 4,
        };
        assert_eq!(cost.event(&found), expected);
    }
}
