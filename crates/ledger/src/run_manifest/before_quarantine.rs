//! How far a path has come without the steps of its quarantine, which nobody takes.

use super::{PathRecord, TrainingRecord};

impl PathRecord {
    /// Inner steps of a path up to its quarantine, if it is in one. Those after it go on without training.
    #[must_use]
    pub fn steps_before_quarantine(&self) -> u64 {
        self.quarantine.as_ref().map_or(self.steps, |quarantine| self.steps.min(quarantine.step))
    }
}

impl TrainingRecord {
    /// Complete rounds of a path up to its quarantine, if it is in one.
    #[must_use]
    pub fn rounds_before_quarantine(&self, path: &PathRecord) -> u32 {
        self.rounds_in(path.steps_before_quarantine())
    }
}

#[cfg(test)]
mod tests {
    use super::super::QuarantineRecord;
    use super::*;

    #[test]
    fn the_steps_after_a_quarantine_are_not_those_before_it() {
        let training = TrainingRecord { inner_steps: 5, ..TrainingRecord::default() };
        let trains = PathRecord { steps: 30, ..PathRecord::default() };
        let quarantine = |step| QuarantineRecord {
            step,
            workers: Vec::new(),
            reason: "its training diverged".into(),
            back_to: None,
        };
        for (step, rounds) in [(0, 0), (9, 1), (30, 6), (40, 6)] {
            let path = PathRecord { quarantine: Some(quarantine(step)), ..trains.clone() };
            assert_eq!(path.steps_before_quarantine(), step.min(30));
            assert_eq!((training.rounds_before_quarantine(&path), training.rounds_of(&path)), (rounds, 6));
        }
        assert_eq!((trains.steps_before_quarantine(), training.rounds_before_quarantine(&trains)), (30, 6));
    }
}
