//! A synchronizer in a process of its own: receives the outer gradients of its modules and takes their outer steps.
//!
//! It decides nothing. The coordinator decides which outer steps are due and whether a result counts. Both share the
//! run's store, so every finished outer step is on the disk, and the coordinator takes the unfinished ones when the
//! synchronizer is gone.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dipaco_ledger::StoredResult;
use dipaco_net::{Clock, JoinToken, Server, TrafficSource};
use dipaco_store::{ObjectRef, RunStore, names};
use dipaco_telemetry::LiveSynchronizerSource;
use dipaco_topology::ModuleId;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::client::{
    Identity, LONG_CALL_TIMEOUT, NextIdentity, SHORT_CALL_TIMEOUT, Session, TokenSource, instance,
};
use crate::host::{
    Admission, AdmittedUpload, Answer, LinkIssuer, Peer, Reception, Registration, RequestHandler,
    ResultIntake, ResultReceiver, Revocations, Upload, UploadedPiece, Uploads, VerifiedGradients, read_piece,
    serve_peers,
};
use crate::synchronizer::live::{ObserveSynchronizer, Tally};
use crate::synchronizer::{OrdersInFlight, Synchronizer, SynchronizerError};
use dipaco_path::{Layout, TrainDevice, numerics};
use dipaco_protocol::{ContentDigest, FetchSource, MOST_LEASES, RUN_COMPLETE, Request, Response};

/// Time for which the coordinator keeps a request for outer steps open, in milliseconds.
const WAIT_MS: u64 = 15_000;

/// Time for which a worker's request waits for the coordinator. After it the worker asks the coordinator itself.
const WORKER_WAITS: Duration = Duration::from_secs(30);

/// Settings of a synchronizer.
pub struct SynchronizerOptions {
    /// Join token for the coordinator, with the role [`SYNCHRONIZER`](dipaco_protocol::SYNCHRONIZER).
    pub token: JoinToken,
    /// Where the token is read again when the coordinator can't be reached.
    pub source: TokenSource,
    /// Name of the synchronizer, unique in the run.
    pub name: String,
    /// Modules whose outer steps the synchronizer takes.
    pub modules: Vec<ModuleId>,
    /// `host:port` at which workers reach the synchronizer.
    pub address: String,
    /// The run's store, shared with the coordinator. Give it [`store_patience`](crate::store_patience), too.
    pub store: RunStore,
    /// True if workers may get links to the store.
    pub links: bool,
    /// Folder for files without names: of large merges, and of incomplete results if the store is no directory.
    pub collect: PathBuf,
    /// Time for which connecting is tried again when the coordinator can't be reached.
    pub patience: Duration,
    /// Takes the next identity of the synchronizer's server when the coordinator has renewed it.
    pub next_identity: NextIdentity,
    /// Gets the source of the present state once the coordinator has given the modules.
    pub observe: Option<ObserveSynchronizer>,
}

/// Counters of a synchronizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SynchronizerSummary {
    /// Outer steps of fragments that the coordinator accepted.
    pub outer_steps: u64,
    /// Outer steps that did not count, because another process had been asked for them.
    pub lost: u64,
    /// Bytes sent to workers in UDP datagrams.
    pub bytes_sent: u64,
    /// Bytes received from workers in UDP datagrams.
    pub bytes_received: u64,
}

/// Takes outer steps until the run is complete or `cancel` is triggered.
///
/// # Errors
/// When the coordinator can't be reached for longer than the options allow or refuses the modules, and when the store
/// can't be read or written.
pub async fn synchronize(
    options: SynchronizerOptions,
    server: Server,
    cancel: CancellationToken,
) -> Result<SynchronizerSummary, SynchronizerError> {
    let SynchronizerOptions {
        token,
        source,
        name,
        modules,
        address,
        store,
        links,
        collect,
        patience,
        next_identity,
        observe,
    } = options;
    let run = token.run_id.clone();
    let clock = Clock::system();
    let numerics = numerics(&TrainDevice::Cpu)?;
    let identity = Identity {
        token,
        source,
        worker: name,
        instance: instance(),
        patience,
        clock,
        numerics,
        server: Some(next_identity),
    };
    let mut session = Session::open(identity, cancel).await?;
    session.renew_by(server.renew_at());
    let session = Arc::new(session);
    let plan = session.plan().clone();
    let topology = plan.topology()?;
    let layout = Layout::of_plan(&plan, &topology)?;
    let gradients = VerifiedGradients::default();
    let synchronizer =
        Synchronizer::new(store.clone(), layout.clone(), &plan, gradients.clone(), collect.clone());
    let links = LinkIssuer::new(&store, links);
    let (uploads, taken) = (Uploads::new(store.clone(), collect), Some(modules.clone()));
    let intake = ResultIntake { store, plan, topology, layout, uploads, gradients, modules: taken };
    let process = Arc::new(SynchronizerProcess {
        run,
        intake: Arc::new(intake),
        links,
        session,
        modules,
        address,
        revocations: Revocations::told(),
        reception: Arc::default(),
        tally: Tally::begin(),
    });
    let observe = observe.map(|observe| (observe, live_source(&process, server.traffic_source())));
    // No farewell: workers are served until this function ends, because the coordinator answers them afterwards.
    let never = CancellationToken::new();
    let result = tokio::select! {
        result = serve_peers(&server, &process, &never) => result,
        result = process.take_outer_steps(synchronizer, observe) => result,
    };
    let summary = process.tally.summary(server.traffic());
    let complete = result.as_ref().err().is_none_or(SynchronizerError::is_complete);
    server.close(if complete { RUN_COMPLETE } else { "the synchronizer stops" }).await;
    process.session.close().await;
    match result {
        Err(error) if !complete && !error.is_cancelled() => Err(error),
        _ => Ok(summary),
    }
}

/// The source of the present state of a running synchronizer. It keeps nothing of the synchronizer alive.
fn live_source(process: &Arc<SynchronizerProcess>, traffic: TrafficSource) -> LiveSynchronizerSource {
    let process = Arc::downgrade(process);
    Arc::new(move || {
        let process = process.upgrade()?;
        let (run, address, modules) = (process.run.clone(), process.address.clone(), process.modules.clone());
        Some(process.tally.live(run, address, modules, traffic.read()))
    })
}

/// Answers workers, and takes the outer steps that the coordinator orders.
struct SynchronizerProcess {
    run: String,
    intake: Arc<ResultIntake>,
    links: LinkIssuer,
    session: Arc<Session>,
    modules: Vec<ModuleId>,
    address: String,
    /// Tokens that are no longer valid, as the coordinator has told them last.
    revocations: Revocations,
    reception: Arc<Reception>,
    tally: Tally,
}

impl SynchronizerProcess {
    /// Takes the outer steps that the coordinator orders, until the run is complete.
    async fn take_outer_steps(
        &self,
        synchronizer: Synchronizer,
        mut observe: Option<(ObserveSynchronizer, LiveSynchronizerSource)>,
    ) -> Result<(), SynchronizerError> {
        let synchronizer = Arc::new(synchronizer);
        // The first answer says that the coordinator knows this process. Nobody waits for an order to hear that.
        let mut wait_ms = 0;
        loop {
            let (modules, address) = (self.modules.clone(), self.address.clone());
            let revoked = self.revocations.names()?.len() as u64;
            let uploads = self.intake.uploads.oldest_leases(MOST_LEASES);
            let request = Request::Orders { modules, address, revoked, uploads, wait_ms };
            wait_ms = WAIT_MS;
            let orders = match self.session.call(&request, None, SHORT_CALL_TIMEOUT).await? {
                Response::Orders { over, orders, revoked } => {
                    self.revocations.tell(revoked);
                    self.intake.uploads.retain(|claim| !over.contains(&claim.key.fence));
                    self.tally.answered();
                    if let Some((observe, live)) = observe.take() {
                        observe(live);
                    }
                    orders
                }
                Response::Finished => return Ok(()),
                // `Lost`: another process under this name has the modules.
                Response::Lost { reason } | Response::Refused { reason } => {
                    return Err(SynchronizerError::Refused { reason });
                }
                _ => return Err(SynchronizerError::UnexpectedAnswer { request: "Orders" }),
            };
            let mut steps = OrdersInFlight::new(&synchronizer, orders);
            while let Some(done) = steps.next().await? {
                let fragment = done.fragment;
                match self.session.call(&Request::Stepped(Box::new(done)), None, LONG_CALL_TIMEOUT).await? {
                    Response::Done => self.tally.stepped(),
                    Response::Lost { reason } => {
                        tracing::warn!(%fragment, reason, "an outer step does not count");
                        self.tally.lost();
                    }
                    Response::Refused { reason } => return Err(SynchronizerError::Refused { reason }),
                    _ => return Err(SynchronizerError::UnexpectedAnswer { request: "Stepped" }),
                }
            }
        }
    }

    /// Asks the coordinator on behalf of a worker.
    async fn ask_coordinator(&self, request: &Request) -> Result<Response, SynchronizerError> {
        match tokio::time::timeout(WORKER_WAITS, self.session.call(request, None, LONG_CALL_TIMEOUT)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Ok(elsewhere(&"the synchronizer can't reach the coordinator").0),
        }
    }

    /// Sends a worker to the coordinator for an object that is no weights of its modules, and no change of them. A lease can
    /// name an address at which another synchronizer begins.
    fn foreign(&self, object: &ObjectRef) -> Option<Answer> {
        let own = |module: &ModuleId| {
            [names::MODULES, names::CHANGES]
                .iter()
                .any(|kind| object.name.starts_with(&format!("{kind}/{module}/")))
        };
        let foreign = !self.modules.iter().any(own);
        foreign.then(|| elsewhere(&format!("{} is not of the modules of this synchronizer", object.name)))
    }

    /// Sends a piece of the weights of its modules, or of their changes.
    async fn object_piece(&self, object: &ObjectRef, offset: u64) -> Answer {
        if let Some(elsewhere) = self.foreign(object) {
            return elsewhere;
        }
        let piece = read_piece(&self.intake.store, object, offset).await;
        // The object is superseded and deleted, or damaged. Only the coordinator can tell.
        piece.unwrap_or_else(|error| elsewhere(&error))
    }
}

/// Sends a worker to the coordinator.
fn elsewhere(why: &dyn std::fmt::Display) -> Answer {
    (Response::Elsewhere { reason: why.to_string() }, None)
}

impl ResultReceiver for SynchronizerProcess {
    type Error = SynchronizerError;

    fn intake(&self) -> &Arc<ResultIntake> {
        &self.intake
    }

    fn reception(&self) -> &Arc<Reception> {
        &self.reception
    }

    async fn admit(&self, piece: &UploadedPiece) -> Result<Admission, SynchronizerError> {
        let UploadedPiece { claim, item, digest, .. } = piece.clone();
        Ok(match self.ask_coordinator(&Request::Expected { claim, item, digest }).await? {
            Response::Expected { to } => Admission::Expected(AdmittedUpload { to, expected: None }),
            answer => Admission::Rejected(answer),
        })
    }

    async fn record(&self, upload: &Upload, stored: StoredResult) -> Result<Response, SynchronizerError> {
        let (claim, item, to) = (upload.claim.clone(), upload.item, upload.admitted.to);
        let StoredResult { object: ObjectRef { hash, bytes, .. }, norm } = stored;
        let digest = ContentDigest { hash, bytes };
        self.ask_coordinator(&Request::Stored { claim, item, to, digest, norm }).await
    }
}

impl RequestHandler for SynchronizerProcess {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    async fn welcome(&self, _: &Peer, _: &Registration) -> Result<Answer, SynchronizerError> {
        Ok(self.intake.welcome(self.run.clone())?)
    }

    async fn answer(self: &Arc<Self>, _: &Peer, request: Request) -> Result<Answer, SynchronizerError> {
        match request {
            Request::Fetch { source: FetchSource::Object(object), offset } => {
                Ok(self.object_piece(&object, offset).await)
            }
            Request::Link { object } => Ok(match self.foreign(&object) {
                Some(elsewhere) => elsewhere,
                None => (self.links.answer(&object).await, None),
            }),
            _ => Ok(elsewhere(&"this is a synchronizer: the coordinator answers this request")),
        }
    }

    async fn expel(&self, _: &Peer) -> Result<(), SynchronizerError> {
        Ok(())
    }

    async fn left(&self, _: &Peer, _: String, _: bool) -> Result<(), SynchronizerError> {
        Ok(())
    }
}
