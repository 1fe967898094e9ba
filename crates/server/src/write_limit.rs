//! A limit for clients that do not read their answers.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail when the other end takes no byte for too long. Without it a client that reads nothing would
/// hold its connection for ever.
pub(crate) struct WriteLimit<'a> {
    /// The stream, which others may watch meanwhile.
    reading: &'a TcpStream,
    /// The same stream.
    writing: WriteHalf<'a>,
    limit: Duration,
    /// The end of the wait for the other end; `None` while nothing waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Tells others whether bytes wait for the other end.
    waits: &'a AtomicBool,
}

impl<'a> WriteLimit<'a> {
    /// The two parts of one stream.
    pub(crate) fn new(
        reading: &'a TcpStream,
        writing: WriteHalf<'a>,
        limit: Duration,
        waits: &'a AtomicBool,
    ) -> Self {
        Self { reading, writing, limit, stalled: None, waits }
    }

    /// The result of a step of a write, or an error when no step has been possible for too long.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        step: impl FnOnce(Pin<&mut WriteHalf<'a>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let step = step(Pin::new(&mut self.writing), context);
        self.waits.store(step.is_pending(), Ordering::Relaxed);
        if step.is_ready() {
            self.stalled = None;
            return step;
        }
        let limit = self.limit;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteLimit<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.reading.poll_read_ready(context))?;
        loop {
            match self.reading.try_read_buf(buffer) {
                // Only a read that finds nothing tells the others that no bytes are left.
                Ok(1..) => {}
                _ if buffer.filled().len() > before => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.reading.poll_read_ready(context))?;
                }
                read => return Poll::Ready(read.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for WriteLimit<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bounded(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bounded(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.writing.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, |stream, context| stream.poll_shutdown(context))
    }
}
