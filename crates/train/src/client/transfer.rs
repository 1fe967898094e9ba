//! A worker's transfers: objects, shards and results travel in pieces, several pieces at a time.
//!
//! Each piece is a request of its own. A broken connection costs only the pieces that were not acknowledged, and the
//! session repeats these. The pieces of an object arrive in one allocation, each at its place, and the hash of the whole
//! object is verified. The pieces of an object come from the run's store where a link leads there.
//! `upload.rs` uploads results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use dipaco_store::ObjectRef;
use dipaco_sync::FragmentId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::client::ClientError;
use crate::client::content::digest_of;
use crate::client::links::{LinkedObject, Links};
use crate::client::pace::Pace;
use crate::client::routes::{Routes, needs_the_coordinator};
use crate::client::session::{LONG_CALL_TIMEOUT, Session};
use dipaco_protocol::{FetchSource, PIECE_BYTES, PIECES_AT_ONCE, Request, Response};

/// Downloads a worker's inputs and uploads its results, below a bandwidth.
pub struct Transfer {
    pub(crate) routes: Routes,
    pub(crate) links: Arc<Links>,
    /// One permit for each piece that may be in flight, in both directions together.
    slots: Arc<Semaphore>,
    /// Held while the pieces of one outer gradient are sent off, so that the gradients go one after the other.
    pub(super) turn: tokio::sync::Mutex<()>,
    incoming: Mutex<Pace>,
    pub(super) outgoing: Mutex<Pace>,
    downloaded: AtomicU64,
    pub(super) uploaded: AtomicU64,
    /// Origin of the paces' time.
    started: Instant,
}

/// Bytes of content that a worker has moved, without the framing of messages and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// To the worker.
    pub down: u64,
    /// The part of `down` that came straight from the store.
    pub linked: u64,
    /// From the worker.
    pub up: u64,
}

/// A downloaded piece. Its slot is free again when the piece has been consumed.
struct ArrivedPiece {
    offset: u64,
    /// Length of the whole object in bytes.
    total: u64,
    bytes: BytesMut,
    slot: OwnedSemaphorePermit,
}

/// Where the pieces of a download come from.
#[derive(Clone)]
pub(crate) struct FetchOrigin {
    session: Arc<Session>,
    source: FetchSource,
    /// The object in the store, if its pieces may come from there.
    link: Option<Arc<LinkedObject>>,
}

impl FetchOrigin {
    /// A peer, and nothing else.
    pub(crate) fn peer(session: &Arc<Session>, source: FetchSource) -> Self {
        Self { session: session.clone(), source, link: None }
    }
}

impl Transfer {
    /// Transfers over a session with the coordinator, and with the synchronizers that leases name. They use at most so
    /// many megabits per second in each direction; 0 means no limit.
    pub fn new(session: Arc<Session>, megabits_per_second: u32) -> Self {
        let pace = Pace::new(megabits_per_second);
        Self {
            routes: Routes::new(session),
            links: Arc::default(),
            slots: Arc::new(Semaphore::new(PIECES_AT_ONCE)),
            turn: tokio::sync::Mutex::default(),
            incoming: Mutex::new(pace),
            outgoing: Mutex::new(pace),
            downloaded: AtomicU64::new(0),
            uploaded: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// Bytes moved so far. A piece counts when its receiver has all of it.
    #[must_use]
    pub fn moved(&self) -> Moved {
        let (down, up) = (&self.downloaded, &self.uploaded);
        Moved {
            down: down.load(Ordering::Relaxed),
            linked: self.links.read(),
            up: up.load(Ordering::Relaxed),
        }
    }

    /// Downloads an object of a fragment from the fragment's synchronizer, and verifies its hash.
    ///
    /// # Errors
    /// When neither the synchronizer nor the coordinator has the object, or the coordinator can't be reached.
    pub async fn object_of(
        self: &Arc<Self>,
        fragment: FragmentId,
        object: &ObjectRef,
    ) -> Result<Bytes, ClientError> {
        if let Some(session) = self.routes.synchronizer(fragment).await? {
            match self.fetch(&session, object).await {
                Ok(Some(content)) => return Ok(content),
                // The coordinator checks its own copy, which a synchronizer can't.
                Ok(None) => {
                    tracing::warn!(name = object.name, "an object arrived damaged from its synchronizer");
                }
                Err(error) if needs_the_coordinator(&error) => self.routes.avoid(fragment, &error).await,
                Err(error) => return Err(error),
            }
        }
        self.object(object).await
    }

    /// Downloads an object from the coordinator, and verifies its hash.
    ///
    /// # Errors
    /// When the coordinator can't be reached or lacks the object, or the object arrives damaged twice.
    pub async fn object(self: &Arc<Self>, object: &ObjectRef) -> Result<Bytes, ClientError> {
        let session = self.routes.coordinator();
        for last in [false, true] {
            if let Some(content) = self.fetch(session, object).await? {
                return Ok(content);
            }
            if !last {
                tracing::warn!(
                    name = object.name,
                    "an object arrived damaged; the coordinator checks its copy"
                );
                let check = Request::Check { object: object.clone() };
                expect_done(session.call(&check, None, LONG_CALL_TIMEOUT).await?, "check")?;
            }
        }
        Err(ClientError::OtherObject { name: object.name.clone() })
    }

    /// Downloads an object from the store or from a peer, and compares its hash; `None` if it arrived damaged from the
    /// peer.
    async fn fetch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        object: &ObjectRef,
    ) -> Result<Option<Bytes>, ClientError> {
        let from_peer = FetchOrigin::peer(session, FetchSource::Object(object.clone()));
        let link = Arc::new(LinkedObject::new(self.links.clone(), session.clone(), object.clone()));
        let origin = FetchOrigin { link: Some(link.clone()), ..from_peer.clone() };
        let arrived = self.assemble_sound(&origin, object).await?;
        if arrived.is_none() && link.blamed() {
            return self.assemble_sound(&from_peer, object).await;
        }
        Ok(arrived)
    }

    async fn assemble_sound(
        self: &Arc<Self>,
        origin: &FetchOrigin,
        object: &ObjectRef,
    ) -> Result<Option<Bytes>, ClientError> {
        let content = self.assemble(origin, object).await?.freeze();
        let expected = object.hash.clone();
        let compared = blocking(move || {
            let whole = digest_of(&content).hash == expected;
            whole.then_some(content)
        });
        Ok(compared.await?)
    }

    /// Downloads the pieces of an object into one allocation.
    async fn assemble(
        self: &Arc<Self>,
        origin: &FetchOrigin,
        object: &ObjectRef,
    ) -> Result<BytesMut, ClientError> {
        let mut free = allocate(object.bytes)?;
        // `gather` asks in the order of the offsets, so the front of the free memory is the place of the next piece.
        let room = |length| {
            let behind = free.split_off(length);
            std::mem::replace(&mut free, behind)
        };
        let mut pieces = BTreeMap::new();
        self.gather(origin, Some(object.bytes), room, |offset, piece| {
            pieces.insert(offset, piece);
            Ok(())
        })
        .await?;
        // `unsplit` joins neighbours of one allocation without a copy.
        let mut whole = BytesMut::new();
        pieces.into_values().for_each(|piece| whole.unsplit(piece));
        Ok(whole)
    }

    /// Downloads all pieces of an origin. `total` is its length in bytes, if that is known. `room` returns the memory of
    /// each piece, in the order of the offsets. `put` gets every piece once with its offset, in any order.
    ///
    /// # Errors
    /// When the peer can't be reached or lacks the source, a piece has a wrong length, or `put` fails.
    pub(crate) async fn gather(
        self: &Arc<Self>,
        origin: &FetchOrigin,
        mut total: Option<u64>,
        mut room: impl FnMut(usize) -> BytesMut,
        mut put: impl FnMut(u64, BytesMut) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut next = 0;
        let mut in_flight = JoinSet::new();
        loop {
            // The first piece tells an unknown length.
            let at_once = if total.is_some() { PIECES_AT_ONCE } else { 1 };
            while in_flight.len() < at_once && next < total.unwrap_or(1) {
                let (transfer, origin, offset) = (self.clone(), origin.clone(), next);
                let length = total.map_or(PIECE_BYTES, |total| (total - next).min(PIECE_BYTES));
                // A piece has at most `PIECE_BYTES`, which fits any `usize`.
                let into = room(usize::try_from(length).unwrap_or(0));
                in_flight.spawn(async move { transfer.piece(&origin, offset, length, into).await });
                next += PIECE_BYTES;
            }
            let Some(arrived) = in_flight.join_next().await else { return Ok(()) };
            let ArrivedPiece { offset, total: of, bytes, slot } = arrived??;
            let expected = *total.get_or_insert(of);
            if of != expected || bytes.len() as u64 != of.saturating_sub(offset).min(PIECE_BYTES) {
                return Err(ClientError::UnexpectedAnswer { request: "fetch" });
            }
            put(offset, bytes)?;
            drop(slot);
        }
    }

    async fn piece(
        &self,
        origin: &FetchOrigin,
        offset: u64,
        length: u64,
        mut into: BytesMut,
    ) -> Result<ArrivedPiece, ClientError> {
        let FetchOrigin { session, source, link } = origin;
        let slot = self.begin(&self.incoming, length).await?;
        if let Some(object) = link
            && object.read(offset..offset + length, &mut into).await?
        {
            self.downloaded.fetch_add(length, Ordering::Relaxed);
            let total = object.bytes();
            return Ok(ArrivedPiece { offset, total, bytes: into, slot });
        }
        let request = Request::Fetch { source: source.clone(), offset };
        match session.call_into(&request, &mut into, LONG_CALL_TIMEOUT).await? {
            Response::Piece { total } => {
                self.downloaded.fetch_add(into.len() as u64, Ordering::Relaxed);
                Ok(ArrivedPiece { offset, total, bytes: into, slot })
            }
            answer => {
                expect_done(answer, "fetch")?;
                Err(ClientError::UnexpectedAnswer { request: "fetch" })
            }
        }
    }

    /// Waits for a slot, and until the line is free for so many bytes.
    pub(super) async fn begin(
        &self,
        pace: &Mutex<Pace>,
        bytes: u64,
    ) -> Result<OwnedSemaphorePermit, ClientError> {
        // The slot comes first: a reserved time on the line must not pass while the piece waits for a slot.
        let slot = self.slots.clone().acquire_owned().await.map_err(|_| ClientError::cancelled())?;
        let wait = pace.lock().unwrap_or_else(PoisonError::into_inner).wait(self.started.elapsed(), bytes);
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(slot),
            () = self.routes.coordinator().cancelled() => Err(ClientError::cancelled()),
        }
    }
}

/// Accepts [`Response::Done`], and turns every other answer into its error. `request` names the request.
///
/// # Errors
/// When the answer is a refusal, a lost lease, a referral to the coordinator, or has a form that does not fit.
pub fn expect_done(answer: Response, request: &'static str) -> Result<(), ClientError> {
    match answer {
        Response::Done => Ok(()),
        Response::Lost { reason } => Err(ClientError::LeaseLost { reason }),
        Response::Refused { reason } => Err(ClientError::Refused { reason }),
        Response::Elsewhere { reason } => Err(ClientError::Elsewhere { reason }),
        _ => Err(ClientError::UnexpectedAnswer { request }),
    }
}

/// Allocates memory for an object, if the machine has it.
fn allocate(bytes: u64) -> Result<BytesMut, ClientError> {
    let lacking = || ClientError::Memory { bytes };
    let length = usize::try_from(bytes).map_err(|_| lacking())?;
    // `BytesMut` ends the process when there is no memory. This reservation only fails.
    Vec::<u8>::new().try_reserve_exact(length).map_err(|_| lacking())?;
    Ok(BytesMut::with_capacity(length))
}

#[cfg(test)]
pub(crate) mod tests;
