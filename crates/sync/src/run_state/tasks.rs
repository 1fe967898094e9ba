//! The next task of a path, or the fragment for which it waits.

use std::collections::BTreeMap;

use dipaco_topology::{ModuleId, PathId};

use super::RunState;
use crate::ready::Standing;
use crate::{FragmentId, LeaseTask, ProcessId, Reason, ScheduledReceive, ScheduledSend};

/// Number of paths through a module that a message looks at for names: a run may have a module with very many paths.
const NAMED_AMONG: usize = 16;

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
        let task = if done.steps < self.end() {
            LeaseTask::Train
        } else if done.steps == self.plan.schedule.total() && !done.measured {
            LeaseTask::Measure
        } else {
            return Err(None);
        };
        if task == LeaseTask::Measure && !self.plan.scheme.waits() {
            // Weights are final when all learners are at their end and all contributions are merged.
            let open = |fragment: &FragmentId| {
                self.progress.pending.contains_key(fragment) || self.places.is_under_way(fragment.module)
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
        let idle = task.is_ok_and(|task| self.is_idle(path, steps, task));
        if idle {
            self.idle.insert(path);
        }
        let leased = self.leases.get(path).is_some();
        let taken = idle || leased || self.is_quarantined(path);
        let reserved = self.holders.are_waited_for(path);
        self.ready.set(path, steps, task, Standing { leased, taken, reserved });
        if let Some(sampling) = &mut self.sampling {
            sampling.set_open(path, self.ready.is_open(path).then_some(steps));
        }
        self.needed.set(path, self.needs(path));
    }

    /// Versions that a path needs: those from which it trains, and those that it takes over next.
    pub(super) fn needs(&self, path: PathId) -> Vec<(FragmentId, u32)> {
        let leases = self.leases.get(path).into_iter().chain(self.leases.following(path));
        let receives = leases.flat_map(|lease| &lease.receives);
        let mut needs: Vec<_> = receives.map(|receive| (receive.fragment, receive.version)).collect();
        let done = self.path(path);
        if done.steps == self.plan.schedule.total() {
            return needs;
        }
        let next = self.receives(path, done.steps, LeaseTask::Train);
        for (fragment, &adopted) in self.fragment_ids_of(path).into_iter().zip(&done.adopted) {
            match next.iter().find(|(receive, _)| receive.fragment == fragment) {
                // The version may not exist yet: then the path needs the newest until it does.
                Some(&(_, version)) if self.waits() => needs.push((fragment, version)),
                // It takes over the newest of the time.
                Some(_) => {}
                None => needs.push((fragment, adopted)),
            }
        }
        needs
    }

    pub(super) fn look_at_all(&mut self) {
        for path in self.topology.path_ids() {
            self.look_at(path);
        }
    }

    /// Updates the index for the paths through a module.
    pub(super) fn look_at_learners(&mut self, module: ModuleId) {
        let learners: Vec<PathId> = self.topology.paths_through(module).collect();
        learners.into_iter().for_each(|path| self.look_at(path));
    }

    /// The reason why no path can be trained now.
    pub(super) fn reason(&self, worker: &ProcessId) -> Reason {
        if self.at_boundary() {
            return Reason::PhaseEnds { steps: self.end() };
        }
        let left = |path: &PathId| self.leases.get(*path).is_none() && self.leaves_to_others(*path, worker);
        if let Some(path) = self.troubles.paths().find(left) {
            return Reason::Failed { path };
        }
        if let Some(fragment) = self.ready.first_waiting() {
            return self.reason_of(fragment);
        }
        let held = |path| self.holders.other(path, worker).map(|holder| (path, holder));
        if let Some((path, holder)) = self.ready.reserved().find_map(held) {
            return Reason::Held { path, worker: holder.name.clone() };
        }
        Reason::AllLeased { leases: self.leases.len() }
    }

    /// The reason why a fragment waits.
    pub(super) fn reason_of(&self, fragment: FragmentId) -> Reason {
        let (slot, cut) = (self.slot(fragment), self.plan.schedule.fragments() > 1);
        let version = self.progress.versions[&fragment];
        if self.stepping.contains(&fragment) {
            return Reason::OuterStep { fragment, cut };
        }
        let mut learners = self.topology.paths_through(fragment.module);
        let looked_at: Vec<PathId> = learners.by_ref().take(NAMED_AMONG).collect();
        let missing = looked_at.into_iter().filter(|&path| {
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
        if paths.is_empty() && learners.next().is_none() {
            Reason::OuterStep { fragment, cut }
        } else {
            Reason::UnitWaits { fragment, cut, paths }
        }
    }
}
