//! The present state of a synchronizer for those who watch it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dipaco_net::{Traffic, TrafficSource};
use dipaco_telemetry::{LiveSynchronizer, LiveSynchronizerSource};

use crate::synchronizer::SynchronizerSummary;
use crate::synchronizer::process::SynchronizerProcess;

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

    pub(super) fn summary(&self, traffic: Traffic) -> SynchronizerSummary {
        SynchronizerSummary {
            outer_steps: self.outer_steps.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            bytes_sent: traffic.udp_sent,
            bytes_received: traffic.udp_received,
        }
    }
}

/// The source of a running synchronizer. It keeps nothing of the synchronizer alive.
pub(super) fn source(process: &Arc<SynchronizerProcess>, traffic: TrafficSource) -> LiveSynchronizerSource {
    let process = Arc::downgrade(process);
    Arc::new(move || {
        let process = process.upgrade()?;
        let SynchronizerSummary { outer_steps, lost, bytes_sent, bytes_received } =
            process.tally.summary(traffic.read());
        let answered = *process.tally.answered.lock().unwrap_or_else(PoisonError::into_inner);
        Some(LiveSynchronizer {
            run: process.run.clone(),
            address: process.address.clone(),
            modules: process.modules.clone(),
            outer_steps,
            outer_steps_lost: lost,
            coordinator_silent_seconds: answered.elapsed().as_secs_f64(),
            bytes_sent,
            bytes_received,
            seconds: process.tally.begun.elapsed().as_secs_f64(),
        })
    })
}
