//! A worker's transfers: everything large travels in pieces, several at a time.
//!
//! Each piece is an operation of its own, so a broken connection costs the pieces that were not acknowledged, and the
//! session repeats those alone. The pieces of an object arrive in one memory, each where it belongs, and the whole is
//! verified by its hash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use dipaco_store::ObjectRef;
use dipaco_sync::{Fence, FragmentId};
use dipaco_topology::PathId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TrainError;
use crate::blocking::blocking;
use crate::client::pace::Pace;
use crate::client::routes::{Routes, is_of_the_way};
use crate::client::session::{LONG_CALL_TIMEOUT, Session};
use dipaco_protocol::{
    ContentDigest, FetchSource, LeaseResult, PIECE_BYTES, PIECES_AT_ONCE, Request, Response,
};

/// Moves what a worker needs and what it makes, at its pace.
pub struct Transfer {
    pub(crate) routes: Routes,
    /// A place for each piece that is under way.
    places: Arc<Semaphore>,
    /// Held by the outer gradient whose pieces are being begun.
    turn: tokio::sync::Mutex<()>,
    incoming: Mutex<Pace>,
    outgoing: Mutex<Pace>,
    begun: Instant,
}

/// The lease that results belong to.
#[derive(Clone, Copy, Debug)]
pub struct LeaseKey {
    /// The path.
    pub path: PathId,
    /// Fencing number of the lease.
    pub fence: Fence,
}

/// A piece that has arrived. It gives its place to the next one when it has been put where it belongs.
struct Arrived {
    offset: u64,
    total: u64,
    bytes: BytesMut,
    place: OwnedSemaphorePermit,
}

impl Transfer {
    /// Transfers over a session with the coordinator, and with synchronizers that leases name, at no more than so many megabits per second in each direction; 0 is no limit.
    pub fn new(session: Arc<Session>, megabits_per_second: u32) -> Self {
        let pace = Pace::new(megabits_per_second);
        Self {
            routes: Routes::new(session),
            places: Arc::new(Semaphore::new(PIECES_AT_ONCE)),
            turn: tokio::sync::Mutex::default(),
            incoming: Mutex::new(pace),
            outgoing: Mutex::new(pace),
            begun: Instant::now(),
        }
    }

    /// Fetches an object of a fragment, verified by its hash.
    pub async fn object_of(
        self: &Arc<Self>,
        fragment: FragmentId,
        object: &ObjectRef,
    ) -> Result<Bytes, TrainError> {
        if let Some(session) = self.routes.synchronizer(fragment).await? {
            match self.fetch(&session, object).await {
                Ok((content, whole)) if whole.hash == object.hash => return Ok(content),
                Ok(_) => {
                    tracing::warn!(name = object.name, "an object arrived damaged from its synchronizer");
                }
                Err(error) if is_of_the_way(&error) => self.routes.avoid(fragment, &error).await,
                Err(error) => return Err(error),
            }
        }
        self.object(object).await
    }

    /// Fetches an object from the coordinator, verified by its hash.
    pub async fn object(self: &Arc<Self>, object: &ObjectRef) -> Result<Bytes, TrainError> {
        let session = self.routes.coordinator();
        for last in [false, true] {
            let (content, whole) = self.fetch(session, object).await?;
            if whole.hash == object.hash {
                return Ok(content);
            }
            if !last {
                tracing::warn!(
                    name = object.name,
                    "an object arrived damaged; the coordinator looks at its own"
                );
                let check = Request::Check { object: object.clone() };
                answered(session.call(&check, None, LONG_CALL_TIMEOUT).await?, "check")?;
            }
        }
        Err(TrainError::OtherObject { name: object.name.clone() })
    }

    /// Fetches an object as it arrives.
    async fn fetch(
        self: &Arc<Self>,
        session: &Arc<Session>,
        object: &ObjectRef,
    ) -> Result<(Bytes, ContentDigest), TrainError> {
        let content = self.put_together(session, object).await?.freeze();
        blocking(move || {
            let whole = ContentDigest::of(&content);
            (content, whole)
        })
        .await
    }

    /// Fetches the pieces of an object into one memory.
    async fn put_together(
        self: &Arc<Self>,
        session: &Arc<Session>,
        object: &ObjectRef,
    ) -> Result<BytesMut, TrainError> {
        let source = FetchSource::Object(object.clone());
        let mut free = memory(object.bytes)?;
        // Pieces are begun in their order.
        let room = |length| {
            let behind = free.split_off(length);
            std::mem::replace(&mut free, behind)
        };
        let mut pieces = BTreeMap::new();
        self.gather(session, &source, Some(object.bytes), room, |offset, piece| {
            pieces.insert(offset, piece);
            Ok(())
        })
        .await?;
        // Neighbours in one memory are put together without a copy.
        let mut whole = BytesMut::new();
        pieces.into_values().for_each(|piece| whole.unsplit(piece));
        Ok(whole)
    }

    /// Fetches what is in `source`, whose length in bytes may be known. `room` gives the memory for each piece, in the
    /// order of their offsets; `put` gets every piece once, in any order.
    pub async fn gather(
        self: &Arc<Self>,
        session: &Arc<Session>,
        source: &FetchSource,
        mut total: Option<u64>,
        mut room: impl FnMut(usize) -> BytesMut,
        mut put: impl FnMut(u64, BytesMut) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let mut next = 0;
        let mut under_way = JoinSet::new();
        loop {
            // The first piece tells a length that is not known.
            let at_once = if total.is_some() { PIECES_AT_ONCE } else { 1 };
            while under_way.len() < at_once && next < total.unwrap_or(1) {
                let (transfer, session, source, offset) =
                    (self.clone(), session.clone(), source.clone(), next);
                let length = total.map_or(PIECE_BYTES, |total| (total - next).min(PIECE_BYTES));
                // A piece is far shorter than what can be addressed.
                let into = room(usize::try_from(length).unwrap_or(0));
                under_way.spawn(async move { transfer.piece(&session, &source, offset, length, into).await });
                next += PIECE_BYTES;
            }
            let Some(arrived) = under_way.join_next().await else { return Ok(()) };
            let Arrived { offset, total: of, bytes, place } =
                arrived.map_err(|source| TrainError::Thread { source })??;
            let expected = *total.get_or_insert(of);
            if of != expected || bytes.len() as u64 != of.saturating_sub(offset).min(PIECE_BYTES) {
                return Err(TrainError::UnexpectedAnswer { request: "fetch" });
            }
            put(offset, bytes)?;
            drop(place);
        }
    }

    async fn piece(
        &self,
        session: &Session,
        source: &FetchSource,
        offset: u64,
        length: u64,
        mut into: BytesMut,
    ) -> Result<Arrived, TrainError> {
        let place = self.begin(&self.incoming, length).await?;
        let request = Request::Fetch { source: source.clone(), offset };
        match session.call_into(&request, &mut into, LONG_CALL_TIMEOUT).await? {
            Response::Piece { total } => Ok(Arrived { offset, total, bytes: into, place }),
            answer => {
                answered(answer, "fetch")?;
                Err(TrainError::UnexpectedAnswer { request: "fetch" })
            }
        }
    }

    /// Brings a result of a lease; returns when whoever it is for has all of it.
    pub async fn upload(
        self: &Arc<Self>,
        under: LeaseKey,
        item: LeaseResult,
        content: Bytes,
    ) -> Result<(), TrainError> {
        let (content, whole) = blocking(move || {
            let whole = ContentDigest::of(&content);
            (content, whole)
        })
        .await?;
        if let LeaseResult::OuterGradient { fragment, .. } = item
            && let Some(session) = self.routes.synchronizer(fragment).await?
        {
            match self.upload_to(&session, under, item, &whole, &content).await {
                Err(error) if is_of_the_way(&error) => self.routes.avoid(fragment, &error).await,
                brought => return brought,
            }
        }
        self.upload_to(self.routes.coordinator(), under, item, &whole, &content).await
    }

    async fn upload_to(
        self: &Arc<Self>,
        session: &Arc<Session>,
        under: LeaseKey,
        item: LeaseResult,
        whole: &ContentDigest,
        content: &Bytes,
    ) -> Result<(), TrainError> {
        let mut next = 0;
        let mut done = false;
        let mut under_way = JoinSet::new();
        // The pieces of one outer gradient go before those of the next: the first can be stepped on early, and few are in
        // parts. Nobody waits for a state, and it is large: it goes beside them.
        let mut turn = match item {
            LeaseResult::OuterGradient { .. } => Some(self.turn.lock().await),
            LeaseResult::State => None,
        };
        loop {
            while under_way.len() < PIECES_AT_ONCE
                && let Some(length) = whole.piece(next)
            {
                let (transfer, session, whole, offset) = (self.clone(), session.clone(), whole.clone(), next);
                // Offsets within a slice fit its index type.
                let begin = usize::try_from(offset).unwrap_or(usize::MAX);
                let piece = content.slice(begin..begin + usize::try_from(length).unwrap_or(usize::MAX));
                under_way
                    .spawn(async move { transfer.submit(&session, under, item, whole, offset, piece).await });
                next += PIECE_BYTES;
            }
            if whole.piece(next).is_none() {
                drop(turn.take());
            }
            let Some(taken) = under_way.join_next().await else { break };
            done |= taken.map_err(|source| TrainError::Thread { source })??;
        }
        if done { Ok(()) } else { Err(TrainError::UnexpectedAnswer { request: "submit" }) }
    }

    /// Brings a piece; returns whether the whole is there with it.
    async fn submit(
        &self,
        session: &Session,
        LeaseKey { path, fence }: LeaseKey,
        item: LeaseResult,
        whole: ContentDigest,
        offset: u64,
        piece: Bytes,
    ) -> Result<bool, TrainError> {
        let _place = self.begin(&self.outgoing, piece.len() as u64).await?;
        let request = Request::Submit { path, fence, item, whole, offset };
        match session.call(&request, Some(piece), LONG_CALL_TIMEOUT).await? {
            Response::PieceStored => Ok(false),
            answer => answered(answer, "submit").map(|()| true),
        }
    }

    /// Waits for a place, and until the line is free for so many bytes.
    async fn begin(&self, pace: &Mutex<Pace>, bytes: u64) -> Result<OwnedSemaphorePermit, TrainError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| TrainError::Cancelled)?;
        let wait = pace.lock().unwrap_or_else(PoisonError::into_inner).wait(self.begun.elapsed(), bytes);
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(place),
            () = self.routes.coordinator().cancelled() => Err(TrainError::Cancelled),
        }
    }
}

/// What an answer without anything in it means.
pub fn answered(answer: Response, request: &'static str) -> Result<(), TrainError> {
    match answer {
        Response::Done => Ok(()),
        Response::Lost { reason } => Err(TrainError::LeaseLost { reason }),
        Response::Refused { reason } => Err(TrainError::Refused { reason }),
        Response::Elsewhere { reason } => Err(TrainError::Elsewhere { reason }),
        _ => Err(TrainError::UnexpectedAnswer { request }),
    }
}

/// Memory for what is to arrive, if there is that much.
fn memory(bytes: u64) -> Result<BytesMut, TrainError> {
    let memory = || TrainError::Memory { bytes };
    let length = usize::try_from(bytes).map_err(|_| memory())?;
    // `BytesMut` would end the process where this only fails.
    Vec::<u8>::new().try_reserve_exact(length).map_err(|_| memory())?;
    Ok(BytesMut::with_capacity(length))
}

#[cfg(test)]
mod tests;
