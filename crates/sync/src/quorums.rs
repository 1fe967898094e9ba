//! The outer steps that wait for a quorum: which of them must be looked at again, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::FragmentId;

/// Progress of the quorum of an outer step.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    since: Duration,
    /// Latest time of the step; set when the quorum is complete.
    until: Option<Duration>,
}

/// The gathering quorums. A look for outer steps goes through the fragments with news alone, not through all that gather.
#[derive(Debug, Default)]
pub(crate) struct Quorums {
    gathering: BTreeMap<FragmentId, Gathering>,
    /// Fragments whose contributions or possible contributors have changed since the last look.
    changed: BTreeSet<FragmentId>,
    /// Latest times of the steps whose quorum is complete, until they have come.
    ends: BTreeSet<(Duration, FragmentId)>,
}

impl Quorums {
    /// Notes that the contributions to a fragment, or the paths that may contribute to it, have changed.
    pub(crate) fn changes(&mut self, fragment: FragmentId) {
        self.changed.insert(fragment);
    }

    /// The fragments that have changed since the last call, and those whose latest time has come since.
    pub(crate) fn take_news(&mut self, now: Duration) -> BTreeSet<FragmentId> {
        self.pass_ends(now);
        std::mem::take(&mut self.changed)
    }

    /// Notes that the latest times up to `now` have come: their fragments are news to the next look, and nobody is woken for
    /// these times again.
    pub(crate) fn pass_ends(&mut self, now: Duration) {
        while let Some(&(until, fragment)) = self.ends.first()
            && until <= now
        {
            self.ends.pop_first();
            self.changed.insert(fragment);
        }
    }

    /// Begins to gather the quorum of a fragment if none gathers. Returns the time at which it began.
    pub(crate) fn begin(&mut self, fragment: FragmentId, now: Duration) -> Duration {
        self.gathering.entry(fragment).or_insert(Gathering { since: now, until: None }).since
    }

    /// The latest time of a fragment's step; `None` until its quorum is complete.
    pub(crate) fn until(&self, fragment: FragmentId) -> Option<Duration> {
        self.gathering.get(&fragment)?.until
    }

    /// Sets the latest time of a fragment's step, because a look has found that the quorum that gathers is complete.
    pub(crate) fn complete(&mut self, fragment: FragmentId, now: Duration, until: Duration) {
        if let Some(gathering) = self.gathering.get_mut(&fragment) {
            gathering.until = Some(until);
            // Otherwise the step is due in this look. It may be taken much later, and nobody needs to be woken meanwhile.
            if until > now {
                self.ends.insert((until, fragment));
            }
        }
    }

    /// The step of a fragment is taken: its next quorum begins with the next contribution.
    pub(crate) fn stepped(&mut self, fragment: FragmentId) {
        if let Some(Gathering { until: Some(until), .. }) = self.gathering.remove(&fragment) {
            self.ends.remove(&(until, fragment));
        }
        self.changes(fragment);
    }

    /// Takes a time in which nobody could contribute, and which has just ended, for no time of the quorums that gather.
    /// Latest times that have come stay.
    pub(crate) fn postpone(&mut self, now: Duration, by: Duration) {
        for gathering in self.gathering.values_mut() {
            gathering.since = gathering.since.saturating_add(by).min(now);
        }
        for (until, fragment) in std::mem::take(&mut self.ends) {
            let until = until.saturating_add(by);
            if let Some(gathering) = self.gathering.get_mut(&fragment) {
                gathering.until = Some(until);
                self.ends.insert((until, fragment));
            }
        }
    }

    /// The next time at which a step is due although no message arrives.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        self.ends.first().map(|&(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::ModuleId;

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_look_finds_changes_and_ended_times_once() {
        let [a, b] = [0, 1].map(|index| FragmentId { module: ModuleId { level: 0, index: 0 }, index });
        let mut quorums = Quorums::default();
        quorums.changes(a);
        quorums.changes(b);
        assert_eq!(quorums.take_news(at(0)), [a, b].into());
        assert_eq!(quorums.begin(a, at(0)), at(0));
        assert_eq!(quorums.begin(a, at(3)), at(0));
        assert_eq!((quorums.until(a), quorums.next_end()), (None, None));
        quorums.complete(a, at(3), at(5));
        assert_eq!((quorums.until(a), quorums.next_end()), (Some(at(5)), Some(at(5))));
        assert_eq!(quorums.take_news(at(4)), [].into());
        assert_eq!(quorums.take_news(at(5)), [a].into());
        // The time has come: nobody is woken for it again while the step is taken.
        assert_eq!((quorums.until(a), quorums.next_end()), (Some(at(5)), None));
        quorums.stepped(a);
        assert_eq!((quorums.until(a), quorums.take_news(at(6))), (None, [a].into()));
        // A step may be taken before its latest time, because all paths have contributed.
        quorums.begin(b, at(6));
        quorums.complete(b, at(6), at(9));
        quorums.stepped(b);
        assert_eq!((quorums.next_end(), quorums.take_news(at(9))), (None, [b].into()));
    }

    #[test]
    fn a_time_that_has_come_wakes_nobody_again_and_stays_news() {
        let [a, b] = [0, 1].map(|index| FragmentId { module: ModuleId { level: 0, index: 0 }, index });
        let mut quorums = Quorums::default();
        for (fragment, until) in [(a, at(5)), (b, at(7))] {
            quorums.begin(fragment, at(0));
            quorums.complete(fragment, at(0), until);
        }
        quorums.pass_ends(at(5));
        assert_eq!((quorums.until(a), quorums.next_end()), (Some(at(5)), Some(at(7))));
        assert_eq!((quorums.take_news(at(6)), quorums.take_news(at(6))), ([a].into(), [].into()));
        // A step that is due in the look that completes its quorum.
        quorums.stepped(a);
        quorums.begin(a, at(6));
        quorums.complete(a, at(6), at(6));
        assert_eq!((quorums.until(a), quorums.next_end()), (Some(at(6)), Some(at(7))));
    }
}
