//! The parts of a fragment's state that a path keeps between two leases.

use dipaco_protocol::WorkerPlan;
use dipaco_sync::Schedule;
use dipaco_topology::PathId;

use crate::state::FragmentState;

/// The parts of a fragment's state that a path keeps after a lease, as its scheme decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptParts {
    /// True if the path keeps weights of its own: its next lease does not start from the global ones.
    pub own: bool,
    /// True if the path may keep the base of an outer gradient on its way.
    pub base: bool,
    /// True if the path may keep the loss of encoding.
    pub residual: bool,
    /// True if the path may keep a lead over the global weights.
    pub ahead: bool,
}

impl KeptParts {
    /// The parts of the fragment `index` of each module of a path whose next lease begins at `step`.
    #[must_use]
    pub fn of(plan: &WorkerPlan, schedule: &Schedule, path: PathId, step: u64, index: u32) -> Self {
        if step >= schedule.total() {
            return Self { own: false, base: false, residual: false, ahead: false };
        }
        let begins = step == schedule.begin(schedule.phase_at(step));
        // Global weights that the next lease takes over unblended replace the path's own.
        let received = schedule.receives(step).iter().any(|&(fragment, _)| fragment == index);
        let replaced = plan.sync.dynamic_steps || received;
        let blended = plan.sync.blend > 0.0 || schedule.keeps_own(path, index, step);
        Self {
            own: !replaced || !begins && blended,
            base: !replaced,
            residual: plan.outer.error_feedback > 0.0,
            ahead: plan.sync.eager && !begins,
        }
    }

    /// The first part that a state has against these rules, or lacks; `None` if it follows them.
    pub(crate) fn violation(self, state: &FragmentState) -> Option<&'static str> {
        let FragmentState { weights, base, residual, ahead } = state;
        let rules = [
            (self.own && weights.is_none(), "lacks its own weights"),
            (!self.own && weights.is_some(), "has own weights, which the next lease does not use"),
            (!self.base && base.is_some(), "has a base, which the next lease does not use"),
            (!self.residual && residual.is_some(), "has a residual without error feedback"),
            (!self.ahead && ahead.is_some(), "has a lead without eager updates"),
        ];
        rules.into_iter().find_map(|(violated, violation)| violated.then_some(violation))
    }
}
