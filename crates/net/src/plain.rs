//! Streams with bytes and nothing else, over the same connections: what transfers are measured against.

use bytes::Bytes;
use tokio::io::AsyncWriteExt;

use crate::wire::{self, Link};
use crate::{Client, NetError, Peer};

const FETCH: u8 = 0;
const BRING: u8 = 1;

impl Client {
    /// Reads what the peer serves, on a stream of its own, and returns its length in bytes.
    ///
    /// # Errors
    /// [`NetError::Lost`], [`NetError::Closed`] and [`NetError::Abandoned`].
    pub async fn fetch_plain(&self) -> Result<u64, NetError> {
        let link = self.plain_link();
        let opened = self.connection().open_bi().await;
        let (mut send, mut receive) = opened.map_err(|source| wire::closed(link.peer, source))?;
        link.write(&mut send, &[FETCH]).await?;
        send.finish().ok();
        drain(&link, &mut receive).await
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
        drain(&link, &mut receive).await.map(|_| ())
    }
}

impl Peer {
    /// Serves `bytes` to whoever fetches, and reads what is brought, until the connection ends.
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
                        drain(&link, &mut receive).await.ok()?;
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

/// Reads a stream to its end and returns how long it was.
async fn drain(link: &Link<'_>, stream: &mut quinn::RecvStream) -> Result<u64, NetError> {
    let mut bytes = 0;
    while let Some(chunk) =
        stream.read_chunk(usize::MAX, true).await.map_err(|error| link.broken(&error.into()))?
    {
        bytes += chunk.bytes.len() as u64;
    }
    Ok(bytes)
}
