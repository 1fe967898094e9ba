//! The coordinator's side of outer steps: it decides which are taken and by whom, and takes into the books what came out.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_store::names;
use dipaco_sync::FragmentId;
use dipaco_telemetry::Event;
use dipaco_topology::ModuleId;
use tokio::time::Instant;

use super::CoordinatorRequests;
use crate::TrainError;
use crate::coordinator::orders::OrderBuilder;
use crate::coordinator::owners::ModuleOwners;
use crate::host::{Answer, Peer, refused};
use crate::synchronizer::Synchronizer;
use dipaco_protocol::Response;
use dipaco_protocol::{OuterStepDone, OuterStepOrder};

/// The longest address of a synchronizer, in bytes.
const ADDRESS_BYTES: usize = 256;

impl CoordinatorRequests {
    /// Takes the outer steps of the modules that no other synchronizer has, beginning with what the manifest holds.
    pub(crate) async fn take_own_outer_steps(
        &self,
        mut synchronizer: Synchronizer,
    ) -> Result<(), TrainError> {
        let own = self.owners().own();
        let mut contributed = self.contributed.subscribe();
        loop {
            contributed.borrow_and_update();
            let orders = self.orders(own)?;
            let idle = !orders.iter().any(|order| order.due);
            for order in orders {
                if let Some(done) = synchronizer.carry_out(order).await?
                    && !self.stepped(&done)?
                {
                    self.discard(&done)?;
                }
            }
            if idle {
                // It ends with the desk.
                contributed.changed().await.map_err(|_| TrainError::Cancelled)?;
            }
        }
    }

    /// What the synchronizer of this number has to do: outer steps that are due, and then those that it can prepare because
    /// something has been contributed since it asked last. An order for a step that is due lacks nothing, so it does no
    /// harm when the one before it gets lost.
    fn orders(&self, fence: u64) -> Result<Vec<OuterStepOrder>, TrainError> {
        let mut ledger = self.ledger();
        let due = ledger.due(self.now());
        // A grace period may have begun.
        self.deadlines.notify_one();
        let mut owners = self.owners();
        let mine = |owners: &ModuleOwners, fragment: FragmentId| owners.fence(fragment.module) == fence;
        let news = ledger.take_news(|fragment| mine(&owners, fragment));
        let writing = OrderBuilder::new(&self.intake, &self.schedule, &ledger, fence)?;
        let mut orders = Vec::new();
        let mut stepping = BTreeSet::new();
        for step in due {
            stepping.insert(step.fragment);
            if mine(&owners, step.fragment) {
                orders.push(writing.due(&step)?);
                owners.give(fence, step);
            }
        }
        for fragment in news.into_iter().filter(|fragment| !stepping.contains(fragment)) {
            orders.extend(writing.early(fragment)?);
        }
        Ok(orders)
    }

    /// Takes an outer step into the books; returns whether it counts: not when another synchronizer has been asked since.
    fn stepped(&self, done: &OuterStepDone) -> Result<bool, TrainError> {
        let &OuterStepDone { fragment, version, fence, .. } = done;
        let FragmentId { module, index } = fragment;
        let paths = {
            let mut ledger = self.ledger();
            let record = ledger.training()?.fragment(module, index);
            if record.is_some_and(|record| (record.version, &record.weights) == (version, &done.weights)) {
                return Ok(true);
            }
            let Some(step) = self.owners().take_given(fragment, version, fence) else { return Ok(false) };
            ledger.stepped(&step, done)?;
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
        self.look_at_contributions();
        Ok(true)
    }

    /// Deletes what an outer step has made that does not count. One that counted before, and is said to have been taken
    /// again when others have followed it, keeps what paths still need of it.
    fn discard(&self, done: &OuterStepDone) -> Result<(), TrainError> {
        let names: Vec<_> = done.objects().map(|object| object.name.clone()).collect();
        self.ledger().delete_unused(names)
    }

    /// [`stepped`](Self::stepped) for another process.
    pub(super) async fn stepped_elsewhere(&self, done: &OuterStepDone) -> Result<Response, TrainError> {
        let &OuterStepDone { fragment: FragmentId { module, index }, version, fence, .. } = done;
        let named = done.weights.name == names::weights(module, index, version, fence)
            && done.momentum.name == names::momentum(module, index, version, fence)
            && done.change.iter().all(|change| change.name == names::change(module, index, version, fence));
        if !named {
            let reason =
                format!("these are not the names of what outer step {version} of {} makes", done.fragment);
            return Ok(Response::Refused { reason });
        }
        let counts = self.stepped(done)?;
        self.on_disk().await?;
        if counts {
            return Ok(Response::Done);
        }
        self.discard(done)?;
        let reason =
            format!("outer step {version} of {} has been given to another synchronizer", done.fragment);
        Ok(Response::Lost { reason })
    }

    /// Gives modules to a synchronizer, and answers with what it has to do, when there is something new.
    pub(super) async fn give_orders(
        &self,
        peer: &Peer,
        modules: &[ModuleId],
        address: &str,
        wait: Duration,
    ) -> Result<Answer, TrainError> {
        let known: BTreeSet<_> = self.intake.topology.module_ids().collect();
        if let Some(module) = modules.iter().find(|module| !known.contains(module)) {
            return Ok(refused(format!("this run has no module {module}: give other --modules")));
        }
        if modules.is_empty() || address.is_empty() || address.len() > ADDRESS_BYTES {
            return Ok(refused("a synchronizer has modules, and an address by which workers reach it"));
        }
        let (fence, new) = match self.owners().claim(&peer.process(), address, modules) {
            Ok(claim) => claim,
            Err(reason) => return Ok(refused(reason)),
        };
        if new {
            tracing::info!(
                synchronizer = peer.worker,
                address,
                modules = modules.len(),
                "takes the outer steps of these modules"
            );
        }
        let deadline = Instant::now() + wait;
        let mut contributed = self.contributed.subscribe();
        loop {
            contributed.borrow_and_update();
            if self.owners().fence(modules[0]) != fence {
                let reason = "another process of the same name has the modules".to_owned();
                return Ok((Response::Lost { reason }, None));
            }
            let orders = self.orders(fence)?;
            {
                let ledger = self.ledger();
                if ledger.rounds().finished() {
                    return Ok((Response::Finished, None));
                }
                if !orders.is_empty() || Instant::now() >= deadline {
                    let leases = ledger.rounds().fences().collect();
                    let next = ledger.rounds().next_fence();
                    return Ok((Response::Orders { leases, next, orders }, None));
                }
            }
            tokio::select! {
                _ = contributed.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Takes back the modules of a synchronizer that has left: their outer steps are the coordinator's own again.
    pub(super) fn take_modules_back(&self, peer: &Peer, reason: &str) {
        let modules = self.owners().release(&peer.process());
        if modules > 0 {
            let synchronizer = &peer.worker;
            tracing::warn!(synchronizer, modules, reason, "left; the coordinator takes its outer steps");
            self.look_at_contributions();
        }
    }
}
