//! Outer steps that are due, and the versions that are still needed.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_topology::PathId;

use super::{OuterStep, RunState};
use crate::{Contribution, FragmentId, Scheme};

impl RunState {
    /// Outer steps that are due now, in order. Looks at the fragments whose steps are due and, with a quorum, at those that
    /// have changed since the last look. The first time that a step is due it looks at the paths through its module: their
    /// next tasks may change.
    pub fn due(&mut self, now: Duration) -> Vec<OuterStep> {
        let fragments = match self.plan.scheme {
            // A step may have no contribution: all were dropped, or all paths rest.
            Scheme::Synchronous => self.sent.complete().clone(),
            Scheme::Quorum(_) => &self.quorums.take_news(now) | &self.stepping,
        };
        let due = fragments.iter().filter_map(|&fragment| self.due_step(now, fragment)).collect();
        debug_assert!(self.none_is_due_besides(now, &fragments));
        due
    }

    /// True if a look at all pending contributions finds no other outer step that is due.
    fn none_is_due_besides(&mut self, now: Duration, looked_at: &BTreeSet<FragmentId>) -> bool {
        #[cfg(test)]
        let looks = self.looks.get();
        let others = self.progress.pending.keys().filter(|fragment| !looked_at.contains(fragment));
        let others: Vec<_> = if self.waits() { Vec::new() } else { others.copied().collect() };
        let none = others.into_iter().all(|fragment| self.due_step(now, fragment).is_none());
        #[cfg(test)]
        self.looks.set(looks);
        none
    }

    /// Notes that all quorums may have changed.
    pub(super) fn look_at_quorums(&mut self) {
        for &fragment in self.progress.pending.keys() {
            self.quorums.changes(fragment);
        }
    }

    fn due_step(&mut self, now: Duration, fragment: FragmentId) -> Option<OuterStep> {
        let version = self.progress.versions[&fragment] + 1;
        let pending = self.progress.pending.get(&fragment).map_or(&[][..], Vec::as_slice);
        let contributions = match self.plan.scheme {
            Scheme::Synchronous => pending.iter().filter(|c| c.number == version).copied().collect(),
            Scheme::Quorum(_) if pending.is_empty() => return None,
            Scheme::Quorum(quorum) => {
                let there: BTreeSet<PathId> = pending.iter().map(|c| c.path).collect();
                // Paths at the end of the phase contribute no more.
                let end = self.end();
                let at_end = there.iter().filter(|&&path| self.path(path).steps >= end).count();
                let possible = self.places.in_phase(fragment.module) + at_end;
                let needed = (quorum.learners as usize).clamp(1, possible.max(1));
                let window = self.grace.window();
                let round = self.grace.fastest(quorum.throttle * self.plan.schedule.inner_steps() as f64);
                let earliest =
                    self.stepped_at.get(&fragment).map_or(Duration::ZERO, |&at| at.saturating_add(round));
                let since = self.quorums.begin(fragment, now);
                if there.len() < needed {
                    return None;
                }
                let until = self.quorums.until(fragment).unwrap_or_else(|| {
                    self.grace.quorum(now.saturating_sub(since));
                    let until = now.saturating_add(window).max(earliest);
                    self.quorums.complete(fragment, until);
                    until
                });
                (there.len() == possible || now >= until).then(|| pending.to_vec())?
            }
        };
        self.stepped_at.insert(fragment, now);
        if self.stepping.insert(fragment) {
            self.look_at_learners(fragment.module);
        }
        Some(OuterStep { fragment, version, contributions })
    }

    /// Records an outer step that was [`due`](Self::due), and its duration. Returns false if it does not count,
    /// because the fragment has another version by now. Looks at the paths through the module, which go on after it.
    pub fn stepped(&mut self, step: &OuterStep, took: Duration) -> bool {
        let Some(version) = self.progress.versions.get_mut(&step.fragment) else { return false };
        let pending = self.progress.pending.get(&step.fragment).map_or(&[][..], Vec::as_slice);
        // Both are in order.
        let is_pending = |contribution: &Contribution| pending.binary_search(contribution).is_ok();
        if *version + 1 != step.version || !step.contributions.iter().all(is_pending) {
            return false;
        }
        let left: Vec<_> =
            pending.iter().filter(|c| step.contributions.binary_search(c).is_err()).copied().collect();
        *version = step.version;
        self.sent.is_at(step.fragment, step.version);
        if left.is_empty() {
            self.progress.pending.remove(&step.fragment);
        } else {
            self.progress.pending.insert(step.fragment, left);
        }
        self.quorums.stepped(step.fragment);
        self.stepping.remove(&step.fragment);
        self.look_at_learners(step.fragment.module);
        self.grace.outer_step(took);
        true
    }

    /// Versions of a fragment that paths may still need besides the newest: versions from which they train, and
    /// versions that they take over next.
    #[cfg(test)]
    pub(super) fn needed_versions(&self, fragment: FragmentId) -> BTreeSet<u32> {
        let newest = self.progress.versions.get(&fragment).copied().unwrap_or(0);
        self.needed.of(fragment).filter(|&version| version < newest).collect()
    }

    /// True if paths may still need a version of a fragment that is not the newest.
    #[must_use]
    pub fn needs_version(&self, fragment: FragmentId, version: u32) -> bool {
        self.needed.contains(fragment, version)
    }
}
