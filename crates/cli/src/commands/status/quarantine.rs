//! The line of `dipaco status` about a path in quarantine.

use dipaco_store::{CheckpointRecord, QuarantineRecord};

/// Why nobody trains a path, which state it has, and what ends the quarantine. The run keeps these checkpoints.
pub(super) fn describe(path: usize, record: &QuarantineRecord, checkpoints: &[CheckpointRecord]) -> String {
    let QuarantineRecord { step, workers, reason, back_to } = record;
    let state = match back_to {
        Some(round) => format!(
            "it went back to its state at the checkpoint after round {round}, with the modules that no other path trains"
        ),
        None if *step == 0 => "it has not left its start".to_owned(),
        None => "no checkpoint with an earlier state was kept, so it keeps its last one".to_owned(),
    };
    let remedy = match back_to.filter(|round| checkpoints.iter().any(|checkpoint| checkpoint.round == *round))
    {
        Some(round) => {
            format!("`dipaco rollback --round {round}` takes the whole run back there, and ends this")
        }
        None => "`dipaco rollback --round N` to a round before, if the run keeps one, ends this".to_owned(),
    };
    format!(
        "path {path} is in quarantine since inner step {step}: {reason} (workers: {}); {state}; nobody trains it, and {remedy}\n",
        workers.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use dipaco_store::ObjectRef;

    use super::*;

    fn record(step: u64, back_to: Option<u32>) -> QuarantineRecord {
        let workers = vec!["gpu-1".to_owned(), "gpu-2".to_owned()];
        QuarantineRecord {
            step,
            workers,
            reason: "its training diverged after inner step 43".into(),
            back_to,
        }
    }

    #[test]
    fn the_line_says_why_from_which_state_and_what_to_do() {
        let checkpoint = |round| CheckpointRecord { round, object: ObjectRef::of("checkpoints", b"") };
        let kept = [checkpoint(2), checkpoint(3)];
        assert_eq!(
            describe(3, &record(40, Some(2)), &kept),
            "path 3 is in quarantine since inner step 40: its training diverged after inner step 43 (workers: gpu-1, gpu-2); \
             it went back to its state at the checkpoint after round 2, with the modules that no other path trains; nobody \
             trains it, and `dipaco rollback --round 2` takes the whole run back there, and ends this\n"
        );
        // The run has gone on, and drops the checkpoint.
        let later = describe(3, &record(40, Some(2)), &kept[1..]);
        assert!(later.contains("checkpoint after round 2") && later.contains("--round N"), "{later}");
        let none_kept = describe(3, &record(40, None), &kept);
        assert!(none_kept.contains("no checkpoint with an earlier state was kept"), "{none_kept}");
        assert!(describe(3, &record(0, None), &kept).contains("it has not left its start"));
    }
}
