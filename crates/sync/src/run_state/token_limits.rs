//! Limits on the leases of all processes with one token together.

use std::cell::LazyCell;

use dipaco_topology::PathId;

use super::RunState;
use crate::{ProcessId, Reason};

impl RunState {
    /// Number of paths that the processes with a token may train at a time: at most [`per_token`]. While the workers of
    /// other tokens ask and have no lease, also at most the paths that can train, less one for each of these tokens. At
    /// least 1. Asks how many paths [can train](Self::can_train) only while such a token waits.
    ///
    /// [`per_token`]: crate::LeaseLimits::per_token
    fn most_of_token(&self, token: &str, can_train: impl FnOnce() -> usize) -> usize {
        let known = self.holders.tokens() - usize::from(self.holders.knows_token(token));
        let served = self.leases.tokens() - usize::from(self.leases.of_token(token) > 0);
        // A token with leases is known, unless it is so silent that its leases are about to end.
        let left_to_others = match known.saturating_sub(served) {
            0 => usize::MAX,
            waiting => can_train().saturating_sub(waiting),
        };
        self.plan.limits.per_token.min(left_to_others).max(1)
    }

    /// Number of paths that can train at a time: those that do not rest in the round of the path that is furthest behind,
    /// and are not in quarantine. Paths that wait for an outer step count. Looks at the paths in quarantine. The first
    /// question about a round in which some paths rest looks at all paths.
    fn can_train(&self) -> usize {
        let (schedule, step) = (&self.plan.schedule, self.least_steps());
        let round = schedule.sent_through(0, schedule.next_stop(step));
        // No path rests when all measure their final weights.
        let some = schedule.rests().awake_of_some(round).filter(|_| step < schedule.total());
        let awake = some.unwrap_or(self.topology.trained_paths().len());
        self.note_looks(self.progress.quarantined.len() as u64);
        let idle = self.progress.quarantined.iter().filter(|&&path| !schedule.rests_after(path, step));
        awake.saturating_sub(idle.count())
    }

    /// The reason not to grant a further lease to a process with this token; `None` if it may have one, and if it has
    /// leases of all paths.
    pub(super) fn token_has_enough(&self, token: &str) -> Option<Reason> {
        self.enough_of_token(token, || self.can_train())
    }

    fn enough_of_token(&self, token: &str, can_train: impl FnOnce() -> usize) -> Option<Reason> {
        let (leases, most) = (self.leases.of_token(token), self.most_of_token(token, can_train));
        (leases >= most && leases < self.topology.trained_paths().len())
            .then_some(Reason::TokenEnough { leases, most })
    }

    /// True if the processes with a token have more leases than they may have: another token asks since.
    pub(super) fn token_has_too_many(&self, token: &str) -> bool {
        self.leases.of_token(token) > self.most_of_token(token, || self.can_train())
    }

    /// A path for a worker whose token has no lease, although the path waits for the worker with its newest state: that
    /// worker gets no lease of it, because its token has as many as it may have. The other worker repeats the steps since
    /// the path's stored state, with the same bits. Looks at the tokens only while a free path waits for its holder, and at
    /// the free paths only while a token has that many leases.
    pub(super) fn left_over_for(&self, worker: &ProcessId) -> Option<PathId> {
        // Once for all tokens.
        let can_train = LazyCell::new(|| self.can_train());
        let has_enough = |token: &str| self.enough_of_token(token, || *can_train).is_some();
        if self.leases.of_token(&worker.token) > 0
            || self.ready.reserved().next().is_none()
            || !self.leases.each_token().any(|token| has_enough(token))
        {
            return None;
        }
        let left_over = |&(_, path): &(u64, PathId)| {
            let holder = self.holders.other(path, worker);
            holder.is_some_and(|holder| has_enough(&holder.token)) && !self.leaves_to_others(path, worker)
        };
        self.ready.free().find(left_over).map(|(_, path)| path)
    }
}
