//! Raw byte streams over the same connections, as the reference for measurements of transfers.

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use crate::wire::{self, Transfer};
use crate::{Client, NetError, PeerConnection};

const FETCH: u8 = 0;
const UPLOAD: u8 = 1;

impl Client {
    /// Reads the bytes that the peer serves, on a new stream, and appends them to `into`.
    ///
    /// # Errors
    /// [`NetError::Lost`], [`NetError::Closed`] and [`NetError::Abandoned`].
    pub async fn fetch_plain(&self, into: &mut BytesMut) -> Result<(), NetError> {
        let transfer = self.plain_transfer();
        let opened = self.connection().open_bi().await;
        let (mut send, mut receive) = opened.map_err(|source| wire::closed(transfer.peer, source))?;
        transfer.write(&mut send, &[FETCH]).await?;
        send.finish().ok();
        collect(&transfer, &mut receive, into).await
    }

    /// Uploads bytes on a new stream; returns after the peer has read them.
    ///
    /// # Errors
    /// As [`Client::fetch_plain`].
    pub async fn upload_plain(&self, bytes: Bytes) -> Result<(), NetError> {
        let transfer = self.plain_transfer();
        let opened = self.connection().open_bi().await;
        let (mut send, mut receive) = opened.map_err(|source| wire::closed(transfer.peer, source))?;
        transfer.write(&mut send, &[UPLOAD]).await?;
        send.write_chunk(bytes).await.map_err(|error| transfer.broken(&error.into()))?;
        send.finish().ok();
        collect(&transfer, &mut receive, &mut BytesMut::new()).await
    }
}

impl PeerConnection {
    /// Answers each fetch with `bytes`, and reads each upload of up to as many bytes into memory, until the connection
    /// ends.
    pub async fn serve_plain(&self, bytes: &Bytes) {
        while let Ok((mut send, mut receive)) = self.connection().accept_bi().await {
            let (bytes, shown) = (bytes.clone(), self.to_string());
            tokio::spawn(async move {
                let transfer =
                    Transfer { peer: &shown, part: "plain bytes", stall: std::time::Duration::MAX };
                let mut direction = [0];
                let served = async {
                    receive.read_exact(&mut direction).await.ok()?;
                    if direction == [FETCH] {
                        send.write_chunk(bytes).await.ok()?;
                    } else {
                        let mut into = BytesMut::with_capacity(bytes.len());
                        collect(&transfer, &mut receive, &mut into).await.ok()?;
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
    transfer: &Transfer<'_>,
    stream: &mut quinn::RecvStream,
    into: &mut BytesMut,
) -> Result<(), NetError> {
    while let Some(chunk) =
        stream.read_chunk(usize::MAX, true).await.map_err(|error| transfer.broken(&error.into()))?
    {
        into.extend_from_slice(&chunk.bytes);
    }
    Ok(())
}
