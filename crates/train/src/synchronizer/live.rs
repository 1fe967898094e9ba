//! The present state of a synchronizer for those who watch it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use dipaco_net::Traffic;
use dipaco_telemetry::{LiveSynchronizer, LiveSynchronizerSource};
use dipaco_topology::ModuleId;

use crate::synchronizer::SynchronizerSummary;

/// Takes the source of the present state of a synchronizer that has its modules.
pub type ObserveSynchronizer = Box<dyn FnOnce(LiveSynchronizerSource) + Send>;

/// Counts of a synchronizer.
pub(super) struct Tally {
    begun: Instant,
    answered: Mutex<Instant>,
    outer_steps: AtomicU64,
    lost: AtomicU64,
}

impl Tally {
    pub(super) fn begin() -> Self {
        let begun = Instant::now();
        Self { begun, answered: Mutex::new(begun), outer_steps: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// The coordinator has answered.
    pub(super) fn answered(&self) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// The coordinator has accepted an outer step.
    pub(super) fn stepped(&self) {
        self.outer_steps.fetch_add(1, Ordering::Relaxed);
    }

    /// An outer step does not count.
    pub(super) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// The present state of a synchronizer of a run.
    pub(super) fn live(
        &self,
        run: String,
        address: String,
        modules: Vec<ModuleId>,
        traffic: Traffic,
    ) -> LiveSynchronizer {
        let SynchronizerSummary { outer_steps, lost, bytes_sent, bytes_received } = self.summary(traffic);
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        LiveSynchronizer {
            run,
            address,
            modules,
            outer_steps,
            outer_steps_lost: lost,
            coordinator_silent_seconds: answered.elapsed().as_secs_f64(),
            bytes_sent,
            bytes_received,
            seconds: self.begun.elapsed().as_secs_f64(),
        }
    }

    pub(super) fn summary(&self, traffic: Traffic) -> SynchronizerSummary {
        SynchronizerSummary {
            outer_steps: self.outer_steps.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            bytes_sent: traffic.udp_sent,
            bytes_received: traffic.udp_received,
        }
    }
}
