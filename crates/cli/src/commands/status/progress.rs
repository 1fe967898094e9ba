//! Progress and cost of a training.

use std::fmt;
use std::time::Duration;

use dipaco_monitor::{LossPoint, RunHistory, TrainingCost};
use dipaco_pipeline::trained_tokens;
use dipaco_store::TrainingRecord;
use dipaco_telemetry::human;
use serde::Serialize;

/// The progress of a training.
#[derive(Debug, Serialize)]
pub(super) struct ShownProgress {
    /// Rounds that every path has completed.
    rounds: u32,
    /// Inner steps of a path in these rounds; 0 in a run of which nobody trains a path.
    inner_steps: u64,
    /// Tokens of the outer gradients of all paths together, padding not counted.
    tokens: u64,
    /// Mean training loss of the last complete round.
    training: Option<LossPoint>,
    /// Last loss of the routed model on validation text.
    validation: Option<LossPoint>,
    /// Absent when the events do not tell.
    #[serde(flatten)]
    cost: Option<TrainingCost>,
}

impl ShownProgress {
    /// The first `kept_paths` paths are kept: nobody trains them, and their rounds are those of the run.
    pub(super) fn new(training: &TrainingRecord, kept_paths: u32, history: &RunHistory) -> Self {
        let rounds = training.rounds_done();
        let trained = if training.paths.len() > kept_paths as usize { rounds } else { 0 };
        Self {
            rounds,
            inner_steps: u64::from(trained).saturating_mul(training.inner_steps),
            tokens: trained_tokens(training),
            training: history.training.last().copied(),
            validation: history.validation.last().copied(),
            cost: history.cost,
        }
    }
}

impl fmt::Display for ShownProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("training: ")?;
        if let Some(LossPoint { rounds, loss, .. }) = self.training {
            write!(f, "loss {loss:.4} in round {rounds}, ")?;
        }
        let (steps, tokens) = (human::integer(self.inner_steps), human::integer(self.tokens));
        write!(f, "{steps} inner steps of a path, {tokens} tokens")?;
        if let Some(TrainingCost { seconds, wire_bytes }) = self.cost {
            // The times in an event file may be anything.
            let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            write!(f, ", {}, {} on the wire", human::duration(time), human::bytes(wire_bytes))?;
        }
        writeln!(f)?;
        if let Some(LossPoint { rounds, loss, bits_per_byte }) = self.validation {
            write!(f, "validation: loss {loss:.4}")?;
            if let Some(bits) = bits_per_byte {
                write!(f, ", {bits:.4} bits per byte")?;
            }
            writeln!(f, " after round {rounds}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dipaco_store::{CountRecord, PathRecord};

    use super::*;

    #[test]
    fn a_line_has_loss_and_cost_and_another_the_validation() {
        let path = PathRecord {
            steps: 25,
            counted: vec![CountRecord { steps: 25, tokens: 1234 }],
            ..PathRecord::default()
        };
        let training = TrainingRecord {
            origin: String::new(),
            rounds: 3,
            inner_steps: 10,
            boundaries: Vec::new(),
            phase: 0,
            shards: Vec::new(),
            modules: Vec::new(),
            paths: vec![path; 2],
            numerics: None,
            numerics_token: None,
        };
        let empty = ShownProgress::new(&training, 1, &RunHistory::default());
        assert_eq!(empty.to_string(), "training: 20 inner steps of a path, 2,468 tokens\n");

        let kept = ShownProgress::new(&training, 2, &RunHistory::default());
        assert!(kept.to_string().starts_with("training: 0 inner steps of a path, "), "{kept}");

        let mut history = RunHistory::default();
        for line in [
            r#"{"time":"2026-01-01T00:00:00.000Z","event":"coordinator_started","rounds":0}"#,
            r#"{"time":"2026-01-01T00:01:05.000Z","event":"round_completed","round":1,"loss":5.5,"seconds":1.0,"wire_bytes":{"sent":2000,"received":500}}"#,
            r#"{"time":"2026-01-01T00:01:06.000Z","event":"validated","rounds":2,"steps":20,"trained_tokens":1,"seconds":1.0,"loss":5.25,"bits_per_byte":2.5,"tokens":9}"#,
        ] {
            history.add(serde_json::from_str(line).unwrap());
        }
        let known = ShownProgress::new(&training, 0, &history);
        assert_eq!(
            known.to_string(),
            "training: loss 5.5000 in round 2, 20 inner steps of a path, 2,468 tokens, 1 min 05 s, 2.5 kB on the wire\n\
             validation: loss 5.2500, 2.5000 bits per byte after round 2\n"
        );
        let json = serde_json::to_value(&known).unwrap();
        assert_eq!((&json["seconds"], &json["wire_bytes"]), (&65.0.into(), &2500.into()));
        assert_eq!(json["validation"]["rounds"], 2);
    }
}
