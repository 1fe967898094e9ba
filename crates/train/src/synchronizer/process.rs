//! A synchronizer in a process of its own: takes what workers bring for its modules, and takes their outer steps.
//!
//! It decides nothing: the coordinator says which outer steps are due, and whether what a worker brings counts. It shares
//! the coordinator's store, so everything that it has done is on the disk, and what it was about to do is done by the
//! coordinator when it is gone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dipaco_config::OuterConfig;
use dipaco_net::{JoinToken, Server};
use dipaco_store::{ObjectRef, RunStore, names};
use dipaco_sync::{Fence, Guard};
use dipaco_topology::{ModuleId, PathId};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::client::{Identity, LONG_CALL_TIMEOUT, SHORT_CALL_TIMEOUT, Session, instance};
use crate::host::Revocations;
use crate::host::{Answer, Peer, RequestHandler, refused, serve_peers};
use crate::host::{PieceOutcome, Uploads};
use crate::host::{ResultIntake, piece};
use crate::synchronizer::Synchronizer;
use dipaco_protocol::{ContentDigest, FetchSource, LeaseResult, RUN_COMPLETE, Request, Response};

/// How long the coordinator keeps a question for outer steps open, in milliseconds.
const WAIT_MS: u64 = 15_000;

/// How long a worker waits for what the coordinator says to its synchronizer, before it asks by itself.
const WORKER_WAITS: Duration = Duration::from_secs(30);

/// How a synchronizer is set up.
#[derive(Clone, Debug)]
pub struct SynchronizerOptions {
    /// For the coordinator, with the role [`SYNCHRONIZER`](crate::SYNCHRONIZER).
    pub token: JoinToken,
    /// The synchronizer's name, unique in the run.
    pub name: String,
    /// Its modules.
    pub modules: Vec<ModuleId>,
    /// `host:port` by which workers reach it.
    pub address: String,
    /// The run's store, the same that the coordinator has.
    pub store: RunStore,
    /// A folder on whose disk results are collected.
    pub collect: PathBuf,
    /// Tokens that may not be used any more.
    pub revocations: Revocations,
    /// How long to try when the coordinator can't be reached.
    pub patience: Duration,
}

/// What a synchronizer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SynchronizerSummary {
    /// Outer steps of fragments that count.
    pub outer_steps: u64,
    /// Outer steps that another process took in its place.
    pub lost: u64,
    /// Bytes sent to workers in UDP datagrams.
    pub bytes_sent: u64,
    /// Bytes received from workers in UDP datagrams.
    pub bytes_received: u64,
}

/// Takes outer steps until the run is complete or `cancel` is triggered.
///
/// # Errors
/// When the coordinator can't be reached for longer than the options allow or refuses the modules, and when the store can't
/// be read or written.
pub async fn synchronize(
    options: SynchronizerOptions,
    server: Server,
    cancel: CancellationToken,
) -> Result<SynchronizerSummary, TrainError> {
    let SynchronizerOptions { token, name, modules, address, store, collect, revocations, patience } =
        options;
    let run = token.run_id.clone();
    let identity = Identity { token, worker: name, instance: instance(), patience };
    let session = Arc::new(Session::open(identity, cancel).await?);
    let plan = session.plan().clone();
    let topology = plan.topology()?;
    let layout = dipaco_path::Layout::of_plan(&plan, &topology)?;
    let outer: OuterConfig = plan.outer.clone();
    let synchronizer = Synchronizer::new(store.clone(), layout.clone(), outer.clone());
    let intake = ResultIntake {
        store,
        plan,
        topology,
        layout,
        uploads: Uploads::new(collect),
        guard: Mutex::new(Guard::new(outer.guard)),
    };
    let process = Arc::new(Process { run, intake: Arc::new(intake), session, modules, address, revocations });
    // Workers are served to the end of this function.
    let never = CancellationToken::new();
    let mut summary = SynchronizerSummary::default();
    let result = tokio::select! {
        result = serve_peers(&server, &process, &never) => result,
        result = process.take_outer_steps(synchronizer, &mut summary) => result,
    };
    let traffic = server.traffic();
    (summary.bytes_sent, summary.bytes_received) = (traffic.udp_sent, traffic.udp_received);
    let complete = matches!(result, Ok(()) | Err(TrainError::Complete));
    server.close(if complete { RUN_COMPLETE } else { "the synchronizer stops" }).await;
    process.session.close().await;
    match result {
        Ok(()) | Err(TrainError::Cancelled | TrainError::Complete) => Ok(summary),
        Err(error) => Err(error),
    }
}

struct Process {
    run: String,
    intake: Arc<ResultIntake>,
    session: Arc<Session>,
    modules: Vec<ModuleId>,
    address: String,
    revocations: Revocations,
}

impl Process {
    /// Does what the coordinator asks for, until the run is complete.
    async fn take_outer_steps(
        &self,
        mut synchronizer: Synchronizer,
        summary: &mut SynchronizerSummary,
    ) -> Result<(), TrainError> {
        loop {
            let (modules, address) = (self.modules.clone(), self.address.clone());
            let ask = Request::Orders { modules, address, wait_ms: WAIT_MS };
            let orders = match self.session.call(&ask, None, SHORT_CALL_TIMEOUT).await? {
                Response::Orders { leases, next, orders } => {
                    // A lease that was given out after the answer may have brought something already.
                    let over = |fence| fence < next && !leases.contains(&fence);
                    self.intake.uploads.retain(|_, fence| !over(fence));
                    orders
                }
                Response::Finished => return Ok(()),
                // Lost: another process under this name has the modules.
                Response::Lost { reason } | Response::Refused { reason } => {
                    return Err(TrainError::Refused { reason });
                }
                _ => return Err(TrainError::UnexpectedAnswer { request: "question for outer steps" }),
            };
            for order in orders {
                let Some(done) = synchronizer.carry_out(order).await? else { continue };
                let fragment = done.fragment;
                match self.session.call(&Request::Stepped(Box::new(done)), None, LONG_CALL_TIMEOUT).await? {
                    Response::Done => summary.outer_steps += 1,
                    Response::Lost { reason } => {
                        tracing::warn!(%fragment, reason, "an outer step does not count");
                        summary.lost += 1;
                    }
                    Response::Refused { reason } => return Err(TrainError::Refused { reason }),
                    _ => return Err(TrainError::UnexpectedAnswer { request: "stepped" }),
                }
            }
        }
    }

    /// Asks the coordinator for a worker.
    async fn ask(&self, request: &Request) -> Result<Response, TrainError> {
        match tokio::time::timeout(WORKER_WAITS, self.session.call(request, None, LONG_CALL_TIMEOUT)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Ok(elsewhere(&"the synchronizer can't reach the coordinator").0),
        }
    }

    /// Sends a piece of weights of its modules, or of changes of them.
    async fn object_piece(&self, object: &ObjectRef, offset: u64) -> Answer {
        let mine = |module: &ModuleId| {
            [names::MODULES, names::CHANGES]
                .iter()
                .any(|kind| object.name.starts_with(&format!("{kind}/{module}/")))
        };
        if !self.modules.iter().any(mine) {
            return refused(format!("{} is not of the modules of this synchronizer", object.name));
        }
        match piece(&self.intake.store, object, offset).await {
            Err(response) => (response, None),
            Ok(Ok(answer)) => answer,
            // Superseded and deleted, or damaged: the coordinator knows.
            Ok(Err(error)) => elsewhere(&error),
        }
    }

    /// Takes a piece of an outer gradient.
    async fn take(
        &self,
        (path, fence): (PathId, Fence),
        item: LeaseResult,
        whole: ContentDigest,
        offset: u64,
        piece: Bytes,
    ) -> Result<Response, TrainError> {
        let mine = matches!(item, LeaseResult::OuterGradient { fragment, .. } if self.modules.contains(&fragment.module));
        if !mine {
            let reason = format!("{} is not of the modules of this synchronizer", item.name());
            return Ok(Response::Refused { reason });
        }
        if let Some(refused) = self.intake.objection(path, item, &whole) {
            return Ok(refused);
        }
        let uploads = &self.intake.uploads;
        if !uploads.knows(path, fence, item) {
            let expected = Request::Expected { path, fence, item };
            match self.ask(&expected).await? {
                Response::Done => {}
                answer => return Ok(answer),
            }
        }
        match uploads.take((path, fence), item, whole.clone(), offset, piece).await? {
            PieceOutcome::Answer(answer) => Ok(answer),
            PieceOutcome::Complete(mut complete) => {
                // The name of an outer gradient does not tell its lease's end.
                let name = item.object_name(path, fence, 0);
                let answer = match self.intake.keep(name, (path, item), whole, &complete).await? {
                    Ok(object) => {
                        let stored = Request::Stored { path, fence, item, object };
                        self.ask(&stored).await?
                    }
                    Err(refused) => refused,
                };
                complete.answer(answer.clone());
                Ok(answer)
            }
        }
    }
}

/// What only the coordinator can answer.
fn elsewhere(why: &dyn std::fmt::Display) -> Answer {
    (Response::Elsewhere { reason: why.to_string() }, None)
}

impl RequestHandler for Process {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    async fn welcome(&self, _: &Peer, _: bool) -> Result<Answer, TrainError> {
        self.intake.welcome(self.run.clone())
    }

    fn payload_limit(&self, request: &Request) -> u64 {
        self.intake.payload_limit(request)
    }

    async fn answer(
        self: &Arc<Self>,
        _: &Peer,
        request: Request,
        payload: Option<Bytes>,
    ) -> Result<Answer, TrainError> {
        match request {
            Request::Fetch { source: FetchSource::Object(object), offset } => {
                Ok(self.object_piece(&object, offset).await)
            }
            Request::Submit { path, fence, item, whole, offset } => {
                let process = self.clone();
                let piece = payload.unwrap_or_default();
                // To its end, even when the worker is gone: what has been stored is to be known.
                let taking =
                    tokio::spawn(
                        async move { process.take((path, fence), item, whole, offset, piece).await },
                    );
                let answer = taking.await.map_err(|source| TrainError::Thread { source })??;
                Ok((answer, None))
            }
            _ => Ok(elsewhere(&"this is a synchronizer: the coordinator answers that")),
        }
    }

    async fn expel(&self, _: &Peer) -> Result<(), TrainError> {
        Ok(())
    }

    async fn left(&self, _: &Peer, _: String) -> Result<(), TrainError> {
        Ok(())
    }
}
