//! Outer steps at the coordinator: decides which process takes each step, and records finished steps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dipaco_ledger::{Claimed, Orders, ReducedGradient, StepRecording, names};
use dipaco_sync::{Fence, FragmentId, ProcessId};
use dipaco_telemetry::Event;
use dipaco_topology::{ModuleId, PathId};
use tokio::time::Instant;

use super::CoordinatorRequests;
use crate::coordinator::error::CoordinatorError;
use crate::host::{Answer, Peer, refused};
use crate::synchronizer::{OrdersInFlight, Synchronizer};
use dipaco_protocol::{MOST_LEASES, OuterStepDone, OuterStepOrder, Response};

/// Longest address of a synchronizer, in bytes.
const ADDRESS_BYTES: usize = 256;
/// Largest number of paths through a module of a synchronizer. An order names a contribution of each of them, or with a quorum
/// up to 5,000 contributions (`run_state/outer_steps.rs` of `sync`), some 180 bytes each. It is one message of at most 1 MiB.
const MOST_PATHS: usize = 5_000;

/// A synchronizer's request for orders.
#[derive(Clone, Copy)]
pub(super) struct OrdersAsked<'a> {
    pub(super) modules: &'a [ModuleId],
    /// `host:port` at which workers reach the synchronizer.
    pub(super) address: &'a str,
    /// Number of revoked tokens that it knows.
    pub(super) revoked: u64,
    /// Leases of which it has uploads.
    pub(super) uploads: &'a [(PathId, Fence)],
}

impl CoordinatorRequests {
    /// Takes the outer steps of modules without a synchronizer of their own.
    pub(crate) async fn take_own_outer_steps(
        &self,
        synchronizer: Synchronizer,
    ) -> Result<(), CoordinatorError> {
        let synchronizer = Arc::new(synchronizer);
        let own = self.ledger().own_fence();
        let mut contributed = self.contributed.subscribe();
        loop {
            // Before the orders are computed, so that a later contribution ends the wait below.
            contributed.borrow_and_update();
            let orders = self.orders(own)?;
            let idle = !orders.iter().any(|order| order.due);
            let mut steps = OrdersInFlight::new(&synchronizer, orders);
            while let Some(done) = steps.next().await? {
                self.record_step(&done)?;
            }
            if idle {
                // Fails only when these requests are dropped.
                contributed.changed().await.map_err(|_| CoordinatorError::Stopped)?;
            }
        }
    }

    /// The orders for the synchronizer with this fencing number.
    fn orders(&self, fence: u64) -> Result<Vec<OuterStepOrder>, CoordinatorError> {
        let Orders { orders, reduced, others_due } = {
            let mut ledger = self.ledger();
            let now = self.look_at_clock(&mut ledger);
            ledger.orders(now, fence)?
        };
        // A grace period may have begun.
        self.deadlines.notify_one();
        if others_due {
            // Time alone makes steps due, too. Then nobody else has told their owners.
            self.notify_synchronizers();
        }
        for ReducedGradient { path, fragment, norm, token } in reduced {
            tracing::warn!(%path, %fragment, norm, token, "an outer gradient out of proportion is reduced");
        }
        Ok(orders)
    }

    /// Records an outer step. Returns false if it does not count, because another synchronizer has been asked since.
    fn record_step(&self, done: &OuterStepDone) -> Result<bool, CoordinatorError> {
        let &OuterStepDone { fragment: FragmentId { module, index }, version, .. } = done;
        let recorded = self.try_change(|ledger| {
            // The duration of the step may hold a time in which the coordinator did not run.
            self.look_at_clock(ledger);
            ledger.record_step(done)
        })?;
        let contributions = match recorded {
            StepRecording::Counts { contributions } => contributions,
            StepRecording::Known => return Ok(true),
            StepRecording::Rejected => return Ok(false),
        };
        self.progress.event(Event::ModuleStepped {
            module,
            fragment: index,
            version: version.into(),
            paths: u32::try_from(contributions).unwrap_or(u32::MAX),
            outer_gradient_norm: done.norm,
            cosine: done.cosine,
        });
        self.note_progress();
        self.changed.notify_waiters();
        self.notify_synchronizers();
        Ok(true)
    }

    /// Records an outer step of a synchronizer in another process.
    pub(super) async fn record_remote_step(
        &self,
        done: &OuterStepDone,
    ) -> Result<Response, CoordinatorError> {
        let &OuterStepDone { fragment: FragmentId { module, index }, version, fence, .. } = done;
        let named = done.weights.name == names::weights(module, index, version, fence)
            && done.momentum.name == names::momentum(module, index, version, fence)
            && done.change.iter().all(|change| change.name == names::change(module, index, version, fence));
        if !named {
            let reason = format!(
                "these are not the names of the objects of outer step {version} of {}",
                done.fragment
            );
            return Ok(Response::Refused { reason });
        }
        let counts = self.record_step(done)?;
        self.on_disk().await?;
        if counts {
            return Ok(Response::Done);
        }
        let reason =
            format!("outer step {version} of {} has been given to another synchronizer", done.fragment);
        Ok(Response::Lost { reason })
    }

    /// Makes a synchronizer the owner of modules, and answers with its orders as soon as there are any, or when it knows
    /// another number of revoked tokens.
    pub(super) async fn give_orders(
        &self,
        peer: &Peer,
        asked: OrdersAsked<'_>,
        wait: Duration,
    ) -> Result<Answer, CoordinatorError> {
        let OrdersAsked { modules, address, revoked: told, uploads } = asked;
        let known: BTreeSet<_> = self.intake.topology.module_ids().collect();
        if let Some(module) = modules.iter().find(|module| !known.contains(module)) {
            return Ok(refused(format!("this run has no module {module}: give other --modules")));
        }
        if modules.len() > known.len() {
            return Ok(refused(format!(
                "a synchronizer has at most the {} modules of this run",
                known.len()
            )));
        }
        if modules.is_empty() || address.is_empty() || address.len() > ADDRESS_BYTES {
            return Ok(refused("a synchronizer has modules, and an address at which workers reach it"));
        }
        if uploads.len() > MOST_LEASES {
            let named = uploads.len();
            return Ok(refused(format!(
                "a synchronizer asks about the end of at most {MOST_LEASES} leases at a time, and the request names {named}"
            )));
        }
        let through = |module| self.intake.topology.paths_through(module).take(MOST_PATHS + 1).count();
        if let Some(&module) = modules.iter().find(|&&module| through(module) > MOST_PATHS) {
            return Ok(refused(format!(
                "more than {MOST_PATHS} paths share module {module}, so its orders are longer than a message: leave its outer \
                 steps to the coordinator"
            )));
        }
        let claimed = self.ledger().claim_modules(self.now(), &peer.process, address, modules);
        let Claimed { fence, new } = match claimed {
            Ok(claim) => claim,
            Err(reason) => return Ok(refused(reason)),
        };
        if new {
            tracing::info!(
                synchronizer = peer.process.name,
                address,
                modules = modules.len(),
                "a synchronizer takes the outer steps of these modules"
            );
            // Modules of its earlier process that this one does not claim have gone back to the coordinator, with the steps that
            // are due.
            self.notify_synchronizers();
        }
        let deadline = Instant::now() + wait;
        let mut contributed = self.contributed.subscribe();
        loop {
            // Marked as seen before the orders are made, so that a contribution from now on ends the wait below.
            contributed.borrow_and_update();
            // A newer process of this name may have claimed the modules during the wait.
            if self.ledger().owner_fence(modules[0]) != fence {
                let reason = "another process of the same name has the modules".to_owned();
                return Ok((Response::Lost { reason }, None));
            }
            let orders = self.orders(fence)?;
            let revoked = self.revocations.names()?;
            {
                let ledger = self.ledger();
                if ledger.state().finished() {
                    return Ok((Response::Finished, None));
                }
                if !orders.is_empty() || revoked.len() as u64 != told || Instant::now() >= deadline {
                    let state = ledger.state();
                    let over = uploads.iter().filter(|&&(path, fence)| !state.is_granted(path, fence));
                    let over = over.map(|&(_, fence)| fence).collect();
                    return Ok((Response::Orders { over, orders, revoked }, None));
                }
            }
            tokio::select! {
                _ = contributed.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Takes the modules of a synchronizer back. The coordinator takes their outer steps from then on.
    pub(super) fn take_modules_back(&self, process: &ProcessId, reason: &str) {
        let modules = self.ledger().release_modules(self.now(), process);
        if modules > 0 {
            let synchronizer = &process.name;
            tracing::warn!(
                synchronizer,
                modules,
                reason,
                "a synchronizer left; the coordinator takes its outer steps"
            );
            self.notify_synchronizers();
        }
    }
}

#[cfg(test)]
mod tests;
