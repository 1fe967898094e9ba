//! The parts of a fragment's state that a path keeps between two leases.

use dipaco_protocol::WorkerPlan;
use dipaco_sync::Schedule;
use dipaco_topology::PathId;

use crate::moment_bounds::first_beyond;
use crate::state_header::{BASE, LEAD, OWN, RESIDUAL};

/// Largest magnitude of a value of a part, and of an outer gradient that joins one.
///
/// Nothing in a state bounds the weights of a model, nor what was lost of its outer gradients. Those of models that train
/// are below 1,000. A sum or difference of a few values of this magnitude, and its squared norm in f64, is far from the
/// largest number, so a path that goes on from them diverges at worst, and its worker reports that.
pub(crate) const LARGEST_VALUE: f32 = 1e6;

/// The first value of a vector that is larger than [`LARGEST_VALUE`] or not finite, with its place.
pub(crate) fn beyond_largest(values: &[f32]) -> Option<(usize, f32)> {
    first_beyond(values, LARGEST_VALUE)
}

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

    /// The parts that a path may keep of a fragment after any lease of a run.
    #[must_use]
    pub fn of_scheme(plan: &WorkerPlan) -> Self {
        // With whole modules a lease ends only where the path takes over each of them.
        let stays = plan.sync.fragments > 1 && !plan.sync.dynamic_steps;
        Self {
            own: stays || plan.sync.blend > 0.0 || plan.sync.drop_rate > 0.0,
            base: stays,
            residual: plan.outer.error_feedback > 0.0,
            ahead: plan.sync.eager,
        }
    }

    /// Number of vectors, each as long as the fragment, that hold these parts.
    pub(crate) fn vectors(self) -> usize {
        let Self { own, base, residual, ahead } = self;
        // A lead has its weights, its momentum and what it sent last.
        [own, base, residual, ahead, ahead, ahead].into_iter().map(usize::from).sum()
    }

    /// The first part that a fragment's state has against these rules, or lacks; `None` if it follows them. `parts` are the
    /// names of its parts.
    pub(crate) fn violation(self, parts: &[&str]) -> Option<&'static str> {
        let has = |part| parts.contains(&part);
        let of_lead = LEAD.into_iter().filter(|part| has(part)).count();
        let rules = [
            (self.own && !has(OWN), "lacks its own weights"),
            (!self.own && has(OWN), "has own weights, which the next lease does not use"),
            (!self.base && has(BASE), "has a base, which the next lease does not use"),
            (!self.residual && has(RESIDUAL), "has a residual without error feedback"),
            (!self.ahead && of_lead > 0, "has a lead without eager updates"),
            (of_lead > 0 && of_lead < LEAD.len(), "has a part of a lead without the others"),
        ];
        rules.into_iter().find_map(|(violated, violation)| violated.then_some(violation))
    }
}

#[cfg(test)]
mod tests;
