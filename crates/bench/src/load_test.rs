//! Many workers that train nothing, to measure how many of them a coordinator leads.

use std::sync::Arc;
use std::time::Duration;

use dipaco_net::JoinToken;
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use dipaco_path::{Layout, PathState};
use dipaco_protocol::{GrantedLease, LeaseReport, LeaseResult, Request};
use dipaco_train::TrainError;
use dipaco_train::client::{Identity, LONG_CALL_TIMEOUT, LeaseOffer, SHORT_CALL_TIMEOUT, Session};
use dipaco_train::client::{LeaseKey, Transfer, answered};

/// Settings of a load test.
#[derive(Clone, Debug)]
pub struct LoadTestOptions {
    /// What the coordinator gave out.
    pub token: JoinToken,
    /// How many there are, each with a connection of its own.
    pub workers: u32,
    /// How long each pretends to train a lease; they differ from it by up to a half.
    pub training: Duration,
    /// When they stop.
    pub duration: Duration,
}

/// Result of a load test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadTestReport {
    /// When each lease was asked for that was there at once, in seconds since the first began to connect, and how long the
    /// answer took, in seconds.
    pub leases: Vec<(f64, f64)>,
    /// Questions that had to wait for work.
    pub waits: u64,
    /// Leases that are complete.
    pub completed: u64,
    /// Leases that were lost.
    pub lost: u64,
    /// Seconds until all were connected.
    pub connecting: f64,
}

/// Runs a load test: simulated workers ask for leases, fetch the inputs, wait as if they trained, and upload gradients of zeros.
///
/// # Errors
/// When the coordinator can't be reached, refuses something, or completes its run.
pub async fn load_test(
    options: LoadTestOptions,
    cancel: CancellationToken,
) -> Result<LoadTestReport, TrainError> {
    let begun = Instant::now();
    // The coordinator has so many handshakes in progress at a time, and more.
    let places = Arc::new(Semaphore::new(16));
    let mut working = JoinSet::new();
    for number in 0..options.workers {
        let (options, places, cancel) = (options.clone(), places.clone(), cancel.clone());
        working.spawn(async move {
            let place = places.acquire_owned().await.map_err(|_| TrainError::Cancelled)?;
            let duration = options.duration;
            let member = SimulatedWorker::join(options, number, cancel).await?;
            drop(place);
            // Workers do not wait for each other before they ask.
            member.work(begun, duration).await
        });
    }
    let mut seen = LoadTestReport::default();
    while let Some(worked) = working.join_next().await {
        let report = worked.map_err(|source| TrainError::Thread { source })??;
        seen.leases.extend(report.leases);
        seen.waits += report.waits;
        seen.completed += report.completed;
        seen.lost += report.lost;
        seen.connecting = seen.connecting.max(report.connecting);
    }
    seen.leases.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(seen)
}

/// A worker that trains nothing.
struct SimulatedWorker {
    session: Arc<Session>,
    transfer: Arc<Transfer>,
    training: Duration,
    held: Vec<PathId>,
}

impl SimulatedWorker {
    async fn join(
        options: LoadTestOptions,
        number: u32,
        cancel: CancellationToken,
    ) -> Result<Self, TrainError> {
        let identity = Identity {
            token: options.token,
            worker: format!("load-test-{number}"),
            instance: number.into(),
            patience: Duration::from_secs(60),
        };
        let session = Arc::new(Session::open(identity, cancel).await?);
        // From a half to one and a half, spread evenly: they do not keep step.
        let share = f64::from(number) / f64::from(options.workers.max(1)) + 0.5;
        let training = options.training.mul_f64(share);
        Ok(Self {
            transfer: Arc::new(Transfer::new(session.clone(), 0)),
            session,
            training,
            held: Vec::new(),
        })
    }

    async fn work(mut self, begun: Instant, duration: Duration) -> Result<LoadTestReport, TrainError> {
        let mut seen =
            LoadTestReport { connecting: begun.elapsed().as_secs_f64(), ..LoadTestReport::default() };
        let mut patience = 0;
        while begun.elapsed() < duration {
            let asked = Instant::now();
            let ask = Request::Lease { held: self.held.clone(), wait_ms: patience };
            match self.session.ask(&ask).await? {
                LeaseOffer::Lease(work) => {
                    if patience == 0 {
                        let at = (asked - begun).as_secs_f64();
                        seen.leases.push((at, asked.elapsed().as_secs_f64()));
                    }
                    patience = 0;
                    match self.carry_out(&work).await {
                        Ok(()) => seen.completed += 1,
                        Err(TrainError::LeaseLost { .. }) => seen.lost += 1,
                        Err(error) => return Err(error),
                    }
                }
                LeaseOffer::Wait(_) => {
                    seen.waits += 1;
                    patience = 5_000;
                }
                LeaseOffer::Finished => return Err(TrainError::Complete),
            }
        }
        self.session.close().await;
        Ok(seen)
    }

    async fn carry_out(&mut self, work: &GrantedLease) -> Result<(), TrainError> {
        let GrantedLease { path, fence, .. } = *work;
        for weights in &work.weights {
            self.transfer.object(&weights.object).await?;
        }
        let until = Instant::now() + self.training;
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_secs(1).min(until - Instant::now())).await;
            let beat = Request::Heartbeat { path, fence, step: 0, loss: None };
            answered(self.session.call(&beat, None, SHORT_CALL_TIMEOUT).await?, "heartbeat")?;
        }
        let plan = self.session.plan();
        let layout = Layout::of_plan(plan, &plan.topology()?)?;
        let under = LeaseKey { path, fence };
        for send in &work.sends {
            let module = send.fragment.module;
            let values = vec![0.0; layout.fragment(module.level, send.fragment.index)?.values()];
            let encoded = dipaco_codec::encode(&values, plan.outer.compression)
                .map_err(|why| TrainError::OuterGradient { module, path, why })?;
            let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
            self.transfer.upload(under, item, encoded.into()).await?;
        }
        if work.uploads_state {
            let parameters = dipaco_model::parameters(&dipaco_model::path_specs(&plan.model));
            let state = PathState { step: work.to, ..PathState::start(parameters) };
            self.transfer.upload(under, LeaseResult::State, state.encode(&plan.model)?.into()).await?;
        }
        let report =
            LeaseReport { loss: Some(1.0), seconds: self.training.as_secs_f64(), ..LeaseReport::default() };
        let complete = Request::Complete { path, fence, report };
        answered(self.session.call(&complete, None, LONG_CALL_TIMEOUT).await?, "complete")?;
        self.held.push(path);
        let excess = self.held.len().saturating_sub(plan.train.held_paths);
        drop(self.held.drain(..excess));
        Ok(())
    }
}
