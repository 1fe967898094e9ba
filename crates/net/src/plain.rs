//! Streams with bytes and nothing else, over the same connections: what transfers are measured against.

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use crate::wire::{self, Link};
use crate::{Client, NetError, PeerConnection};

const FETCH: u8 = 0;
const BRING: u8 = 1;

impl Client {
    /// Reads what the peer serves, on a stream of its own, into the memory of `into`.
    ///
    /// # Errors
    /// [`NetError::Lost`], [`NetError::Closed`] and [`NetError::Abandoned`].
    pub async fn fetch_plain(&self, into: &mut BytesMut) -> Result<(), NetError> {
        let link = self.plain_link();
        let opened = self.connection().open_bi().await;
        let (mut send, mut receive) = opened.map_err(|source| wire::closed(link.peer, source))?;
        link.write(&mut send, &[FETCH]).await?;
        send.finish().ok();
        collect(&link, &mut receive, into).await
    }

    /// Brings bytes on a stream of their own; returns when the peer has read them.
    ///
    /// # Errors
    /// As [`Client::fetch_plain`].
    pub async fn bring_plain(&self, bytes: Bytes) -> Result<(), NetError> {
        let link = self.plain_link();
        let opened = self.connection().open_bi().await;
        let (mut send, mut receive) = opened.map_err(|source| wire::closed(link.peer, source))?;
        link.write(&mut send, &[BRING]).await?;
        send.write_chunk(bytes).await.map_err(|error| link.broken(&error.into()))?;
        send.finish().ok();
        collect(&link, &mut receive, &mut BytesMut::new()).await
    }
}

impl PeerConnection {
    /// Serves `bytes` to whoever fetches, and reads as many into memory of whoever brings, until the connection ends.
    pub async fn serve_plain(&self, bytes: &Bytes) {
        while let Ok((mut send, mut receive)) = self.connection().accept_bi().await {
            let (bytes, shown) = (bytes.clone(), self.to_string());
            tokio::spawn(async move {
                let link = Link { peer: &shown, what: "plain bytes", stall: std::time::Duration::MAX };
                let mut what = [0];
                let served = async {
                    receive.read_exact(&mut what).await.ok()?;
                    if what == [FETCH] {
                        send.write_chunk(bytes).await.ok()?;
                    } else {
                        let mut into = BytesMut::with_capacity(bytes.len());
                        collect(&link, &mut receive, &mut into).await.ok()?;
                        send.write_all(&[0]).await.ok()?;
                    }
                    send.shutdown().await.ok()
                };
                if served.await.is_none() {
                    tracing::debug!(peer = shown, "a plain stream broke");
                }
            });
        }
    }
}

/// Reads a stream to its end.
async fn collect(
    link: &Link<'_>,
    stream: &mut quinn::RecvStream,
    into: &mut BytesMut,
) -> Result<(), NetError> {
    while let Some(chunk) =
        stream.read_chunk(usize::MAX, true).await.map_err(|error| link.broken(&error.into()))?
    {
        into.extend_from_slice(&chunk.bytes);
    }
    Ok(())
}
