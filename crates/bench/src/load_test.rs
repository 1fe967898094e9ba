//! Load test: many simulated workers, to measure how many workers a coordinator can serve.

use std::sync::Arc;
use std::time::Duration;

use dipaco_net::{Clock, JoinToken};
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use dipaco_path::{FragmentState, KeptParts, Layout, MomentSpecs, PathState};
use dipaco_protocol::{GrantedLease, LeaseReport, LeaseResult, Request, WorkerPlan};
use dipaco_train::client::{
    ClientError, Identity, LONG_CALL_TIMEOUT, LeaseOffer, SHORT_CALL_TIMEOUT, Session, Transfer, expect_done,
};

use crate::BenchError;

/// Workers that connect at the same time, as many as the coordinator shakes hands with at a time.
const CONNECTING: usize = 16;
/// Interval between the heartbeats of a simulated worker.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long the coordinator may keep a second request for a lease open, in milliseconds.
const WAIT_MS: u64 = 5_000;

/// Settings of a load test.
#[derive(Clone, Debug)]
pub struct LoadTestOptions {
    /// Join token from the coordinator.
    pub token: JoinToken,
    /// Number of workers, each with a connection of its own.
    pub workers: u32,
    /// Simulated training time of a lease. The workers' times are spread evenly from a half to one and a half of it.
    pub training: Duration,
    /// Duration of the test.
    pub duration: Duration,
}

/// Result of a load test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadTestReport {
    /// Leases that were granted at once: time of the request since the start of the test, and time until the answer, both
    /// in seconds.
    pub leases: Vec<(f64, f64)>,
    /// Requests that found no lease and had to wait.
    pub waits: u64,
    /// Completed leases. A worker completes the lease that it has when the test is over.
    pub completed: u64,
    /// Lost leases.
    pub lost: u64,
    /// Seconds until all workers were connected.
    pub connecting: f64,
    /// Seconds from the connection of a worker to the end of its last lease, over all workers.
    pub worked: f64,
}

impl LoadTestReport {
    /// Completed leases a second while all of these workers work; 0 before anybody has worked. The last lease of a worker ends
    /// after the test, so the time is that of the workers.
    #[must_use]
    pub fn leases_per_second(&self, workers: u32) -> f64 {
        if self.worked > 0.0 { self.completed as f64 * f64::from(workers) / self.worked } else { 0.0 }
    }
}

/// Runs a load test: simulated workers ask for leases, download the inputs, wait as if they trained, and upload gradients
/// of zeros.
///
/// # Errors
/// When the coordinator can't be reached, refuses a request, or completes its run.
pub async fn load_test(
    options: LoadTestOptions,
    cancel: CancellationToken,
) -> Result<LoadTestReport, BenchError> {
    let begun = Instant::now();
    let slots = Arc::new(Semaphore::new(CONNECTING));
    let mut workers = JoinSet::new();
    for number in 0..options.workers {
        let (options, slots, cancel) = (options.clone(), slots.clone(), cancel.clone());
        workers.spawn(async move {
            let slot = slots.acquire_owned().await.map_err(|_| BenchError::Cancelled)?;
            let duration = options.duration;
            let worker = SimulatedWorker::join(options, number, cancel).await?;
            drop(slot);
            // A worker asks as soon as it is connected. It does not wait for the other workers.
            worker.work(begun, duration).await
        });
    }
    let mut total = LoadTestReport::default();
    while let Some(worked) = workers.join_next().await {
        let report = worked??;
        total.leases.extend(report.leases);
        total.waits += report.waits;
        total.completed += report.completed;
        total.lost += report.lost;
        total.connecting = total.connecting.max(report.connecting);
        total.worked += report.worked;
    }
    total.leases.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(total)
}

/// A worker that trains nothing.
struct SimulatedWorker {
    session: Arc<Session>,
    transfer: Arc<Transfer>,
    training: Duration,
    /// Paths whose states this worker claims to keep, the most recent at the end.
    held: Vec<PathId>,
}

impl SimulatedWorker {
    async fn join(
        options: LoadTestOptions,
        number: u32,
        cancel: CancellationToken,
    ) -> Result<Self, BenchError> {
        let identity = Identity {
            token: options.token,
            source: dipaco_train::client::TokenSource::Given,
            worker: format!("load-test-{number}"),
            instance: number.into(),
            patience: Duration::from_secs(60),
            clock: Clock::system(),
            numerics: "load-test".to_owned(),
            server: None,
        };
        let session = Arc::new(Session::open(identity, cancel).await?);
        // Spread evenly from a half to one and a half, so that the workers do not keep step.
        let factor = f64::from(number) / f64::from(options.workers.max(1)) + 0.5;
        let training = options.training.mul_f64(factor);
        let transfer = Arc::new(Transfer::new(session.clone(), 0));
        Ok(Self { session, transfer, training, held: Vec::new() })
    }

    async fn work(mut self, begun: Instant, duration: Duration) -> Result<LoadTestReport, BenchError> {
        let connecting = begun.elapsed().as_secs_f64();
        let mut report = LoadTestReport { connecting, ..LoadTestReport::default() };
        let mut wait_ms = 0;
        while begun.elapsed() < duration {
            let asked = Instant::now();
            let ask = Request::Lease { held: self.held.clone(), wait_ms };
            match self.session.ask(&ask).await? {
                LeaseOffer::Lease(lease) => {
                    // An answer that waited for a lease says nothing of the coordinator's load.
                    if wait_ms == 0 {
                        let at = (asked - begun).as_secs_f64();
                        report.leases.push((at, asked.elapsed().as_secs_f64()));
                    }
                    wait_ms = 0;
                    match self.carry_out(&lease).await {
                        Ok(()) => report.completed += 1,
                        Err(BenchError::Client(ClientError::LeaseLost { .. })) => report.lost += 1,
                        Err(error) => return Err(error),
                    }
                }
                LeaseOffer::Wait(_) | LeaseOffer::Unfit(_) => {
                    report.waits += 1;
                    wait_ms = WAIT_MS;
                }
                LeaseOffer::Finished => return Err(BenchError::RunComplete),
            }
        }
        report.worked = begun.elapsed().as_secs_f64() - connecting;
        self.session.close().await;
        Ok(report)
    }

    async fn carry_out(&mut self, lease: &GrantedLease) -> Result<(), BenchError> {
        for weights in &lease.weights {
            self.transfer.object(&weights.object).await?;
        }
        self.pretend_to_train(lease).await?;
        self.upload_results(lease).await?;
        let report =
            LeaseReport { loss: Some(1.0), seconds: self.training.as_secs_f64(), ..LeaseReport::default() };
        let complete = Request::Complete { lease: lease.key(), report };
        expect_done(self.session.call(&complete, None, LONG_CALL_TIMEOUT).await?, "complete")?;
        self.held.push(lease.path);
        let excess = self.held.len().saturating_sub(self.session.plan().train.held_paths);
        drop(self.held.drain(..excess));
        Ok(())
    }

    /// Sends heartbeats for the simulated training time.
    async fn pretend_to_train(&self, lease: &GrantedLease) -> Result<(), BenchError> {
        let until = Instant::now() + self.training;
        while Instant::now() < until {
            tokio::time::sleep(HEARTBEAT.min(until - Instant::now())).await;
            let heartbeat = Request::Heartbeat { lease: lease.key(), step: 0, repeated: 0, loss: None };
            expect_done(self.session.call(&heartbeat, None, SHORT_CALL_TIMEOUT).await?, "heartbeat")?;
        }
        Ok(())
    }

    /// Uploads outer gradients of zeros, and a fresh state if the lease asks for one.
    async fn upload_results(&self, lease: &GrantedLease) -> Result<(), BenchError> {
        let (path, key) = (lease.path, lease.key());
        let plan = self.session.plan();
        let layout = Layout::of_plan(plan, &plan.topology()?)?;
        for send in &lease.sends {
            let module = send.fragment.module;
            let values = vec![0.0; layout.fragment(module.level, send.fragment.index)?.values()];
            let encoded = dipaco_codec::encode(&values, plan.outer.compression)
                .map_err(|why| BenchError::OuterGradient { module, path, why })?;
            let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
            self.transfer.upload(key, item, encoded).await?;
        }
        if lease.uploads_state {
            let state = state_after(plan, &layout, lease)?;
            self.transfer
                .upload(key, LeaseResult::State, state.encode(&MomentSpecs::of_plan(plan)?)?)
                .await?;
        }
        Ok(())
    }
}

/// A state of zeros with the tensors and the progress that the coordinator expects after a lease.
fn state_after(plan: &WorkerPlan, layout: &Layout, lease: &GrantedLease) -> Result<PathState, BenchError> {
    let moments = MomentSpecs::of_plan(plan)?;
    let schedule = plan.schedule()?;
    let position = schedule.trained(lease.path, lease.phase_step, lease.to) * plan.train.batch as u64;
    let mut state = PathState { step: lease.to, position, ..PathState::start(&moments) };
    for weights in &lease.weights {
        let (level, index) = (weights.fragment.module.level, weights.fragment.index);
        if KeptParts::of(plan, &schedule, lease.path, lease.to, index).own {
            let values = layout.fragment(level, index)?.values();
            let kept = FragmentState { weights: Some(vec![0.0; values]), ..FragmentState::default() };
            state.kept.insert((level, index), kept);
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_that_end_after_the_test_count_with_their_whole_time() {
        // A test of 55 seconds: each of four workers completes six leases of ten seconds.
        let report = LoadTestReport { completed: 24, worked: 4.0 * 60.0, ..LoadTestReport::default() };
        assert!((report.leases_per_second(4) - 0.4).abs() < 1e-12, "{report:?}");
        assert_eq!(LoadTestReport::default().leases_per_second(4), 0.0);
    }
}
