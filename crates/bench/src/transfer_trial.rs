//! Transfers without a run: what a worker and a coordinator move for each other, to measure it.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_config::RunConfig;
use dipaco_net::{Exchange, JoinToken, PeerConnection, Server};
use dipaco_store::{ObjectRef, RunStore};
use dipaco_sync::{Fence, FragmentId};
use dipaco_topology::{ModuleId, PathId};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use dipaco_protocol::WorkerPlan;
use dipaco_protocol::{FetchSource, LeaseResult, PIECE_BYTES, PIECES_AT_ONCE, Request, Response};
use dipaco_train::HostError;
use dipaco_train::TrainError;
use dipaco_train::client::{Identity, Session};
use dipaco_train::client::{LeaseKey, Transfer};
use dipaco_train::host::{PieceOutcome, UploadedPiece, Uploads};

/// Serves every object of a store, and takes every result as a coordinator does up to where it is whole, verified and in
/// memory; until the trial is closed. `folder` is where results are collected.
///
/// # Errors
/// When the disk fails.
pub async fn serve_trial(server: &Server, store: &RunStore, folder: &FilePath) -> Result<(), HostError> {
    let trial = Arc::new(TrialServer { store: store.clone(), uploads: Uploads::new(folder.to_owned()) });
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            peer = server.accept() => match peer {
                Some(peer) => drop(peers.spawn(serve(peer, trial.clone()))),
                None => return Ok(()),
            },
            Some(served) = peers.join_next() => served.map_err(|source| TrainError::Thread { source })??,
        }
    }
}

struct TrialServer {
    store: RunStore,
    uploads: Uploads,
}

async fn serve(peer: PeerConnection, trial: Arc<TrialServer>) -> Result<(), HostError> {
    let mut exchanges = JoinSet::new();
    let places = Arc::new(Semaphore::new(PIECES_AT_ONCE));
    loop {
        tokio::select! {
            exchange = peer.accept_exchange() => {
                let Some(exchange) = exchange else { return Ok(()) };
                let (trial, places) = (trial.clone(), places.clone());
                exchanges.spawn(async move {
                    let _place = places.acquire().await.ok();
                    trial.answer(exchange).await
                });
            }
            Some(answered) = exchanges.join_next() => {
                answered.map_err(|source| TrainError::Thread { source })??;
            }
        }
    }
}

impl TrialServer {
    async fn answer(&self, mut exchange: Exchange) -> Result<(), HostError> {
        let (response, payload) = match exchange.request::<Request>().await? {
            Request::Hello { .. } => {
                let plan = serde_json::to_string(&WorkerPlan::new(&RunConfig::default()))
                    .map_err(|source| TrainError::Json { source })?;
                (Response::Welcome { run: String::from("trial"), plan }, None)
            }
            Request::Fetch { source: FetchSource::Object(object), offset } => {
                let piece = self.store.get_range(&object, offset..offset.saturating_add(PIECE_BYTES)).await?;
                (Response::Piece { total: object.bytes }, Some(piece))
            }
            Request::Submit { path, fence, item, whole, offset } => {
                let piece = exchange.receive_payload(PIECE_BYTES).await?;
                // What earlier trials have brought is over.
                self.uploads.retain(|_, earlier| earlier >= fence);
                let uploaded = UploadedPiece { path, fence, item, digest: whole, offset };
                match self.uploads.add_piece(&uploaded, piece).await? {
                    PieceOutcome::Answer(answer) => (answer, None),
                    PieceOutcome::Complete(mut complete) => {
                        let answer = if complete.content().digest == uploaded.digest {
                            Response::Done
                        } else {
                            Response::Refused { reason: "the hash is another one".to_owned() }
                        };
                        complete.finish(answer.clone());
                        (answer, None)
                    }
                }
            }
            _ => (Response::Refused { reason: "this is a trial of transfers alone".to_owned() }, None),
        };
        // Who has read the answer may be gone before its end is acknowledged.
        if let Err(error) = exchange.respond(&response, payload).await {
            tracing::trace!(%error, "an answer was not taken to its end");
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
    /// When it can't be reached.
    pub async fn open(token: JoinToken) -> Result<Self, TrainError> {
        let patience = Duration::from_secs(10);
        let identity = Identity { token, worker: "trial".to_owned(), instance: 0, patience };
        let session = Arc::new(Session::open(identity, CancellationToken::new()).await?);
        Ok(Self { transfer: Arc::new(Transfer::new(session.clone(), 0)), session, fence: 0 })
    }

    /// Fetches objects as a worker does the fragments of a lease, and drops them.
    ///
    /// # Errors
    /// When one can't be had.
    pub async fn fetch(&self, objects: &[ObjectRef]) -> Result<(), TrainError> {
        let fetching = objects.iter().cloned().map(|object| {
            let transfer = self.transfer.clone();
            async move { transfer.object(&object).await.map(drop) }
        });
        all(fetching).await
    }

    /// Brings `content` so many times as a worker does its outer gradients.
    ///
    /// # Errors
    /// When the coordinator does not take it.
    pub async fn upload(&mut self, content: &Bytes, times: u16) -> Result<(), TrainError> {
        self.fence += 1;
        let under = LeaseKey { path: PathId(0), fence: Fence(self.fence) };
        let bringing = (0..times).map(|level| {
            let fragment = FragmentId { module: ModuleId { level, index: 0 }, index: 0 };
            let item = LeaseResult::OuterGradient { fragment, number: 1, tokens: 0 };
            let (transfer, content) = (self.transfer.clone(), content.clone());
            async move { transfer.upload(under, item, content).await }
        });
        all(bringing).await
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.session.close().await;
    }
}

/// Runs transfers, several at a time.
async fn all<F>(transfers: impl Iterator<Item = F>) -> Result<(), TrainError>
where
    F: Future<Output = Result<(), TrainError>> + Send + 'static,
{
    let mut under_way = JoinSet::new();
    for transfer in transfers {
        if under_way.len() == PIECES_AT_ONCE
            && let Some(done) = under_way.join_next().await
        {
            done.map_err(|source| TrainError::Thread { source })??;
        }
        under_way.spawn(transfer);
    }
    while let Some(done) = under_way.join_next().await {
        done.map_err(|source| TrainError::Thread { source })??;
    }
    Ok(())
}
