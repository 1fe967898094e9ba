//! What one end takes from the other.

use std::time::Duration;

use crate::NetError;

/// Bounds on memory and time; the defaults suit links from loopback to a continent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest header in bytes. Default 1 MiB. A larger one is refused before it is read.
    pub max_header_bytes: u32,
    /// Peers that a server keeps at a time. Default 1024. More are refused and told so.
    pub max_peers: usize,
    /// Handshakes that a server has in progress at a time. Default 64. More are turned away.
    pub max_handshakes: usize,
    /// Operations that one peer may have open at a time. Default 64. Further ones wait at the peer.
    pub max_exchanges_per_peer: u32,
    /// Bytes that one transfer may have in flight, and so the memory that it takes before it is read: throughput is
    /// at most this per round trip. Default 16 MiB (160 MB/s at 100 ms).
    pub stream_window_bytes: u32,
    /// As `stream_window_bytes`, over all transfers of one connection. Default 64 MiB.
    pub connection_window_bytes: u32,
    /// Time for one address to answer and for both ends to verify each other. Default 10 s.
    pub connect_timeout: Duration,
    /// Time for a request's header to arrive once its stream is open. Default 10 s.
    pub header_timeout: Duration,
    /// Time in which a transfer must make some progress. Default 30 s.
    pub stall_timeout: Duration,
    /// Silence after which the other end counts as gone. Default 20 s. Must exceed `keep_alive`.
    pub idle_timeout: Duration,
    /// A silent connection sends a sign of life this often. Default 5 s. Home routers forget silent ones in 30 s.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_header_bytes: 1 << 20,
            max_peers: 1024,
            max_handshakes: 64,
            max_exchanges_per_peer: 64,
            stream_window_bytes: 16 << 20,
            connection_window_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(20),
            keep_alive: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Whether the values can work together.
    ///
    /// # Errors
    /// [`NetError::Setting`] with the name of the value that can't.
    pub fn check(&self) -> Result<(), NetError> {
        let positive = [
            ("max_header_bytes", u64::from(self.max_header_bytes)),
            ("max_peers", self.max_peers as u64),
            ("max_handshakes", self.max_handshakes as u64),
            ("max_exchanges_per_peer", self.max_exchanges_per_peer.into()),
            ("stream_window_bytes", self.stream_window_bytes.into()),
            ("connection_window_bytes", self.connection_window_bytes.into()),
        ];
        for (what, value) in positive {
            if value == 0 {
                return Err(NetError::Setting {
                    what,
                    value: value.to_string(),
                    reason: "it must be positive",
                });
            }
        }
        if self.idle_timeout <= self.keep_alive {
            let value = format!("{} s", self.idle_timeout.as_secs_f64());
            return Err(NetError::Setting {
                what: "idle_timeout",
                value,
                reason: "it must be longer than keep_alive, or live connections count as gone",
            });
        }
        Ok(())
    }
}
