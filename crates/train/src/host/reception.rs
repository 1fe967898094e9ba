//! What all connections of a process share: the processes that have said hello, limits of log lines, and counted bugs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dipaco_ledger::{Arrival, ConnectionNumber, Departure, KnownProcesses};
use dipaco_net::RareWarning;
use dipaco_sync::ProcessId;
use tokio::sync::Notify;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::host::HostError;
use crate::host::peer::Peer;

mod peer_lines;

use peer_lines::PeerLines;

/// State that the connections of a process share.
#[derive(Debug, Default)]
pub(crate) struct Reception {
    known: Mutex<KnownProcesses<OpenConnection>>,
    /// Warnings that a peer can cause.
    pub(crate) warnings: RareWarning,
    /// Lines that an honest peer causes now and then, and another as often as it likes.
    lines: PeerLines,
    bugs: AtomicU64,
}

/// The signals to the task of a connection.
#[derive(Clone, Debug, Default)]
struct OpenConnection {
    replaced: CancellationToken,
    doubted: Arc<Notify>,
}

/// A registered connection.
pub(crate) struct Registration {
    pub(crate) number: ConnectionNumber,
    /// True if this connection takes the place of an open one of the process.
    pub(crate) returning: bool,
    /// Cancelled when a newer connection of the process takes the place of this one.
    pub(crate) replaced: CancellationToken,
    /// Notified when another process joins under the token and name: this one may be dead.
    pub(crate) doubted: Arc<Notify>,
    /// Earlier processes under the same token and name whose connections have ended. This process succeeds them.
    pub(crate) gone: Vec<ProcessId>,
}

impl Reception {
    fn known(&self) -> MutexGuard<'_, KnownProcesses<OpenConnection>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the connection of a peer and ends the earlier one of the same process.
    pub(crate) fn register(&self, peer: &Peer) -> Registration {
        let OpenConnection { replaced, doubted } = OpenConnection::default();
        let handle = OpenConnection { replaced: replaced.clone(), doubted: doubted.clone() };
        let mut known = self.known();
        let arrival = known.register(&peer.process, handle);
        // Before anybody else registers or leaves.
        arrival.doubted.iter().for_each(|other| other.doubted.notify_one());
        if let Some(earlier) = &arrival.replaced {
            earlier.replaced.cancel();
        }
        drop(known);
        let Arrival { number, returning, gone, .. } = arrival;
        Registration { number, returning, replaced, doubted, gone }
    }

    /// Notes the end of a connection.
    pub(crate) fn left(&self, peer: &Peer, number: ConnectionNumber) -> Departure {
        self.known().left(&peer.process, number)
    }

    /// Returns whether a line that a process causes may be written to the log now.
    pub(crate) fn may_log(&self, process: &ProcessId) -> bool {
        self.lines.allow(&process.token, Instant::now())
    }

    /// Requests and connections that have ended in a panic.
    pub(crate) fn bugs(&self) -> u64 {
        self.bugs.load(Ordering::Relaxed)
    }

    /// Logs and counts a panic in this program. An error ends the process: `broken` is true if the panic left its state half
    /// changed.
    pub(crate) fn bug(&self, peer: &str, failure: JoinError, broken: bool) -> Result<(), HostError> {
        if !failure.is_panic() {
            return Err(failure.into());
        }
        let bugs = self.bugs.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::error!(
            peer,
            bugs,
            "this is a bug of dipaco: a request ended in a panic, and its connection is closed"
        );
        if broken { Err(HostError::Broken) } else { Ok(()) }
    }
}
