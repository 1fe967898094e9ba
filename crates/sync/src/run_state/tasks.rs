//! The next task of a path, or the fragment for which it waits.

use std::collections::BTreeMap;

use dipaco_topology::PathId;

use super::RunState;
use crate::{FragmentId, LeaseTask, ProcessId, Reason, ScheduledReceive, ScheduledSend};

impl RunState {
    /// Fragments that a path takes over after `from` inner steps, each with the version that must exist.
    pub(super) fn receives(&self, path: PathId, from: u64, task: LeaseTask) -> Vec<(ScheduledReceive, u32)> {
        let schedule = &self.plan.schedule;
        let all = (0..schedule.fragments()).map(|fragment| (fragment, schedule.sent_through(fragment, from)));
        let due: BTreeMap<u32, u64> = if task == LeaseTask::Measure || self.plan.scheme.dynamic_steps() {
            all.collect()
        } else {
            schedule.receives(from).into_iter().collect()
        };
        let fragments = self.fragment_ids_of(path).into_iter();
        fragments
            .filter_map(|fragment| {
                let sent = *due.get(&fragment.index)?;
                // A frozen fragment is taken over with the others, always at version 0. So a path that takes over all
                // fragments is on global weights.
                let sent = if self.trains(fragment) { u32::try_from(sent).unwrap_or(u32::MAX) } else { 0 };
                let version = self.progress.versions[&fragment];
                // In a synchronous run the version follows from the path's own sends, so time cannot change it.
                let (version, needed) =
                    if self.plan.scheme.waits() { (sent.min(version), sent) } else { (version, 0) };
                Some((ScheduledReceive { fragment, version }, needed))
            })
            .collect()
    }

    /// Outer gradients that a path sends between two inner steps.
    #[must_use]
    pub fn sends(&self, path: PathId, from: u64, to: u64) -> Vec<ScheduledSend> {
        let fragments: Vec<FragmentId> = self.trained_fragments_of(path).collect();
        if self.plan.scheme.dynamic_steps() {
            // Such a lease sends only at its end, so a contribution is always a complete one.
            let sent =
                |fragment: FragmentId| self.path(path).sent.get(self.slot(fragment)).copied().unwrap_or(0);
            return fragments
                .iter()
                .map(|&fragment| ScheduledSend { fragment, step: to, number: sent(fragment) + 1 })
                .collect();
        }
        let schedule = &self.plan.schedule;
        let of = |point: crate::SchedulePoint| {
            let sent = schedule.sent_through(point.fragment, point.step);
            let number = u32::try_from(sent).unwrap_or(u32::MAX);
            let fragments = fragments.iter().filter(move |fragment| fragment.index == point.fragment);
            fragments
                .map(move |&fragment| ScheduledSend { fragment, step: point.step, number })
                .collect::<Vec<_>>()
        };
        let mut points = schedule.sends(from, to);
        points.retain(|point| {
            !schedule.dropped(path, point.fragment, schedule.sent_through(point.fragment, point.step))
        });
        points.into_iter().flat_map(of).collect()
    }

    /// The task of a path, or the first fragment for which it waits.
    pub(super) fn task(&self, path: PathId) -> Result<LeaseTask, Option<FragmentId>> {
        let done = self.path(path);
        let total = self.plan.schedule.total();
        let task = if done.steps < self.end() {
            LeaseTask::Train
        } else if done.steps == total && !done.measured {
            LeaseTask::Measure
        } else {
            return Err(None);
        };
        if task == LeaseTask::Measure && !self.plan.scheme.waits() {
            // Weights are final when all learners are at their end and all contributions are merged.
            let open = |fragment: &FragmentId| {
                self.progress.pending.contains_key(fragment)
                    || self.topology.paths_through(fragment.module).any(|path| self.path(path).steps < total)
            };
            return self
                .trained_fragments_of(path)
                .find(open)
                .map_or(Ok(task), |fragment| Err(Some(fragment)));
        }
        if !self.plan.scheme.waits() && self.plan.schedule.overlap() == 0 {
            // An outer step in progress will make a newer version in a moment.
            let stepping =
                self.fragment_ids_of(path).into_iter().find(|fragment| self.stepping.contains(fragment));
            return stepping.map_or(Ok(task), |fragment| Err(Some(fragment)));
        }
        let receives = self.receives(path, done.steps, task);
        let missing = receives.iter().find(|(receive, needed)| receive.version < *needed);
        missing.map_or(Ok(task), |(receive, _)| Err(Some(receive.fragment)))
    }

    /// Updates the index for a path.
    pub(super) fn look_at(&mut self, path: PathId) {
        let task = self.task(path);
        let steps = self.path(path).steps;
        let rests = task == Ok(LeaseTask::Train) && self.plan.schedule.rests_after(path, steps);
        if rests {
            self.resting.insert(path);
        }
        let taken = rests || self.leases.get(path).is_some() || self.progress.quarantined.contains(&path);
        let reserved = self.holders.are_waited_for(path);
        self.ready.set(path, steps, task, taken, reserved);
    }

    pub(super) fn look_at_all(&mut self) {
        for path in self.topology.path_ids() {
            self.look_at(path);
        }
    }

    /// Updates the index for the learners of a fragment.
    pub(super) fn look_at_learners(&mut self, fragment: FragmentId) {
        let learners: Vec<PathId> = self.topology.paths_through(fragment.module).collect();
        learners.into_iter().for_each(|path| self.look_at(path));
    }

    /// The reason why no path can be trained now.
    pub(super) fn reason(&self, worker: &ProcessId) -> Reason {
        if self.at_boundary() {
            return Reason::PhaseEnds { steps: self.end() };
        }
        let left = |path: &PathId| self.leases.get(*path).is_none() && self.leaves_to_others(*path, worker);
        if let Some(path) = self.topology.path_ids().find(left) {
            return Reason::Failed { path };
        }
        let idle = self.topology.path_ids().filter(|path| self.leases.get(*path).is_none());
        let waiting =
            idle.filter_map(|path| Some((self.path(path).steps, path, self.ready.task(path).err()??)));
        let Some((_, _, fragment)) = waiting.min() else {
            let mut idle = self.topology.path_ids().filter(|path| self.leases.get(*path).is_none());
            if let Some((path, holder)) =
                idle.find_map(|path| self.holders.other(path, worker).map(|holder| (path, holder)))
            {
                return Reason::Held { path, worker: holder.name.clone() };
            }
            return Reason::AllLeased { leases: self.leases.len() };
        };
        self.reason_of(fragment)
    }

    /// The reason why a fragment waits.
    pub(super) fn reason_of(&self, fragment: FragmentId) -> Reason {
        let (slot, cut) = (self.slot(fragment), self.plan.schedule.fragments() > 1);
        let version = self.progress.versions[&fragment];
        if self.stepping.contains(&fragment) {
            return Reason::OuterStep { fragment, cut };
        }
        let missing = self.topology.paths_through(fragment.module).filter(|&path| {
            let done = self.path(path);
            if self.plan.scheme.waits() {
                done.sent[slot] <= version
            } else {
                done.steps < self.plan.schedule.total()
            }
        });
        let paths: Vec<_> = missing
            .take(4)
            .map(|path| (path, self.leases.get(path).map(|l| l.worker.name.clone())))
            .collect();
        if paths.is_empty() {
            Reason::OuterStep { fragment, cut }
        } else {
            Reason::UnitWaits { fragment, cut, paths }
        }
    }
}
