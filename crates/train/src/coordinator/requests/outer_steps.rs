//! Outer steps at the coordinator: decides which process takes each step, and records finished steps.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_store::names;
use dipaco_sync::{FragmentId, ProcessId};
use dipaco_telemetry::Event;
use dipaco_topology::ModuleId;
use tokio::time::Instant;

use super::CoordinatorRequests;
use crate::coordinator::error::CoordinatorError;
use crate::coordinator::orders::OrderBuilder;
use crate::coordinator::owners::{Claimed, ModuleOwners};
use crate::host::{Answer, Peer, refused};
use crate::synchronizer::Synchronizer;
use dipaco_protocol::Response;
use dipaco_protocol::{OuterStepDone, OuterStepOrder};

/// Longest address of a synchronizer, in bytes.
const ADDRESS_BYTES: usize = 256;

impl CoordinatorRequests {
    /// Takes the outer steps of modules without a synchronizer of their own.
    pub(crate) async fn take_own_outer_steps(
        &self,
        mut synchronizer: Synchronizer,
    ) -> Result<(), CoordinatorError> {
        let own = self.owners().own();
        let mut contributed = self.contributed.subscribe();
        loop {
            // Before the orders are computed, so that a later contribution ends the wait below.
            contributed.borrow_and_update();
            let orders = self.orders(own)?;
            let idle = !orders.iter().any(|order| order.due);
            for order in orders {
                if let Some(done) = synchronizer.carry_out(order).await?
                    && !self.record_step(&done)?
                {
                    self.delete_rejected(&done)?;
                }
            }
            if idle {
                // Fails only when these requests are dropped.
                contributed.changed().await.map_err(|_| CoordinatorError::Stopped)?;
            }
        }
    }

    /// The orders for the synchronizer with this fencing number: outer steps that are due, then steps with new
    /// contributions, which it can merge early. The order of a due step is complete in itself, so a lost early order does
    /// no harm.
    fn orders(&self, fence: u64) -> Result<Vec<OuterStepOrder>, CoordinatorError> {
        let mut ledger = self.ledger();
        let due = ledger.due(self.now());
        // A grace period may have begun.
        self.deadlines.notify_one();
        let mut owners = self.owners();
        let owned = |owners: &ModuleOwners, fragment: FragmentId| owners.fence(fragment.module) == fence;
        let news = ledger.remove_news(|fragment| owned(&owners, fragment));
        let builder = OrderBuilder::new(&self.intake, &self.schedule, &ledger, fence)?;
        let mut orders = Vec::new();
        let mut stepping = BTreeSet::new();
        for step in due {
            stepping.insert(step.fragment);
            if owned(&owners, step.fragment) {
                orders.push(builder.due(&step)?);
                owners.order(self.now(), fence, step);
            }
        }
        for fragment in news.into_iter().filter(|fragment| !stepping.contains(fragment)) {
            orders.extend(builder.early(fragment)?);
        }
        Ok(orders)
    }

    /// Records an outer step. Returns false if it does not count, because another synchronizer has been asked since.
    fn record_step(&self, done: &OuterStepDone) -> Result<bool, CoordinatorError> {
        let &OuterStepDone { fragment, version, fence, .. } = done;
        let FragmentId { module, index } = fragment;
        let paths = {
            let mut ledger = self.ledger();
            let record = ledger.training()?.fragment(module, index);
            // A repeated message about a step that counts.
            if record.is_some_and(|record| (record.version, &record.weights) == (version, &done.weights)) {
                return Ok(true);
            }
            let Some(step) = self.owners().remove_ordered(fragment, version, fence) else { return Ok(false) };
            ledger.record_step(&step, done)?;
            step.contributions.len()
        };
        self.progress.event(Event::ModuleStepped {
            module,
            fragment: index,
            version: version.into(),
            paths: u32::try_from(paths).unwrap_or(u32::MAX),
            outer_gradient_norm: done.norm,
            cosine: done.cosine,
        })?;
        self.changed.notify_waiters();
        self.notify_synchronizers();
        Ok(true)
    }

    /// Deletes the objects of an outer step that does not count. The message may be a late repetition of a step that did
    /// count: objects that paths still need are kept.
    fn delete_rejected(&self, done: &OuterStepDone) -> Result<(), CoordinatorError> {
        let names: Vec<_> = done.objects().map(|object| object.name.clone()).collect();
        self.ledger().delete_unused(names)
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
        self.delete_rejected(done)?;
        let reason =
            format!("outer step {version} of {} has been given to another synchronizer", done.fragment);
        Ok(Response::Lost { reason })
    }

    /// Makes a synchronizer the owner of modules, and answers with its orders as soon as there are any.
    pub(super) async fn give_orders(
        &self,
        peer: &Peer,
        modules: &[ModuleId],
        address: &str,
        wait: Duration,
    ) -> Result<Answer, CoordinatorError> {
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
        let Claimed { fence, new } = match self.owners().claim(&peer.process(), address, modules) {
            Ok(claim) => claim,
            Err(reason) => return Ok(refused(reason)),
        };
        if new {
            tracing::info!(
                synchronizer = peer.worker,
                address,
                modules = modules.len(),
                "a synchronizer takes the outer steps of these modules"
            );
        }
        let deadline = Instant::now() + wait;
        let mut contributed = self.contributed.subscribe();
        loop {
            // Marked as seen before the orders are made, so that a contribution from now on ends the wait below.
            contributed.borrow_and_update();
            // A newer process of this name may have claimed the modules during the wait.
            if self.owners().fence(modules[0]) != fence {
                let reason = "another process of the same name has the modules".to_owned();
                return Ok((Response::Lost { reason }, None));
            }
            let orders = self.orders(fence)?;
            {
                let ledger = self.ledger();
                if ledger.state().finished() {
                    return Ok((Response::Finished, None));
                }
                if !orders.is_empty() || Instant::now() >= deadline {
                    let leases = ledger.state().fences().collect();
                    let next = ledger.state().next_fence();
                    return Ok((Response::Orders { leases, next, orders }, None));
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
        let modules = self.owners().release(process);
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
