//! What all connections of a process share: the processes that have said hello, limits of log lines, and counted bugs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use dipaco_net::RareWarning;
use dipaco_sync::ProcessId;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::host::HostError;
use crate::host::peer::{Peer, Role};

mod known_processes;
mod peer_lines;

use known_processes::KnownProcesses;
pub(crate) use known_processes::Registration;
use peer_lines::PeerLines;

/// State that the connections of a process share.
#[derive(Debug, Default)]
pub(crate) struct Reception {
    known: Mutex<KnownProcesses>,
    /// Warnings that a peer can cause.
    pub(crate) warnings: RareWarning,
    /// Lines that an honest peer causes now and then, and another as often as it likes.
    lines: PeerLines,
    bugs: AtomicU64,
    /// Fingerprint of the first worker's device.
    numerics: OnceLock<String>,
}

impl Reception {
    fn known(&self) -> MutexGuard<'_, KnownProcesses> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the connection of a peer and ends those that it succeeds.
    pub(crate) fn register(&self, peer: &Peer) -> Registration {
        self.known().register(&peer.process)
    }

    /// Notes the end of a connection. Returns false if a newer connection has taken the place of this one.
    pub(crate) fn left(&self, peer: &Peer, replaced: &CancellationToken) -> bool {
        self.known().left(&peer.process, replaced)
    }

    /// Returns whether a line that a process causes may be written to the log now.
    pub(crate) fn may_log(&self, process: &ProcessId) -> bool {
        self.lines.allow(&process.token, Instant::now())
    }

    /// The refusal of a worker whose device computes other bits than that of the first worker; `None` if it may join.
    pub(crate) fn other_numerics(&self, peer: &Peer, any: bool) -> Option<String> {
        if peer.role != Role::Worker {
            return None;
        }
        let first = self.numerics.get_or_init(|| peer.numerics.clone());
        if peer.numerics == *first {
            return None;
        }
        let (worker, numerics) = (&peer.process.name, &peer.numerics);
        if any {
            if self.may_log(&peer.process) {
                tracing::warn!(
                    worker,
                    numerics,
                    first,
                    "the results of this worker have other bits than those of the first worker"
                );
            }
            return None;
        }
        Some(format!(
            "this device computes other bits ({numerics}) than the device of the first worker ({first}): use the same kind of \
             processor for all workers, force the same kernels with DIPACO_SIMD, or start the coordinator with train.numerics = \"any\""
        ))
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
