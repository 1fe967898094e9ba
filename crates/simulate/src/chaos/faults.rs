//! Faults of processes and links in a simulated run.

use std::time::Duration;

use rand::Rng;

use super::events::{ChaosEvent, Fault};
use super::world::ChaosWorld;

/// Time from the death of a process to the end of its connection: often after its successor has come.
const NOTICED: Duration = Duration::from_millis(800);

impl ChaosWorld<'_> {
    /// Schedules the next fault of a kind.
    pub(super) fn next_fault(&mut self, fault: Fault) {
        let faults = &self.case.faults;
        let mean = match fault {
            Fault::WorkerDies => faults.worker_crash,
            Fault::WorkerPauses => faults.worker_pause,
            Fault::Partition => faults.partition,
            Fault::CoordinatorDies => faults.coordinator_crash,
            Fault::SynchronizerDies | Fault::SynchronizerHangs => {
                let Some(synchronizer) = &self.case.synchronizer else { return };
                if matches!(fault, Fault::SynchronizerDies) { synchronizer.dies } else { synchronizer.hangs }
            }
        };
        let pause = self.between(1, mean * 2);
        if self.now + pause < self.case.faults.until {
            self.after(pause, ChaosEvent::Fault(fault));
        }
    }

    /// A fault happens.
    pub(super) fn inject(&mut self, fault: Fault) -> Result<(), String> {
        self.summary.faults += 1;
        let worker = self.random.random_range(0..self.workers.len());
        match fault {
            Fault::WorkerDies => {
                if self.workers[worker].alive {
                    self.workers[worker].alive = false;
                    let process = self.process(worker, self.workers[worker].incarnation);
                    self.after(NOTICED, ChaosEvent::ConnectionEnds(process));
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, ChaosEvent::WorkerStarts(worker));
                }
            }
            Fault::WorkerPauses => {
                self.workers[worker].paused_until = self.now + self.between(1_000, Duration::from_secs(5));
            }
            Fault::Partition => {
                self.workers[worker].cut_off_until = self.now + self.between(1_000, Duration::from_secs(5));
            }
            Fault::CoordinatorDies => {
                if let Some(mut coordinator) = self.coordinator.take() {
                    // The next part of a write may have reached the disk or not. In both cases no worker has an answer.
                    if self.random.random_bool(0.5) {
                        self.write_next(&mut coordinator)?;
                    }
                    self.writing.clear();
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, ChaosEvent::CoordinatorStarts);
                }
            }
            Fault::SynchronizerDies => {
                if self.synchronizer.alive {
                    self.synchronizer.alive = false;
                    let process = self.synchronizer_process();
                    self.after(NOTICED, ChaosEvent::ConnectionEnds(process));
                    let pause = self.between(1_000, Duration::from_millis(1_500));
                    self.after(pause, ChaosEvent::SynchronizerStarts);
                }
            }
            Fault::SynchronizerHangs => {
                self.synchronizer.hangs_until = self.now + self.between(1_000, Duration::from_secs(4));
            }
        }
        self.next_fault(fault);
        Ok(())
    }
}
