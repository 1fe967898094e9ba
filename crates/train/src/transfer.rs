//! A worker's transfers: everything large travels in pieces, several at a time.
//!
//! Each piece is an operation of its own, so a broken connection costs the pieces that were not acknowledged, and the
//! session repeats those alone. The whole is verified by its hash where it arrives.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use dipaco_store::ObjectRef;
use dipaco_sync::Fence;
use dipaco_topology::PathId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TrainError;
use crate::pace::Pace;
use crate::protocol::{Item, PIECE_BYTES, PIECES_AT_ONCE, Request, Response, Source, Whole};
use crate::session::{LONG_CALL, Session};
use crate::synchronizer::blocking;

/// Moves what a worker needs and what it makes, at its pace.
pub(crate) struct Transfer {
    session: Arc<Session>,
    /// A place for each piece that is under way.
    places: Arc<Semaphore>,
    incoming: Mutex<Pace>,
    outgoing: Mutex<Pace>,
    begun: Instant,
}

/// The lease that results belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Under {
    pub(crate) path: PathId,
    pub(crate) fence: Fence,
}

/// A piece that has arrived. It gives its place to the next one when it has been put where it belongs.
struct Arrived {
    offset: u64,
    total: u64,
    bytes: Bytes,
    place: OwnedSemaphorePermit,
}

impl Transfer {
    /// Transfers over a session at no more than so many megabits per second in each direction; 0 is no limit.
    pub(crate) fn new(session: Arc<Session>, megabits_per_second: u32) -> Self {
        let pace = Pace::new(megabits_per_second);
        Self {
            session,
            places: Arc::new(Semaphore::new(PIECES_AT_ONCE)),
            incoming: Mutex::new(pace),
            outgoing: Mutex::new(pace),
            begun: Instant::now(),
        }
    }

    /// Fetches an object, verified by its hash.
    pub(crate) async fn object(self: &Arc<Self>, object: &ObjectRef) -> Result<Bytes, TrainError> {
        for last in [false, true] {
            let length = object.bytes;
            let mut content = blocking(move || zeros(length)).await??;
            let source = Source::Object(object.clone());
            self.gather(&source, Some(object.bytes), |offset, piece| {
                // Within the length, which every piece has been held against.
                let begin = usize::try_from(offset).unwrap_or(usize::MAX);
                let place = content.get_mut(begin..).and_then(|rest| rest.get_mut(..piece.len()));
                let place = place.ok_or(TrainError::UnexpectedAnswer { request: "fetch" })?;
                place.copy_from_slice(piece);
                Ok(())
            })
            .await?;
            let (content, whole) = blocking(move || {
                let whole = Whole::of(&content);
                (content, whole)
            })
            .await?;
            if whole.hash == object.hash {
                return Ok(content.into());
            }
            if !last {
                tracing::warn!(
                    name = object.name,
                    "an object arrived damaged; the coordinator looks at its own"
                );
                let check = Request::Check { object: object.clone() };
                answered(self.session.call(&check, None, 0, LONG_CALL).await?.0, "check")?;
            }
        }
        Err(TrainError::OtherObject { name: object.name.clone() })
    }

    /// Fetches what is in `source`, whose length in bytes may be known; `put` gets every piece once, in any order.
    pub(crate) async fn gather(
        self: &Arc<Self>,
        source: &Source,
        mut total: Option<u64>,
        mut put: impl FnMut(u64, &[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let mut next = 0;
        let mut under_way = JoinSet::new();
        loop {
            // The first piece tells a length that is not known.
            let at_once = if total.is_some() { PIECES_AT_ONCE } else { 1 };
            while under_way.len() < at_once && next < total.unwrap_or(1) {
                let (transfer, source, offset) = (self.clone(), source.clone(), next);
                let length = total.map_or(PIECE_BYTES, |total| (total - next).min(PIECE_BYTES));
                under_way.spawn(async move { transfer.piece(&source, offset, length).await });
                next += PIECE_BYTES;
            }
            let Some(arrived) = under_way.join_next().await else { return Ok(()) };
            let Arrived { offset, total: of, bytes, place } =
                arrived.map_err(|source| TrainError::Thread { source })??;
            let expected = *total.get_or_insert(of);
            if of != expected || bytes.len() as u64 != (of.saturating_sub(offset)).min(PIECE_BYTES) {
                return Err(TrainError::UnexpectedAnswer { request: "fetch" });
            }
            put(offset, &bytes)?;
            drop(place);
        }
    }

    async fn piece(&self, source: &Source, offset: u64, length: u64) -> Result<Arrived, TrainError> {
        let place = self.begin(&self.incoming, length).await?;
        let request = Request::Fetch { source: source.clone(), offset };
        match self.session.call(&request, None, length, LONG_CALL).await? {
            (Response::Piece { total }, Some(bytes)) => Ok(Arrived { offset, total, bytes, place }),
            (answer, _) => {
                answered(answer, "fetch")?;
                Err(TrainError::UnexpectedAnswer { request: "fetch" })
            }
        }
    }

    /// Brings a result of a lease; returns when the coordinator has all of it.
    pub(crate) async fn bring(
        self: &Arc<Self>,
        under: Under,
        item: Item,
        content: Bytes,
    ) -> Result<(), TrainError> {
        let (content, whole) = blocking(move || {
            let whole = Whole::of(&content);
            (content, whole)
        })
        .await?;
        let mut next = 0;
        let mut done = false;
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < PIECES_AT_ONCE
                && let Some(length) = whole.piece(next)
            {
                let (transfer, whole, offset) = (self.clone(), whole.clone(), next);
                // Offsets within a slice fit its index type.
                let begin = usize::try_from(offset).unwrap_or(usize::MAX);
                let piece = content.slice(begin..begin + usize::try_from(length).unwrap_or(usize::MAX));
                under_way.spawn(async move { transfer.submit(under, item, whole, offset, piece).await });
                next += PIECE_BYTES;
            }
            let Some(taken) = under_way.join_next().await else { break };
            done |= taken.map_err(|source| TrainError::Thread { source })??;
        }
        if done { Ok(()) } else { Err(TrainError::UnexpectedAnswer { request: "submit" }) }
    }

    /// Brings a piece; returns whether the whole is there with it.
    async fn submit(
        &self,
        Under { path, fence }: Under,
        item: Item,
        whole: Whole,
        offset: u64,
        piece: Bytes,
    ) -> Result<bool, TrainError> {
        let _place = self.begin(&self.outgoing, piece.len() as u64).await?;
        let request = Request::Submit { path, fence, item, whole, offset };
        match self.session.call(&request, Some(piece), 0, LONG_CALL).await?.0 {
            Response::Kept => Ok(false),
            answer => answered(answer, "submit").map(|()| true),
        }
    }

    /// Waits for a place, and until the line is free for so many bytes.
    async fn begin(&self, pace: &Mutex<Pace>, bytes: u64) -> Result<OwnedSemaphorePermit, TrainError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| TrainError::Cancelled)?;
        let wait = pace.lock().unwrap_or_else(PoisonError::into_inner).wait(self.begun.elapsed(), bytes);
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(place),
            () = self.session.cancelled() => Err(TrainError::Cancelled),
        }
    }
}

/// What an answer without anything in it means.
pub(crate) fn answered(answer: Response, request: &'static str) -> Result<(), TrainError> {
    match answer {
        Response::Done => Ok(()),
        Response::Lost { reason } => Err(TrainError::LeaseLost { reason }),
        Response::Refused { reason } => Err(TrainError::Refused { reason }),
        _ => Err(TrainError::UnexpectedAnswer { request }),
    }
}

/// Memory for what is to arrive, if there is that much.
fn zeros(bytes: u64) -> Result<Vec<u8>, TrainError> {
    let memory = || TrainError::Memory { bytes };
    let length = usize::try_from(bytes).map_err(|_| memory())?;
    let mut content = Vec::new();
    content.try_reserve_exact(length).map_err(|_| memory())?;
    content.resize(length, 0);
    Ok(content)
}

#[cfg(test)]
mod tests;
