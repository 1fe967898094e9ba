//! Limits on the leases of all processes with one token together.

use dipaco_topology::PathId;

use super::RunState;
use crate::{ProcessId, Reason};

impl RunState {
    /// Number of paths that the processes with a token may train at a time: at most [`per_token`], and a path less for
    /// each other token whose workers ask and have no lease. At least 1.
    ///
    /// [`per_token`]: crate::LeaseLimits::per_token
    fn most_of_token(&self, token: &str) -> usize {
        let known = self.holders.tokens() - usize::from(self.holders.knows_token(token));
        let served = self.leases.tokens() - usize::from(self.leases.of_token(token) > 0);
        // A token with leases is known, unless it is so silent that its leases are about to end.
        let left_to_others = self.topology.trained_paths().len().saturating_sub(known.saturating_sub(served));
        self.plan.limits.per_token.min(left_to_others).max(1)
    }

    /// The reason not to grant a further lease to a process with this token; `None` if it may have one, and if it has
    /// leases of all paths.
    pub(super) fn token_has_enough(&self, token: &str) -> Option<Reason> {
        let (leases, most) = (self.leases.of_token(token), self.most_of_token(token));
        (leases >= most && leases < self.topology.trained_paths().len())
            .then_some(Reason::TokenEnough { leases, most })
    }

    /// True if the processes with a token have more leases than they may have: another token asks since.
    pub(super) fn token_has_too_many(&self, token: &str) -> bool {
        self.leases.of_token(token) > self.most_of_token(token)
    }

    /// A path for a worker whose token has no lease, although the path waits for the worker with its newest state: that
    /// worker gets no lease of it, because its token has as many as it may have. The other worker repeats the steps since
    /// the path's stored state, with the same bits. Looks at the tokens only while a free path waits for its holder, and at
    /// the free paths only while a token has that many leases.
    pub(super) fn left_over_for(&self, worker: &ProcessId) -> Option<PathId> {
        if self.leases.of_token(&worker.token) > 0
            || self.ready.reserved().next().is_none()
            || !self.leases.each_token().any(|token| self.token_has_enough(token).is_some())
        {
            return None;
        }
        let left_over = |&(_, path): &(u64, PathId)| {
            let holder = self.holders.other(path, worker);
            holder.is_some_and(|holder| self.token_has_enough(&holder.token).is_some())
                && !self.leaves_to_others(path, worker)
        };
        self.ready.free().find(left_over).map(|(_, path)| path)
    }
}
