//! Orders that are carried out at the same time, within a bound of memory.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Synchronizer, SynchronizerError};
use crate::blocking::joined;
use dipaco_protocol::{OuterStepDone, OuterStepOrder};

/// Number of orders that are carried out at a time. The store answers one while another computes.
pub(super) const ORDERS_AT_ONCE: usize = 4;
/// Values that the fragments of these orders have together: 256 MiB of weights, and as much of each other part of a step.
/// The order of a longer fragment is carried out alone.
const VALUES_AT_ONCE: usize = 64 << 20;

/// Orders of different fragments, of which some are being carried out. Each reads the weights and the momentum of its
/// fragment once at most, and writes the new ones once. A drop ends them.
pub(crate) struct OrdersInFlight {
    synchronizer: Arc<Synchronizer>,
    waiting: VecDeque<OuterStepOrder>,
    /// The running orders, each with its room.
    running: JoinSet<(usize, Result<Option<OuterStepDone>, SynchronizerError>)>,
    /// Values for which there is room.
    free: usize,
}

impl OrdersInFlight {
    /// The orders of one answer of the coordinator: it names no fragment twice.
    pub(crate) fn new(synchronizer: &Arc<Synchronizer>, orders: Vec<OuterStepOrder>) -> Self {
        Self::within(synchronizer, orders, VALUES_AT_ONCE)
    }

    fn within(synchronizer: &Arc<Synchronizer>, orders: Vec<OuterStepOrder>, free: usize) -> Self {
        let synchronizer = synchronizer.clone();
        Self { synchronizer, waiting: orders.into(), running: JoinSet::new(), free }
    }

    /// The next outer step that is taken; `None` when all orders are carried out.
    ///
    /// # Errors
    /// When an order can't be carried out. The orders that are running end then.
    pub(crate) async fn next(&mut self) -> Result<Option<OuterStepDone>, SynchronizerError> {
        loop {
            self.begin();
            let Some(carried_out) = self.running.join_next().await else { return Ok(None) };
            let (room, done) = joined(carried_out)?;
            self.free += room;
            if let Some(done) = done? {
                return Ok(Some(done));
            }
        }
    }

    /// Begins the next orders as far as there is room.
    fn begin(&mut self) {
        while self.running.len() < ORDERS_AT_ONCE
            && let Some(order) = self.waiting.front()
        {
            let room = self.synchronizer.values_at_once(order);
            if room > self.free && !self.running.is_empty() {
                return;
            }
            let Some(order) = self.waiting.pop_front() else { return };
            // An order that is longer than all room runs alone, and takes all of it.
            let room = room.min(self.free);
            self.free -= room;
            let synchronizer = self.synchronizer.clone();
            self.running.spawn(async move { (room, synchronizer.carry_out(order).await) });
        }
    }
}

#[cfg(test)]
mod tests;
