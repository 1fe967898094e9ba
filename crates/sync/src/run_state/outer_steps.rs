//! Outer steps that are due, and the versions that are still needed.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_topology::PathId;

use super::{OuterStep, RunState};
use crate::{Contribution, FragmentId, Scheme};

/// Number of contributions that an outer step with a quorum merges, if fewer paths share the module. Paths that wait for no
/// outer step may have contributed any number of times, and an order to a synchronizer names all contributions in one message.
pub(super) const MOST_MERGED: usize = 5_000;

impl RunState {
    /// Fragments whose outer steps have become due since the last call, in order. A fragment is told once, until its step is
    /// taken: [`Self::due_step`] gives the step meanwhile. Looks at the fragments that have changed since the last call, with a
    /// quorum at the contributions that wait for them, and at the paths through the modules of the answer: their next tasks may
    /// change.
    pub fn take_due(&mut self, now: Duration) -> Vec<FragmentId> {
        let changed = match self.plan.scheme {
            Scheme::Synchronous => self.sent.take_news(),
            Scheme::Quorum(_) => self.quorums.take_news(now),
        };
        let mut due = Vec::new();
        for fragment in changed {
            self.note_looks(1);
            if self.stepping.contains(&fragment) || !self.is_due(now, fragment) {
                continue;
            }
            self.stepping.insert(fragment);
            self.stepped_at.insert(fragment, now);
            self.look_at_learners(fragment.module);
            due.push(fragment);
        }
        debug_assert!(self.none_is_due_besides(now));
        due
    }

    /// The outer step of a fragment if it is due, with the contributions of now. Looks at these.
    #[must_use]
    pub fn due_step(&self, fragment: FragmentId) -> Option<OuterStep> {
        if !self.stepping.contains(&fragment) {
            return None;
        }
        let version = self.progress.versions.get(&fragment)? + 1;
        let pending = self.progress.pending.get(&fragment).map_or(&[][..], Vec::as_slice);
        self.note_looks(pending.len() as u64);
        let contributions = match self.plan.scheme {
            // A step may have no contribution: all were dropped, or all paths rest.
            Scheme::Synchronous => pending.iter().filter(|c| c.number == version).copied().collect(),
            Scheme::Quorum(_) => self.merged_next(fragment, pending),
        };
        Some(OuterStep { fragment, version, contributions })
    }

    /// The contributions that the next outer step of a fragment merges with a quorum: all that wait. If they are too many, those
    /// with the lowest sequence numbers; the others wait for the step after it.
    fn merged_next(&self, fragment: FragmentId, pending: &[Contribution]) -> Vec<Contribution> {
        let mut merged = pending.to_vec();
        if merged.len() > MOST_MERGED {
            let most = self.topology.paths_through(fragment.module).count().max(MOST_MERGED);
            merged.sort_by_key(|contribution| (contribution.number, contribution.path));
            merged.truncate(most);
            merged.sort_unstable();
        }
        merged
    }

    /// All outer steps that are due, in order, whether or not they have been told before.
    pub fn due(&mut self, now: Duration) -> Vec<OuterStep> {
        self.take_due(now);
        self.stepping.iter().filter_map(|&fragment| self.due_step(fragment)).collect()
    }

    /// True if a look at everything that waits finds no outer step that is due besides those that have been told.
    fn none_is_due_besides(&mut self, now: Duration) -> bool {
        if self.waits() {
            return self.stepping == *self.sent.complete();
        }
        let looks = self.looks.get();
        let others = self.progress.pending.keys().filter(|fragment| !self.stepping.contains(fragment));
        let others: Vec<_> = others.copied().collect();
        let none = others.into_iter().all(|fragment| !self.is_due(now, fragment));
        self.looks.set(looks);
        none
    }

    /// Notes that all quorums may have changed.
    pub(super) fn look_at_quorums(&mut self) {
        for &fragment in self.progress.pending.keys() {
            self.quorums.changes(fragment);
        }
    }

    /// True if the next outer step of a fragment that has changed can be taken. With a quorum it looks at the contributions
    /// that wait for the fragment. Once due, a step stays due.
    fn is_due(&mut self, now: Duration, fragment: FragmentId) -> bool {
        let Scheme::Quorum(quorum) = self.plan.scheme else {
            return self.sent.complete().contains(&fragment);
        };
        let pending = self.progress.pending.get(&fragment).map_or(&[][..], Vec::as_slice);
        if pending.is_empty() {
            return false;
        }
        let there: BTreeSet<PathId> = pending.iter().map(|c| c.path).collect();
        // Paths at the end of the phase contribute no more.
        let end = self.end();
        let at_end = there.iter().filter(|&&path| self.path(path).steps >= end).count();
        let possible = self.places.in_phase(fragment.module) + at_end;
        let needed = (quorum.learners as usize).clamp(1, possible.max(1));
        let window = self.grace.window();
        let steps = quorum.throttle * self.plan.schedule.inner_steps() as f64;
        // Workers state their seconds themselves: an impossible speed on one path must not end the throttle.
        let round = self.grace.fastest(steps).max(self.speeds.least_time(steps));
        let earliest = self.stepped_at.get(&fragment).map_or(Duration::ZERO, |&at| at.saturating_add(round));
        let since = self.quorums.begin(fragment, now);
        if there.len() < needed {
            return false;
        }
        let until = self.quorums.until(fragment).unwrap_or_else(|| {
            self.grace.quorum(now.saturating_sub(since));
            let until = now.saturating_add(window).max(earliest);
            self.quorums.complete(fragment, now, until);
            until
        });
        there.len() == possible || now >= until
    }

    /// Records an outer step that was due, and its duration. Returns false if it does not count,
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
        // The coordinator may have taken the step itself, and the duration then holds the stop.
        if !self.interrupted.remove(&step.fragment) {
            self.grace.outer_step(took);
        }
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
