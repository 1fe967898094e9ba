//! Bodies that a request leaves unread.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};

/// Most bytes of a body that are read and discarded.
const DISCARDED: usize = 64 << 20;

/// A body that its owner can read on when the reader is gone. Clones share it.
#[derive(Clone)]
pub(crate) struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    /// Shares the body of a request.
    pub(crate) fn of(request: &mut Request) -> Self {
        let shared = Self(Arc::new(Mutex::new(std::mem::take(request.body_mut()))));
        *request.body_mut() = Body::new(shared.clone());
        shared
    }

    fn lock(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}

/// Reads the rest of a refused request's body, for `time` at most, and discards it. A client that is still sending when the
/// connection closes would see a reset instead of the answer.
pub(crate) async fn discard(body: Body, time: Duration) {
    // Reading on would not help: the announced length is more than is ever discarded.
    if body.size_hint().lower() > DISCARDED as u64 {
        return;
    }
    let reading = async {
        let (mut length, mut frames) = (0usize, body.into_data_stream());
        while let Some(Ok(frame)) = frames.next().await
            && length <= DISCARDED
        {
            length = length.saturating_add(frame.len());
        }
    };
    // The answer goes out in any case.
    let _ = tokio::time::timeout(time, reading).await;
}
