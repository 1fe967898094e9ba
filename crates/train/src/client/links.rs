//! Links: a worker's downloads straight from the run's object store.
//!
//! A link saves the coordinator's line and costs nothing that a worker needs: whatever fails, the worker asks the peer that
//! gave the link. If others will fail too, it rests from links for a while, so a store that it can't reach costs it one
//! time limit and not one for each object.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use dipaco_protocol::{ObjectLink, Request, Response};
use dipaco_store::{LinkError, LinkReader, ObjectRef};
use tokio::time::Instant;

use crate::client::ClientError;
use crate::client::session::{SHORT_CALL_TIMEOUT, Session};

/// Time without links after a peer had none, or after a failure that others will share.
const REST: Duration = Duration::from_secs(600);

/// What a worker knows about links.
pub(crate) struct Links {
    /// The end of the present rest.
    rest: Mutex<Rest>,
    /// Made for the first link.
    reader: Mutex<Option<LinkReader>>,
    read: AtomicU64,
    /// Bytes of `read` that are not reported yet.
    unreported: AtomicU64,
    /// Origin of the rests' time.
    started: Instant,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            rest: Mutex::default(),
            reader: Mutex::default(),
            read: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            started: Instant::now(),
        }
    }
}

impl Links {
    /// Bytes read through links.
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes read through links since the last call.
    pub(crate) fn take_unreported(&self) -> u64 {
        self.unreported.swap(0, Ordering::Relaxed)
    }

    fn rest(&self) -> bool {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner).begin(self.started.elapsed())
    }

    fn rests(&self) -> bool {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner).lasts(self.started.elapsed())
    }

    fn reader(&self) -> Result<LinkReader, LinkError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        match &*reader {
            Some(reader) => Ok(reader.clone()),
            None => Ok(reader.insert(LinkReader::new()?).clone()),
        }
    }

    /// Notes a failure. The first one of a rest is told to the user.
    fn failed(&self, error: &LinkError) {
        if error.lasts() && self.rest() {
            tracing::warn!(
                %error,
                minutes = REST.as_secs() / 60,
                "objects come through the coordinator and its synchronizers for a while, not from the store"
            );
        } else {
            tracing::debug!(%error, "a piece of an object did not come from the store");
        }
    }
}

/// A time without links.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    until: Option<Duration>,
}

impl Rest {
    fn lasts(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Begins a rest; returns false if it lasts already.
    fn begin(&mut self, now: Duration) -> bool {
        let begins = !self.lasts(now);
        if begins {
            self.until = Some(now + REST);
        }
        begins
    }
}

/// One object during its download, with the link to it.
pub(crate) struct LinkedObject {
    links: Arc<Links>,
    /// The peer that makes the link.
    session: Arc<Session>,
    object: ObjectRef,
    /// The link, and the time from which on it is too old to be used. Locked while the peer is asked, so that the pieces of
    /// an object ask once.
    link: tokio::sync::Mutex<Option<(ObjectLink, Instant)>>,
    /// True if the rest of the object comes from the peer.
    off: AtomicBool,
    /// True if a piece came through the link.
    used: AtomicBool,
}

impl LinkedObject {
    pub(crate) fn new(links: Arc<Links>, session: Arc<Session>, object: ObjectRef) -> Self {
        let (off, used) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { links, session, object, link: tokio::sync::Mutex::default(), off, used }
    }

    /// Length of the object in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.object.bytes
    }

    /// Reads a piece from the store in place of the content of `into`. Returns false if the peer must be asked for it.
    ///
    /// # Errors
    /// When the peer can't be asked for a link, or the user asks to stop.
    pub(crate) async fn read(&self, range: Range<u64>, into: &mut BytesMut) -> Result<bool, ClientError> {
        let Some(address) = self.address().await? else { return Ok(false) };
        let length = range.end - range.start;
        let read = async { self.links.reader()?.read(&address, range, into).await };
        let read = tokio::select! {
            read = read => read,
            () = self.session.cancelled() => return Err(ClientError::cancelled()),
        };
        match read {
            Ok(()) => {
                self.used.store(true, Ordering::Relaxed);
                self.links.read.fetch_add(length, Ordering::Relaxed);
                self.links.unreported.fetch_add(length, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) => {
                self.off.store(true, Ordering::Relaxed);
                self.links.failed(&error);
                Ok(false)
            }
        }
    }

    /// Returns whether the wrong hash of the object may be the store's fault. The worker then rests from links.
    pub(crate) fn blamed(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        if used {
            self.links.failed(&LinkError::OtherContent);
        }
        used
    }

    /// The address of a link that is young enough; `None` without links.
    async fn address(&self) -> Result<Option<String>, ClientError> {
        let mut known = self.link.lock().await;
        if self.off.load(Ordering::Relaxed) || self.links.rests() {
            return Ok(None);
        }
        if let Some((link, ends)) = &*known
            && Instant::now() < *ends
        {
            return Ok(Some(link.address.clone()));
        }
        let request = Request::Link { object: self.object.clone() };
        match self.session.call(&request, None, SHORT_CALL_TIMEOUT).await? {
            Response::Link(link) => {
                // Credentials that end early make links that end early. A third of the life leaves time for a slow piece.
                let ends = Instant::now() + Duration::from_secs(u64::from(link.seconds) / 3);
                let address = link.address.clone();
                *known = Some((link, ends));
                Ok(Some(address))
            }
            Response::NoLink => {
                self.links.rest();
                Ok(None)
            }
            // The object is not current, or the coordinator must be asked. The answer to `Fetch` says the same.
            Response::Lost { .. } | Response::Refused { .. } | Response::Elsewhere { .. } => {
                self.off.store(true, Ordering::Relaxed);
                Ok(None)
            }
            _ => Err(ClientError::UnexpectedAnswer { request: "link" }),
        }
    }
}

#[cfg(test)]
mod tests;
