//! The schedule of a path's sends and receives.

use dipaco_topology::PathId;
use thiserror::Error;

use crate::{Drops, Rests};

/// The inner steps at which a path sends and receives each fragment (Streaming DiLoCo, arXiv:2501.18512 §2.2 and
/// §2.3). Steps are counted from 1; "at step t" is after t inner steps.
///
/// A path receives fragment f of F at the steps `(f + 1) H / F + k H` and sent it τ steps earlier, while it trained
/// on. At the end of a phase of routing and at the end of the run a path sends all fragments, and the next phase
/// begins with their new versions. A regular send less than half a round before such an end moves to the end: an outer
/// step moves by the whole momentum, however few inner steps it merges. With τ = H a path receives a fragment where it sends
/// it again, and it does not where that send has moved: the inner steps since the send before would be lost.
///
/// F = 1 and τ = 0 is DiLoCo; F > 1 and τ > 0 is Streaming DiLoCo; F = 1 and τ = H is DiLoCo with delayed updates
/// (arXiv:2502.12996).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    inner_steps: u64,
    fragments: u32,
    overlap: u64,
    ends: Vec<u64>,
    eager: bool,
    drops: Drops,
    rests: Rests,
}

/// Settings that make no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The number of steps, fragments or phases is zero.
    #[error("a schedule needs at least one inner step, one fragment and one phase")]
    Empty,
    /// There are more fragments than inner steps.
    #[error(
        "{fragments} fragments cannot each have a step of their own within {inner_steps} inner steps: use at most as many fragments as steps"
    )]
    Fragments {
        /// F.
        fragments: u32,
        /// H.
        inner_steps: u64,
    },
    /// A path would send a fragment again before it receives it.
    #[error(
        "an overlap of {overlap} steps is longer than the {inner_steps} inner steps between two sends of a fragment"
    )]
    Overlap {
        /// τ.
        overlap: u64,
        /// H.
        inner_steps: u64,
    },
    /// The ends of the phases do not rise.
    #[error("the ends of the phases do not rise")]
    Ends,
    /// A path drops outer gradients, and takes a fragment over where it sends it.
    #[error(
        "with an overlap of a whole round ({overlap} steps) a path takes a fragment over where it sends it, so the steps of a send that it drops would be lost or count twice: use a shorter overlap, or drop nothing"
    )]
    Drops {
        /// τ, which equals H.
        overlap: u64,
    },
    /// Some paths rest in a round, and outer gradients span rounds.
    #[error(
        "a part of the paths trains in each round, which needs whole modules and no overlap, so that each outer gradient belongs to one round"
    )]
    Rests,
}

/// A fragment at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulePoint {
    /// The step.
    pub step: u64,
    /// The fragment.
    pub fragment: u32,
}

impl Schedule {
    /// A schedule of H = `inner_steps`, F = `fragments` and τ = `overlap`. `ends` holds the last step of each phase of
    /// routing; the last end is the end of the run.
    ///
    /// # Errors
    /// When the settings do not make a schedule.
    pub fn new(
        inner_steps: u64,
        fragments: u32,
        overlap: u64,
        ends: Vec<u64>,
    ) -> Result<Self, ScheduleError> {
        if inner_steps == 0 || fragments == 0 || ends.first().is_none_or(|&end| end == 0) {
            return Err(ScheduleError::Empty);
        }
        if u64::from(fragments) > inner_steps {
            return Err(ScheduleError::Fragments { fragments, inner_steps });
        }
        if overlap > inner_steps {
            return Err(ScheduleError::Overlap { overlap, inner_steps });
        }
        if ends.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(ScheduleError::Ends);
        }
        Ok(Self {
            inner_steps,
            fragments,
            overlap,
            ends,
            eager: false,
            drops: Drops::default(),
            rests: Rests::default(),
        })
    }

    /// The same schedule with eager updates (arXiv:2502.12996), where a path receives at its sends: already at the first
    /// one of a phase, because it applies its own part, and not where a send has moved to the end of a phase.
    #[must_use]
    pub fn eager(self, eager: bool) -> Self {
        Self { eager, ..self }
    }

    /// True if a path receives a fragment where it sends it, just after the send.
    fn receives_at_sends(&self) -> bool {
        self.eager || self.overlap == self.inner_steps
    }

    /// The same schedule without the dropped outer gradients.
    #[must_use]
    pub fn without(self, drops: Drops) -> Self {
        Self { drops, ..self }
    }

    /// The same schedule with rounds in which some paths rest.
    ///
    /// # Errors
    /// When outer gradients span rounds.
    pub fn resting(self, rests: Rests) -> Result<Self, ScheduleError> {
        if rests.any() && (self.fragments > 1 || self.overlap > 0 || self.drops.any()) {
            return Err(ScheduleError::Rests);
        }
        let rounds = self.sent_through(0, self.total());
        Ok(Self { rests: rests.of_rounds(rounds), ..self })
    }

    /// The rounds in which paths rest.
    #[must_use]
    pub fn rests(&self) -> &Rests {
        &self.rests
    }

    /// True if a path rests in the round that begins after `step` inner steps.
    #[must_use]
    pub fn rests_after(&self, path: PathId, step: u64) -> bool {
        self.rests.any()
            && step < self.total()
            && self.rests.rests(path, self.sent_through(0, self.next_stop(step)))
    }

    /// The number of inner steps after which a path trains next: `step`, or the end of the rounds in which it rests
    /// first.
    #[must_use]
    pub fn rests_until(&self, path: PathId, mut step: u64) -> u64 {
        while self.rests_after(path, step) {
            step = self.next_stop(step);
        }
        step
    }

    /// Number of inner steps that a path takes after `from` and up to `to`, without those of rounds in which it rests.
    #[must_use]
    pub fn trained(&self, path: PathId, from: u64, to: u64) -> u64 {
        if !self.rests.any() {
            return to.saturating_sub(from);
        }
        let (mut step, mut trained) = (from, 0);
        while step < to {
            let next = self.next_stop(step).clamp(step + 1, to);
            trained += if self.rests_after(path, step) { 0 } else { next - step };
            step = next;
        }
        trained
    }

    /// True if no outer gradient of this sequence number comes from a path: it drops the outer gradient, or rests in its
    /// round.
    #[must_use]
    pub fn absent(&self, path: PathId, fragment: u32, number: u64) -> bool {
        self.rests.rests(path, number) || self.dropped(path, fragment, number)
    }

    /// The dropped outer gradients.
    #[must_use]
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// True if a path drops its outer gradient of this sequence number to a fragment of each of its modules. Sends at
    /// the end of a phase or of the run are never dropped.
    #[must_use]
    pub fn dropped(&self, path: PathId, fragment: u32, number: u64) -> bool {
        let at_an_end = || self.ends.iter().any(|&end| self.sent_through(fragment, end) == number);
        self.drops.drops(path, fragment, number) && !at_an_end()
    }

    /// H: inner steps between two sends of a fragment.
    #[must_use]
    pub fn inner_steps(&self) -> u64 {
        self.inner_steps
    }

    /// F: parts of each module.
    #[must_use]
    pub fn fragments(&self) -> u32 {
        self.fragments
    }

    /// τ: inner steps between a send and its receive.
    #[must_use]
    pub fn overlap(&self) -> u64 {
        self.overlap
    }

    /// Number of inner steps of a path over the whole run.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The step at which a phase ends.
    #[must_use]
    pub fn end(&self, phase: usize) -> u64 {
        self.ends.get(phase).copied().unwrap_or_else(|| self.total())
    }

    /// The step at which a phase begins.
    #[must_use]
    pub fn begin(&self, phase: usize) -> u64 {
        phase.checked_sub(1).map_or(0, |before| self.end(before))
    }

    /// The phase that trains the step after `step`.
    #[must_use]
    pub fn phase_at(&self, step: u64) -> usize {
        self.ends.partition_point(|&end| end <= step)
    }

    /// The first regular receive of a fragment.
    fn first(&self, fragment: u32) -> u64 {
        (u64::from(fragment) + 1) * self.inner_steps / u64::from(self.fragments)
    }

    /// The last step of a regular send before the end of a phase.
    fn last_send(&self, end: u64) -> u64 {
        end.saturating_sub(self.inner_steps.div_ceil(2))
    }

    /// Regular sends of a fragment at steps in `begin + 1 ..= last`.
    fn regular(&self, fragment: u32, begin: u64, last: u64) -> u64 {
        let through = |step: u64| match (step + self.overlap).checked_sub(self.first(fragment)) {
            // Sends at `first + k H - τ`; a send before the first step does not happen.
            Some(span) => span / self.inner_steps + 1,
            None => 0,
        };
        through(last.max(begin)) - through(begin)
    }

    /// Number of sends of a fragment up to `step`.
    #[must_use]
    pub fn sent_through(&self, fragment: u32, step: u64) -> u64 {
        let mut begin = 0;
        let mut sent = 0;
        for &end in &self.ends {
            if step >= end {
                sent += self.regular(fragment, begin, self.last_send(end)) + 1;
            } else {
                return sent + self.regular(fragment, begin, step.min(self.last_send(end)));
            }
            begin = end;
        }
        sent
    }

    /// Number of inner steps in the outer gradient that a path sends at `step`: the steps since its previous send.
    #[must_use]
    pub fn steps_in(&self, path: PathId, fragment: u32, step: u64) -> u64 {
        let mut before = self.send_before(fragment, step);
        while before > 0 && self.dropped(path, fragment, self.sent_through(fragment, before)) {
            before = self.send_before(fragment, before);
        }
        step - before.min(step)
    }

    /// Step of the last send of a fragment before `step`, or 0.
    fn send_before(&self, fragment: u32, step: u64) -> u64 {
        let Some(last) = step.checked_sub(1) else { return 0 };
        let phase = self.phase_at(last);
        let begin = self.begin(phase);
        let last = last.min(self.last_send(self.end(phase)));
        let regular = (last + self.overlap).checked_sub(self.first(fragment)).map(|span| {
            let receive = self.first(fragment) + span / self.inner_steps * self.inner_steps;
            receive - self.overlap.min(receive)
        });
        // The end of the phase before sent all fragments.
        regular.map_or(begin, |send| send.max(begin))
    }

    /// Sends after `from` and up to `to`, in order. Both steps lie in one phase.
    #[must_use]
    pub fn sends(&self, from: u64, to: u64) -> Vec<SchedulePoint> {
        let end = self.end(self.phase_at(from));
        let last = to.min(self.last_send(end));
        let mut points = Vec::new();
        for fragment in 0..self.fragments {
            let first = self.first(fragment);
            // The first regular receive whose send comes after `from`.
            let mut receive = first;
            if from + self.overlap >= first {
                receive += ((from + self.overlap - first) / self.inner_steps + 1) * self.inner_steps;
            }
            while receive - self.overlap <= last {
                points.push(SchedulePoint { step: receive - self.overlap, fragment });
                receive += self.inner_steps;
            }
            if to == end {
                points.push(SchedulePoint { step: end, fragment });
            }
        }
        points.sort_unstable();
        points
    }

    /// The fragments that a path receives at a step, each with the sequence number of the send to which the receive
    /// belongs. At the beginning of a phase a path receives all fragments.
    #[must_use]
    pub fn receives(&self, step: u64) -> Vec<(u32, u64)> {
        let phase = self.phase_at(step);
        let (begin, last) = (self.begin(phase), self.last_send(self.end(phase)));
        let due = |fragment: u32| {
            if step == begin {
                return Some((fragment, self.sent_through(fragment, begin)));
            }
            if step > last && self.receives_at_sends() {
                // The send of this step has moved to the end. The path would lose the steps since its send before, and its lead
                // would not fit newer weights.
                return None;
            }
            let regular = step.checked_sub(self.first(fragment))?.is_multiple_of(self.inner_steps);
            let sent = match step.checked_sub(self.overlap) {
                Some(sent) if sent > last => return None,
                Some(sent) if sent > begin => self.sent_through(fragment, sent),
                _ if self.eager => self.sent_through(fragment, begin),
                _ => return None,
            };
            regular.then_some((fragment, sent))
        };
        (0..self.fragments).filter_map(due).collect()
    }

    /// True if a path that receives a fragment at a step keeps its own weights, because it dropped its outer gradient.
    /// The received weights are then only the base of its next outer gradient (arXiv:2311.08105, figure 8).
    #[must_use]
    pub fn keeps_own(&self, path: PathId, fragment: u32, step: u64) -> bool {
        let received = self.receives(step).into_iter().find(|(received, _)| *received == fragment);
        received.is_some_and(|(_, number)| self.dropped(path, fragment, number))
    }

    /// The next stop after `from`: the first receive, or the end of the phase. A path trains up to there without
    /// waiting.
    #[must_use]
    pub fn next_stop(&self, from: u64) -> u64 {
        let phase = self.phase_at(from);
        let (begin, end) = (self.begin(phase), self.end(phase));
        // A send that has moved to the end has no receive, neither of its own nor at its step.
        let last = self.last_send(end) + if self.receives_at_sends() { 0 } else { self.overlap };
        let next = |fragment: u32| {
            let first = self.first(fragment);
            // The first receive after `from`; unless updates are eager, its send must lie in this phase.
            let after = if self.eager { from } else { from.max(begin + self.overlap) };
            let next = if after < first {
                first
            } else {
                first + ((after - first) / self.inner_steps + 1) * self.inner_steps
            };
            if next > last { end } else { next }
        };
        (0..self.fragments).map(next).min().map_or(end, |stop| stop.min(end))
    }
}

#[cfg(test)]
mod tests;
