//! The outer steps that the owners of modules owe, and the fragments whose news they have not heard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{FragmentId, OuterStep};
use dipaco_topology::ModuleId;

/// Outer steps and news, by the fencing number of the owner: nobody looks at those of other owners.
#[derive(Debug)]
pub(crate) struct OpenSteps {
    /// The coordinator's own fencing number. Its steps have no deadline.
    own: u64,
    /// The outer steps that are due.
    due: BTreeMap<FragmentId, DueStep>,
    /// The fragments of `due` by owner.
    of_owners: BTreeSet<(u64, FragmentId)>,
    /// The fragments of `due` that other processes own, by the time since when they owe the step.
    by_age: BTreeSet<(Duration, FragmentId)>,
    /// Fragments with contributions of which their owner has not heard.
    news: BTreeSet<(u64, FragmentId)>,
}

/// An outer step that is due.
#[derive(Debug)]
struct DueStep {
    /// Since when the owner owes the step, whether or not it asks for its orders: one that hangs asks no more.
    since: Duration,
    /// The last order to take the step, and the fencing number of the process that got it.
    ordered: Option<(u64, OuterStep)>,
    /// The coordinator's own order to take the step, also if another process has been asked since.
    own: Option<OuterStep>,
}

impl OpenSteps {
    /// No outer steps yet of a coordinator with this fencing number.
    pub(crate) fn new(own: u64) -> Self {
        let (due, of_owners, by_age, news) = Default::default();
        Self { own, due, of_owners, by_age, news }
    }

    /// Notes that the owner of a fragment owes its outer step from now on.
    pub(crate) fn note_due(&mut self, now: Duration, owner: u64, fragment: FragmentId) {
        self.due.entry(fragment).or_insert_with(|| {
            self.of_owners.insert((owner, fragment));
            if owner != self.own {
                self.by_age.insert((now, fragment));
            }
            DueStep { since: now, ordered: None, own: None }
        });
    }

    /// Notes contributions to a fragment of which its owner has not heard.
    pub(crate) fn note_news(&mut self, owner: u64, fragment: FragmentId) {
        self.news.insert((owner, fragment));
    }

    /// Notes that the owner of a fragment has heard the news of it.
    pub(crate) fn heard(&mut self, owner: u64, fragment: FragmentId) {
        self.news.remove(&(owner, fragment));
    }

    /// True if the outer step of a fragment is due.
    pub(crate) fn is_due(&self, fragment: FragmentId) -> bool {
        self.due.contains_key(&fragment)
    }

    /// The fragments whose outer steps an owner owes, in order.
    pub(crate) fn due_of(&self, owner: u64) -> impl Iterator<Item = FragmentId> {
        of_owner(&self.of_owners, owner)
    }

    /// The fragments of an owner with news, in order.
    pub(crate) fn news_of(&self, owner: u64) -> impl Iterator<Item = FragmentId> {
        of_owner(&self.news, owner)
    }

    /// Notes that a process has been asked to take an outer step that is due. This replaces an earlier order of the step.
    pub(crate) fn order(&mut self, fence: u64, step: OuterStep) {
        if let Some(due) = self.due.get_mut(&step.fragment) {
            if fence == self.own {
                due.own = Some(step.clone());
            }
            due.ordered = Some((fence, step));
        }
    }

    /// The order that a process with this fencing number has been given. It stays the same: the process may be carrying it out,
    /// and reports no contributions.
    pub(crate) fn told(&self, fence: u64, fragment: FragmentId) -> Option<&OuterStep> {
        let due = self.due.get(&fragment)?;
        let last = due.ordered.as_ref().filter(|(asked, _)| *asked == fence).map(|(_, step)| step);
        last.or_else(|| due.own.as_ref().filter(|_| fence == self.own))
    }

    /// Takes out the outer step that a process was asked for, which is due no more; `None` if another process has been
    /// asked since. `owner` owes the step.
    pub(crate) fn take_ordered(
        &mut self,
        owner: u64,
        fragment: FragmentId,
        version: u32,
        fence: u64,
    ) -> Option<OuterStep> {
        let asked = |due: &&DueStep| {
            due.ordered.as_ref().is_some_and(|(asked, step)| (*asked, step.version) == (fence, version))
        };
        self.due.get(&fragment).filter(asked)?;
        let DueStep { since, ordered, .. } = self.due.remove(&fragment)?;
        self.of_owners.remove(&(owner, fragment));
        self.by_age.remove(&(since, fragment));
        ordered.map(|(_, step)| step)
    }

    /// Passes the outer steps and the news of a module on to another owner, which owes the steps from now on. The process that
    /// has been asked to take a step may still take it, until the new owner is asked.
    pub(crate) fn pass_on(&mut self, now: Duration, module: ModuleId, from: u64, to: u64) {
        let [first, last] = [0, u32::MAX].map(|index| FragmentId { module, index });
        for (&fragment, due) in self.due.range_mut(first..=last) {
            self.of_owners.remove(&(from, fragment));
            self.of_owners.insert((to, fragment));
            self.by_age.remove(&(due.since, fragment));
            due.since = now;
            if to != self.own {
                self.by_age.insert((now, fragment));
            }
        }
        let news: Vec<_> = self.news.range((from, first)..=(from, last)).copied().collect();
        for (owner, fragment) in news {
            self.news.remove(&(owner, fragment));
            self.news.insert((to, fragment));
        }
    }

    /// Takes a time in which the coordinator did not run, and which has just ended, out of the times for which other processes owe
    /// their steps.
    pub(crate) fn postpone(&mut self, now: Duration, by: Duration) {
        for (_, fragment) in std::mem::take(&mut self.by_age) {
            if let Some(due) = self.due.get_mut(&fragment) {
                due.since = due.since.saturating_add(by).min(now);
                self.by_age.insert((due.since, fragment));
            }
        }
    }

    /// Since when another process owes the oldest outer step; `None` if none is due.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.by_age.first().map(|&(since, _)| since)
    }

    /// The fragments whose outer steps other processes have owed since `before` or longer.
    pub(crate) fn older_than(&self, before: Duration) -> impl Iterator<Item = FragmentId> {
        let old = self.by_age.iter().take_while(move |&&(since, _)| since <= before);
        old.map(|&(_, fragment)| fragment)
    }
}

/// The fragments of an owner in a set by owner.
fn of_owner(set: &BTreeSet<(u64, FragmentId)>, owner: u64) -> impl Iterator<Item = FragmentId> {
    let first = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };
    let own = set.range((owner, first)..).take_while(move |&&(other, _)| other == owner);
    own.map(|&(_, fragment)| fragment)
}
