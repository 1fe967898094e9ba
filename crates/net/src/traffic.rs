//! Counters of bytes and operations.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn::ConnectionStats;

/// Bytes and operations of one end since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Started operations.
    pub exchanges: u64,
    /// Bytes of payloads sent.
    pub payload_sent: u64,
    /// Bytes of payloads received.
    pub payload_received: u64,
    /// Bytes sent in UDP datagrams: payloads, headers, encryption, retransmissions and acknowledgements.
    pub udp_sent: u64,
    /// Bytes received in UDP datagrams.
    pub udp_received: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.exchanges += other.exchanges;
        self.payload_sent += other.payload_sent;
        self.payload_received += other.payload_received;
        self.udp_sent += other.udp_sent;
        self.udp_received += other.udp_received;
    }
}

impl Traffic {
    pub(crate) fn add_connection(&mut self, stats: &ConnectionStats) {
        self.udp_sent += stats.udp_tx.bytes;
        self.udp_received += stats.udp_rx.bytes;
    }
}

/// Counters of the streams of an end. The connections count datagrams.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    exchanges: AtomicU64,
    payload_sent: AtomicU64,
    payload_received: AtomicU64,
}

impl Counters {
    pub(crate) fn exchange(&self) {
        self.exchanges.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.payload_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.payload_received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Traffic {
        Traffic {
            exchanges: self.exchanges.load(Ordering::Relaxed),
            payload_sent: self.payload_sent.load(Ordering::Relaxed),
            payload_received: self.payload_received.load(Ordering::Relaxed),
            ..Traffic::default()
        }
    }
}
