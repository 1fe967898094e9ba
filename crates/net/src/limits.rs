//! Limits of one end.

use std::time::Duration;

use crate::NetError;

/// Limits on memory and time. The defaults suit links from loopback to intercontinental.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest header in bytes. Default 1 MiB. A longer header is an error before its body is read.
    pub max_header_bytes: u32,
    /// Concurrent peers of a server. Default 1152. A further peer gets the place of another if, with it, its token has at
    /// most half as many places as the token with the most. That token's newest peer, at its address with the most, then
    /// gets [`NetError::Busy`]; without such a token the further peer does.
    pub max_peers: usize,
    /// Concurrent peers of a server with the same token. Default 1024. The same rule holds for further peers, between the
    /// addresses with this token. Fewer than `max_peers`, so that one token can't keep others out.
    pub max_peers_per_token: usize,
    /// Concurrent handshakes of a server. Default 64. A further handshake ends the oldest handshake of the address that
    /// has the most.
    pub max_handshakes: usize,
    /// Concurrent operations of a peer. Default 16. Further operations wait at the peer.
    pub max_exchanges_per_peer: u32,
    /// Bytes in flight of a transfer, and so its memory before the reader takes them. Throughput is at most this per
    /// round trip. Default 16 MiB (160 MB/s at 100 ms).
    pub stream_window_bytes: u32,
    /// As `stream_window_bytes`, for all transfers of a connection together: what a client receives, and what both ends
    /// send. Default 64 MiB.
    pub connection_window_bytes: u32,
    /// Bytes in flight to a server of all connections with the same token together, beyond 64 KiB for each connection.
    /// Default 128 MiB. A new connection gets an eighth of the rest, and at most `stream_window_bytes`.
    pub token_window_bytes: u32,
    /// Bytes of pieces in a server's memory for all connections with the same token. Default 256 MiB. Further pieces
    /// wait.
    pub token_piece_bytes: u32,
    /// Bytes of request headers in a server's memory for all connections with the same token. Default 16 MiB. Further
    /// requests wait.
    pub token_header_bytes: u32,
    /// Time for an address to answer and for both ends to verify each other. Default 10 s.
    pub connect_timeout: Duration,
    /// Time from the opening of a stream to the arrival of its first bytes, which say how long the request header is, and
    /// again for the header itself. Default 10 s.
    pub header_timeout: Duration,
    /// Longest time of a transfer without progress. Default 30 s.
    pub stall_timeout: Duration,
    /// Silence after which the other end counts as dead. Default 20 s. It must exceed `keep_alive`.
    pub idle_timeout: Duration,
    /// Interval between keep-alive packets of a silent connection. Default 5 s. Home routers drop silent connections
    /// after 30 s.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_header_bytes: 1 << 20,
            max_peers: 1152,
            max_peers_per_token: 1024,
            max_handshakes: 64,
            max_exchanges_per_peer: 16,
            stream_window_bytes: 16 << 20,
            connection_window_bytes: 64 << 20,
            token_window_bytes: 128 << 20,
            token_piece_bytes: 256 << 20,
            token_header_bytes: 16 << 20,
            connect_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(20),
            keep_alive: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// The default limits for this many peers with one token, and an eighth more with other tokens.
    #[must_use]
    pub fn for_peers(peers: usize) -> Self {
        let max_peers = peers.saturating_add((peers / 8).max(8));
        Self { max_peers, max_peers_per_token: peers, ..Self::default() }
    }

    /// Checks that the values are valid together.
    ///
    /// # Errors
    /// [`NetError::Setting`] with the name of the first invalid value.
    pub fn check(&self) -> Result<(), NetError> {
        let counts = [
            ("max_header_bytes", u64::from(self.max_header_bytes)),
            ("max_peers", u64::try_from(self.max_peers).unwrap_or(u64::MAX)),
            ("max_peers_per_token", u64::try_from(self.max_peers_per_token).unwrap_or(u64::MAX)),
            ("max_handshakes", u64::try_from(self.max_handshakes).unwrap_or(u64::MAX)),
            ("max_exchanges_per_peer", self.max_exchanges_per_peer.into()),
            ("stream_window_bytes", self.stream_window_bytes.into()),
            ("connection_window_bytes", self.connection_window_bytes.into()),
            ("token_window_bytes", self.token_window_bytes.into()),
            ("token_piece_bytes", self.token_piece_bytes.into()),
            ("token_header_bytes", self.token_header_bytes.into()),
        ];
        for (what, value) in counts {
            // A larger value would not limit anything.
            if !(1..1 << 30).contains(&value) {
                let reason = "it must be positive and below 2^30";
                return Err(NetError::Setting { what, value: value.to_string(), reason });
            }
        }
        if self.idle_timeout <= self.keep_alive {
            let value = format!("{} s", self.idle_timeout.as_secs_f64());
            return Err(NetError::Setting {
                what: "idle_timeout",
                value,
                reason: "it must be longer than keep_alive, or live connections count as dead",
            });
        }
        Ok(())
    }
}
