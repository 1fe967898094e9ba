//! The share of a server that the holders of one token have together: receive windows, and bytes in memory.
//!
//! Several processes may use one token, and a stranger may have copied it. All limits here hold for all of them
//! together. Another token has a share of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Limits;

/// Receive window of every connection in bytes. Larger windows come from the token's share.
pub(crate) const BASE_WINDOW_BYTES: u32 = 64 << 10;
/// A connection gets this part of the windows that its token has left, so that later connections get some too.
const WINDOW_PART: u64 = 8;
/// Permits count bytes in these units.
const UNIT_BYTES: u64 = 1 << 10;
/// Memory that quinn may hold for the fragments of one stream beyond its window, in bytes.
const FRAGMENTS_PER_STREAM: u64 = 32 << 10;
/// A decoded header takes at most this many times its bytes.
const DECODED: u64 = 4;

/// The shares of all tokens with live connections.
#[derive(Debug, Default)]
pub(crate) struct TokenShares {
    by_token: Mutex<BTreeMap<String, Arc<TokenShare>>>,
}

/// The share of one token.
#[derive(Debug)]
pub(crate) struct TokenShare {
    held: Mutex<Held>,
    /// Memory for headers of requests.
    pub(crate) headers: ByteBudget,
    /// Memory for pieces of transfers.
    pub(crate) pieces: ByteBudget,
}

/// Connections of a token, and the receive windows that it has left.
#[derive(Debug)]
struct Held {
    connections: usize,
    window_left: u64,
}

/// Bytes that a token may have in memory at a time.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    units: u32,
    free: Arc<Semaphore>,
}

/// A connection's part in the share of its token. A drop gives it back.
#[derive(Debug)]
pub(crate) struct ShareOfConnection {
    token: String,
    shares: Arc<TokenShares>,
    share: Arc<TokenShare>,
    window: u64,
}

impl Limits {
    /// Upper bound on the memory that one token can hold here through `connections` connections, in bytes. It counts
    /// receive windows, fragments that wait for earlier bytes, headers and pieces.
    #[must_use]
    pub fn token_memory(&self, connections: u64) -> u64 {
        let streams = u64::from(self.max_exchanges_per_peer) * FRAGMENTS_PER_STREAM;
        connections * (u64::from(BASE_WINDOW_BYTES) + streams)
            + u64::from(self.token_window_bytes)
            + u64::from(self.token_header_bytes) * DECODED
            + u64::from(self.token_piece_bytes)
    }
}

impl TokenShares {
    /// Takes a connection's part in the share of `token`.
    pub(crate) fn join(self: &Arc<Self>, token: String, limits: &Limits) -> ShareOfConnection {
        let mut by_token = self.by_token();
        let share =
            by_token.entry(token.clone()).or_insert_with(|| Arc::new(TokenShare::new(limits))).clone();
        let window = share.take_window(limits);
        ShareOfConnection { token, shares: self.clone(), share, window }
    }

    fn by_token(&self) -> MutexGuard<'_, BTreeMap<String, Arc<TokenShare>>> {
        self.by_token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenShare {
    fn new(limits: &Limits) -> Self {
        Self {
            held: Mutex::new(Held { connections: 0, window_left: limits.token_window_bytes.into() }),
            headers: ByteBudget::new(limits.token_header_bytes),
            pieces: ByteBudget::new(limits.token_piece_bytes),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection and returns its receive window beyond the base, in bytes.
    fn take_window(&self, limits: &Limits) -> u64 {
        let mut held = self.held();
        let window = (held.window_left / WINDOW_PART).min(limits.stream_window_bytes.into());
        held.connections += 1;
        held.window_left -= window;
        window
    }
}

impl ByteBudget {
    fn new(bytes: u32) -> Self {
        let units = u32::try_from(u64::from(bytes).div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        Self { units, free: Arc::new(Semaphore::new(units as usize)) }
    }

    /// Waits until this many bytes fit into memory. `None` only if the semaphore is closed, and nothing closes it.
    pub(crate) async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        // Something larger than the budget has to wait for all of it.
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units);
        self.free.clone().acquire_many_owned(units).await.ok()
    }
}

impl ShareOfConnection {
    pub(crate) fn share(&self) -> &Arc<TokenShare> {
        &self.share
    }

    /// Receive window of the connection in bytes.
    pub(crate) fn window(&self) -> u64 {
        u64::from(BASE_WINDOW_BYTES) + self.window
    }
}

impl Drop for ShareOfConnection {
    fn drop(&mut self) {
        // The map first, as in `join`: a share that is removed here gets no new connection meanwhile.
        let mut by_token = self.shares.by_token();
        let last = {
            let mut held = self.share.held();
            held.connections -= 1;
            held.window_left += self.window;
            held.connections == 0
        };
        if last {
            by_token.remove(&self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_with_1024_connections_stays_under_a_gibibyte() {
        assert!(Limits::default().token_memory(1024) <= 1 << 30);
    }

    #[test]
    fn windows_of_all_connections_of_a_token_stay_within_its_share() {
        let limits = Limits::default();
        let shares = Arc::new(TokenShares::default());
        let held: Vec<_> =
            (0..limits.max_peers_per_token).map(|_| shares.join("a.worker".to_owned(), &limits)).collect();
        let beyond: u64 = held.iter().map(|share| share.window() - u64::from(BASE_WINDOW_BYTES)).sum();
        assert!(beyond <= limits.token_window_bytes.into());
        // Another token is not affected, and the first connection of a token has room for eight pieces of 2 MiB.
        assert!(shares.join("b.worker".to_owned(), &limits).window() >= 16 << 20);
        drop(held);
        assert!(shares.by_token().is_empty());
    }
}
