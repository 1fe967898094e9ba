//! The share of a server that the holders of one token have together: receive windows, and bytes in memory.
//!
//! Several processes may use one token, and a stranger may have copied it. All limits here hold for all of them
//! together. Another token has a share of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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

/// The shares of all tokens with live connections, or with memory that is still taken.
#[derive(Debug, Default)]
pub(crate) struct TokenShares {
    by_token: Mutex<BTreeMap<String, Weak<TokenShare>>>,
}

/// The share of one token. It lasts as long as a connection or memory of the token: a new share while memory of an old one is
/// taken would give the token more than its limit.
#[derive(Debug)]
pub(crate) struct TokenShare {
    token: String,
    shares: Arc<TokenShares>,
    /// Bytes of receive windows that the token has left.
    window_left: Mutex<u64>,
    /// Memory for headers of requests.
    headers: ByteBudget,
    /// Memory for pieces of transfers.
    pieces: ByteBudget,
}

/// Bytes that a token may have in memory at a time.
#[derive(Debug)]
struct ByteBudget {
    units: u32,
    free: Arc<Semaphore>,
}

/// A connection's part in the share of its token. A drop gives it back.
#[derive(Debug)]
pub(crate) struct ShareOfConnection {
    share: Arc<TokenShare>,
    window: u64,
}

/// Memory that a peer has taken from the share of its token. A drop frees it.
#[derive(Debug)]
pub struct PeerMemory {
    permits: Vec<OwnedSemaphorePermit>,
    share: Arc<TokenShare>,
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
        let share = self.share(token, limits);
        let window = share.take_window(limits);
        ShareOfConnection { share, window }
    }

    fn share(self: &Arc<Self>, token: String, limits: &Limits) -> Arc<TokenShare> {
        let mut by_token = self.by_token();
        if let Some(share) = by_token.get(&token).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(TokenShare::new(token.clone(), self.clone(), limits));
        by_token.insert(token, Arc::downgrade(&share));
        share
    }

    fn by_token(&self) -> MutexGuard<'_, BTreeMap<String, Weak<TokenShare>>> {
        self.by_token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenShare {
    fn new(token: String, shares: Arc<TokenShares>, limits: &Limits) -> Self {
        Self {
            token,
            shares,
            window_left: Mutex::new(limits.token_window_bytes.into()),
            headers: ByteBudget::new(limits.token_header_bytes),
            pieces: ByteBudget::new(limits.token_piece_bytes),
        }
    }

    fn window_left(&self) -> MutexGuard<'_, u64> {
        self.window_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the receive window of a connection beyond the base, and returns its bytes.
    fn take_window(&self, limits: &Limits) -> u64 {
        let mut left = self.window_left();
        let window = (*left / WINDOW_PART).min(limits.stream_window_bytes.into());
        *left -= window;
        window
    }
}

impl Drop for TokenShare {
    fn drop(&mut self) {
        let mut by_token = self.shares.by_token();
        // A connection may have begun another share since the last holder of this one let it go.
        if by_token.get(&self.token).is_some_and(|share| share.strong_count() == 0) {
            by_token.remove(&self.token);
        }
    }
}

impl ByteBudget {
    fn new(bytes: u32) -> Self {
        let units = u32::try_from(u64::from(bytes).div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        Self { units, free: Arc::new(Semaphore::new(units as usize)) }
    }

    /// Waits until this many bytes fit into memory. `None` only if the semaphore is closed, and nothing closes it.
    async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
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
        *self.share.window_left() += self.window;
    }
}

impl PeerMemory {
    /// No memory yet, in this share.
    pub(crate) fn of(share: Arc<TokenShare>) -> Self {
        Self { permits: Vec::new(), share }
    }

    /// Waits until there is memory for a header of so many bytes, and takes it.
    pub(crate) async fn take_header(&mut self, bytes: u64) {
        self.permits.extend(self.share.headers.take(bytes).await);
    }

    /// Waits until there is memory for a piece of so many bytes, and takes it.
    pub(crate) async fn take_piece(&mut self, bytes: u64) {
        self.permits.extend(self.share.pieces.take(bytes).await);
    }

    /// All of this memory. Nothing is left here.
    pub(crate) fn split_off(&mut self) -> Self {
        Self { permits: std::mem::take(&mut self.permits), share: self.share.clone() }
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
