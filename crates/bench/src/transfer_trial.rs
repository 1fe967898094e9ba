//! Transfer trial: the transfers between a worker and a coordinator, without a run.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_config::RunConfig;
use dipaco_net::{Clock, Exchange, JoinToken, PeerConnection, Server};
use dipaco_store::{ObjectRef, RunStore};
use dipaco_sync::{Fence, FragmentId, LeaseClaim, LeaseSecret, ProcessId};
use dipaco_topology::{ModuleId, PathId};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use dipaco_protocol::WorkerPlan;
use dipaco_protocol::{FetchSource, LeaseResult, PIECE_BYTES, PIECES_AT_ONCE, Request, Response};
use dipaco_train::client::{ClientError, Identity, LeaseKey, Session, TokenSource, Transfer};
use dipaco_train::host::{AdmittedUpload, PieceOutcome, UploadedPiece, Uploads};

use crate::BenchError;

/// Serves every object of a store, and receives results as a coordinator does until they are complete, verified and in
/// memory. Returns when the server is closed. Results that do not fit into memory are collected in files in the store, or in
/// `folder` if the store is no directory.
///
/// # Errors
/// When the store or the disk fails.
pub async fn serve_trial(server: &Server, store: &RunStore, folder: &FilePath) -> Result<(), BenchError> {
    let uploads = Uploads::new(store.clone(), folder.to_owned());
    let trial = Arc::new(TrialServer { store: store.clone(), uploads });
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            peer = server.accept() => match peer {
                Some(peer) => drop(peers.spawn(serve(peer, trial.clone()))),
                None => return Ok(()),
            },
            Some(served) = peers.join_next() => served??,
        }
    }
}

/// The coordinator's end of a trial.
struct TrialServer {
    store: RunStore,
    uploads: Uploads,
}

async fn serve(peer: PeerConnection, trial: Arc<TrialServer>) -> Result<(), BenchError> {
    let mut exchanges = JoinSet::new();
    // As many pieces of one peer in memory as a coordinator allows.
    let slots = Arc::new(Semaphore::new(PIECES_AT_ONCE));
    loop {
        tokio::select! {
            exchange = peer.accept_exchange() => {
                let Some(exchange) = exchange else { return Ok(()) };
                let (trial, slots) = (trial.clone(), slots.clone());
                exchanges.spawn(async move {
                    let _slot = slots.acquire().await.ok();
                    trial.answer(exchange).await
                });
            }
            Some(answered) = exchanges.join_next() => {
                answered??;
            }
        }
    }
}

impl TrialServer {
    async fn answer(&self, mut exchange: Exchange) -> Result<(), BenchError> {
        let (response, payload) = match exchange.request::<Request>().await? {
            Request::Hello { .. } => {
                let plan = WorkerPlan::new(&RunConfig::default()).to_json()?;
                (Response::Welcome { run: String::from("trial"), plan }, None)
            }
            Request::Fetch { source: FetchSource::Object(object), offset } => {
                let piece = self.store.get_range(&object, offset..offset.saturating_add(PIECE_BYTES)).await?;
                (Response::Piece { total: object.bytes }, Some(piece))
            }
            Request::Link { .. } => (Response::NoLink, None),
            Request::Submit { lease, item, digest, offset } => {
                let piece = exchange.receive_payload(PIECE_BYTES).await?;
                // Every trial has a higher fence, so the results of earlier trials are over.
                self.uploads.retain(|earlier| earlier.key.fence >= lease.fence);
                let claim = LeaseClaim { key: lease, worker: ProcessId::local("trial") };
                let uploaded = UploadedPiece { claim, item, digest, offset };
                let upload = self
                    .uploads
                    .find(&uploaded)
                    .unwrap_or_else(|key| self.uploads.begin(key, &uploaded, AdmittedUpload::default()));
                match self.uploads.add_piece(&upload, offset, piece).await? {
                    PieceOutcome::Answer(answer) => (answer, None),
                    PieceOutcome::Complete(mut complete) => {
                        let answer = if complete.content().digest == uploaded.digest {
                            Response::Done
                        } else {
                            Response::Refused {
                                reason: "the content has another hash than the upload announced".to_owned(),
                            }
                        };
                        complete.finish(answer.clone());
                        (answer, None)
                    }
                }
            }
            _ => (
                Response::Refused {
                    reason: "this is a transfer trial: it only moves objects and results".to_owned(),
                },
                None,
            ),
        };
        // The peer may read the answer and leave before it acknowledges the end of the stream.
        if let Err(error) = exchange.respond(&response, payload).await {
            tracing::trace!(%error, "the end of an answer was not acknowledged");
        }
        Ok(())
    }
}

/// A worker's end of a trial.
pub struct TrialWorker {
    session: Arc<Session>,
    transfer: Arc<Transfer>,
    fence: u64,
}

impl TrialWorker {
    /// Connects to [`serve_trial`].
    ///
    /// # Errors
    /// When the server can't be reached.
    pub async fn open(token: JoinToken) -> Result<Self, BenchError> {
        let patience = Duration::from_secs(10);
        let identity = Identity {
            token,
            source: TokenSource::Given,
            worker: "trial".to_owned(),
            instance: 0,
            patience,
            clock: Clock::system(),
            numerics: "trial".to_owned(),
            server: None,
        };
        let session = Arc::new(Session::open(identity, CancellationToken::new()).await?);
        Ok(Self { transfer: Arc::new(Transfer::new(session.clone(), 0)), session, fence: 0 })
    }

    /// Downloads objects as a worker downloads the fragments of a lease, and drops them.
    ///
    /// # Errors
    /// When an object can't be downloaded.
    pub async fn fetch(&self, objects: &[ObjectRef]) -> Result<(), BenchError> {
        let downloads = objects.iter().cloned().map(|object| {
            let transfer = self.transfer.clone();
            async move { transfer.object(&object).await.map(drop) }
        });
        Ok(all(downloads).await?)
    }

    /// Uploads `content` so many times, as a worker uploads its outer gradients.
    ///
    /// # Errors
    /// When the server refuses an upload.
    pub async fn upload(&mut self, content: &Bytes, times: u16) -> Result<(), BenchError> {
        self.fence += 1;
        let secret = LeaseSecret::default();
        let lease = LeaseKey { path: PathId(0), fence: Fence(self.fence), secret };
        let uploads = (0..times).map(|level| {
            let fragment = FragmentId { module: ModuleId { level, index: 0 }, index: 0 };
            let item = LeaseResult::OuterGradient { fragment, number: 1, tokens: 0 };
            let (transfer, content) = (self.transfer.clone(), content.clone());
            async move { transfer.upload(lease, item, content).await }
        });
        Ok(all(uploads).await?)
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.session.close().await;
    }
}

/// Runs transfers, several at a time as a worker does.
async fn all<F>(transfers: impl Iterator<Item = F>) -> Result<(), ClientError>
where
    F: Future<Output = Result<(), ClientError>> + Send + 'static,
{
    let mut in_flight = JoinSet::new();
    for transfer in transfers {
        if in_flight.len() == PIECES_AT_ONCE
            && let Some(done) = in_flight.join_next().await
        {
            done??;
        }
        in_flight.spawn(transfer);
    }
    while let Some(done) = in_flight.join_next().await {
        done??;
    }
    Ok(())
}
