//! How many rows of prompts join a step while sequences generate.
//!
//! Sequences that generate wait for the whole step, so a step with prompts may take only so many times as long as one
//! without. Both times are measured: that of a step without prompts, and that of a row of a prompt.
//!
//! The limit holds while no more sequences wait for their prompts than generate. Otherwise it would make most users wait.

use super::{Plan, Scheduler, Sequence};

/// Fewest rows of prompts, so that a prompt ends whatever its rows cost.
const LEAST: usize = 4;
/// Steps with prompts in a row. The step after them has none, so that its time stays known.
const BETWEEN: u32 = 16;
/// Weight of a new measurement in a moving average.
const NEW: f64 = 0.25;

/// The times of steps with generating sequences.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Seconds of a step without prompts; `None` before one was measured.
    generating: Option<f64>,
    /// Seconds that a row of a prompt adds; `None` before one was measured.
    row: Option<f64>,
    /// Steps with prompts since the last one without.
    mixed: u32,
}

impl Pace {
    /// Most rows of prompts in the next step, if it takes at most `slowdown` times as long as without them.
    pub(super) fn prompt_rows(&self, slowdown: f64) -> usize {
        if self.mixed >= BETWEEN {
            return 0;
        }
        match (self.generating, self.row) {
            (None, _) => usize::MAX,
            (Some(_), None) => LEAST,
            // A row that costs nothing has no limit.
            (Some(generating), Some(row)) => (((slowdown - 1.0) * generating / row) as usize).max(LEAST),
        }
    }

    /// A step of generating sequences took this many seconds, with this many rows of prompts.
    pub(super) fn done(&mut self, prompt_rows: usize, seconds: f64) {
        if prompt_rows == 0 {
            self.mixed = 0;
            // A pause of the whole process says nothing about the next step.
            let counted = self.generating.map_or(seconds, |known| seconds.min(2.0 * known));
            average(&mut self.generating, counted);
            return;
        }
        self.mixed += 1;
        if let Some(generating) = self.generating {
            average(&mut self.row, (seconds - generating).max(0.0) / prompt_rows as f64);
        }
    }
}

impl Scheduler {
    /// Most rows of prompts in a step that has the rows of generating sequences so far. `prompts` is the number of running
    /// sequences that read theirs.
    pub(super) fn prompt_rows(&self, plan: &Plan, prompts: usize) -> usize {
        let free = self.limits.sequences.saturating_sub(self.running.len());
        let reading = prompts + self.load.waiting.min(free);
        let generating = self.generating(plan);
        if generating == 0 || generating < reading {
            return usize::MAX;
        }
        self.pace.prompt_rows(self.limits.prompt_slowdown)
    }

    /// The number of rows of a plan whose sequences generate.
    pub(super) fn generating(&self, plan: &Plan) -> usize {
        let generates =
            |id| self.sequences.get(id).is_some_and(|sequence: &Sequence| sequence.generated() > 0);
        plan.rows.iter().filter(|rows| rows.tokens.len() == 1 && generates(&rows.id)).count()
    }
}

fn average(known: &mut Option<f64>, new: f64) {
    *known = Some(known.map_or(new, |known| known + NEW * (new - known)));
}
