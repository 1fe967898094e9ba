//! What all connections of a process share: the processes that have said hello, limits of log lines, and counted bugs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dipaco_net::RareWarning;
use dipaco_sync::ProcessId;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::host::HostError;
use crate::host::peer::{Peer, Role};

/// Number of remembered processes from which on a process is forgotten when its connection ends. A forgotten process that
/// comes back is a new one: it gets new leases.
const REMEMBERED: usize = 1 << 16;

/// State that the connections of a process share.
#[derive(Debug, Default)]
pub(crate) struct Reception {
    known: Mutex<BTreeMap<ProcessId, CancellationToken>>,
    /// Warnings that a peer can cause.
    pub(crate) warnings: RareWarning,
    bugs: AtomicU64,
    /// Fingerprint of the first worker's device.
    numerics: OnceLock<String>,
}

/// The outcome of registering a connection.
pub(crate) struct Registration {
    /// True if the process has been here before.
    pub(crate) returning: bool,
    /// Cancelled when a newer connection takes the place of this one.
    pub(crate) replaced: CancellationToken,
}

impl Reception {
    fn known(&self) -> MutexGuard<'_, BTreeMap<ProcessId, CancellationToken>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a process and ends the connections that this one succeeds: the process's own, and those of earlier
    /// processes under its token and name. An earlier process may be long dead before the network notices.
    pub(crate) fn register(&self, peer: &Peer) -> Registration {
        let mut known = self.known();
        let replaced = CancellationToken::new();
        let before = known.insert(peer.process.clone(), replaced.clone());
        if let Some(before) = &before {
            before.cancel();
        } else {
            let of_worker = |instance| ProcessId { instance, ..peer.process.clone() };
            let processes = known.range(of_worker(0)..=of_worker(u64::MAX));
            processes
                .filter(|(process, _)| peer.process.replaces(process))
                .for_each(|(_, earlier)| earlier.cancel());
        }
        Registration { returning: before.is_some(), replaced }
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
            tracing::warn!(
                worker,
                numerics,
                first,
                "the results of this worker have other bits than those of the first worker"
            );
            return None;
        }
        Some(format!(
            "this device computes other bits ({numerics}) than the device of the first worker ({first}): use the same kind of \
             processor for all workers, force the same kernels with DIPACO_SIMD, or start the coordinator with train.numerics = \"any\""
        ))
    }

    /// Forgets a process whose connection has ended, if too many are remembered.
    pub(crate) fn left(&self, peer: &Peer) {
        let mut known = self.known();
        if known.len() > REMEMBERED {
            known.remove(&peer.process);
        }
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
