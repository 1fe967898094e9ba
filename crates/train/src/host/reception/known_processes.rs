//! The processes that have said hello.
//!
//! A process takes nothing from a live one. Holders of one token may give each other's names, so a name proves nothing, and
//! the leases of a process pass to nobody while its connection is open. A process that was killed is silent. When another
//! one joins under the same token and name, the host listens to it for longer than a live one is silent, and ends its
//! connection: from then on the other process is its successor.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::sync::Arc;

use dipaco_sync::ProcessId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Number of remembered processes from which on a process is forgotten when its connection ends. A forgotten process that
/// comes back is a new one: it gets new leases.
const REMEMBERED: usize = 1 << 16;

/// The processes that have said hello, each with its last connection: those with an open connection, and the last one of
/// each name without.
#[derive(Debug, Default)]
pub(super) struct KnownProcesses {
    processes: BTreeMap<ProcessId, LastConnection>,
}

#[derive(Debug)]
struct LastConnection {
    /// False after its end.
    open: bool,
    /// Cancelled when a newer connection of the process takes the place of this one.
    replaced: CancellationToken,
    doubted: Arc<Notify>,
}

/// The outcome of registering a connection.
pub(crate) struct Registration {
    /// True if the process has been here before.
    pub(crate) returning: bool,
    /// Cancelled when a newer connection of the process takes the place of this one.
    pub(crate) replaced: CancellationToken,
    /// Notified when another process joins under the token and name: this one may be dead.
    pub(crate) doubted: Arc<Notify>,
    /// Earlier processes under the same token and name whose connections have ended. This process succeeds them.
    pub(crate) gone: Vec<ProcessId>,
}

/// The outcome of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The process has a newer connection.
    Returned,
    /// The process may come back to its leases.
    Alone,
    /// Another process under the same token and name is here, and succeeds this one.
    Succeeded,
}

impl KnownProcesses {
    /// Registers a process and ends its own earlier connection.
    pub(super) fn register(&mut self, process: &ProcessId) -> Registration {
        let (replaced, doubted) = (CancellationToken::new(), Arc::new(Notify::new()));
        let connection = LastConnection { open: true, replaced: replaced.clone(), doubted: doubted.clone() };
        let before = self.processes.insert(process.clone(), connection);
        if let Some(before) = &before {
            before.replaced.cancel();
        }
        let ended = self.kin(process).filter(|(_, connection)| !connection.open);
        let gone: Vec<_> = ended.map(|(kin, _)| kin.clone()).collect();
        for kin in &gone {
            self.processes.remove(kin);
        }
        for (_, connection) in self.kin(process).filter(|(kin, _)| *kin != process) {
            connection.doubted.notify_one();
        }
        Registration { returning: before.is_some(), replaced, doubted, gone }
    }

    /// The processes of a token and name.
    fn kin(&self, process: &ProcessId) -> Range<'_, ProcessId, LastConnection> {
        let of_worker = |instance| ProcessId { instance, ..process.clone() };
        self.processes.range(of_worker(0)..=of_worker(u64::MAX))
    }

    /// Notes the end of a process's connection. Forgets the process if it has a successor, or if too many are remembered.
    pub(super) fn left(&mut self, process: &ProcessId, replaced: &CancellationToken) -> Departure {
        if replaced.is_cancelled() {
            return Departure::Returned;
        }
        let succeeded = self.kin(process).any(|(kin, connection)| connection.open && kin != process);
        if succeeded || self.processes.len() > REMEMBERED {
            self.processes.remove(process);
        } else if let Some(connection) = self.processes.get_mut(process) {
            connection.open = false;
        }
        if succeeded { Departure::Succeeded } else { Departure::Alone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: impl ToString, instance: u64) -> ProcessId {
        ProcessId { token: "token".to_owned(), name: name.to_string(), instance }
    }

    #[test]
    fn processes_under_the_name_of_a_live_one_take_nothing_from_it() {
        let mut known = KnownProcesses::default();
        let victim = known.register(&process("a", u64::MAX / 2));
        // Numbers of processes are random: the latest need not be the greatest.
        for number in 1..1_000_u64 {
            let thief = process("a", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let connection = known.register(&thief);
            assert!(!connection.returning && connection.gone.is_empty());
            assert_eq!(known.left(&thief, &connection.replaced), Departure::Succeeded);
        }
        assert!(!victim.replaced.is_cancelled());
        assert_eq!(known.processes.len(), 1);
        assert!(known.register(&process("a", u64::MAX / 2)).returning);
    }

    #[test]
    fn a_process_is_succeeded_when_its_connection_has_ended() {
        let mut known = KnownProcesses::default();
        // The connection ends after the hello of the next process, and before.
        let first = known.register(&process("a", 3));
        assert!(known.register(&process("a", 2)).gone.is_empty());
        assert_eq!(known.left(&process("a", 3), &first.replaced), Departure::Succeeded);
        let second = known.register(&process("a", 2));
        assert!(second.returning);
        assert_eq!(known.left(&process("a", 2), &second.replaced), Departure::Alone);
        // Another token or name succeeds nobody.
        let other = ProcessId { token: "other".to_owned(), ..process("a", 1) };
        assert!(known.register(&other).gone.is_empty() && known.register(&process("b", 1)).gone.is_empty());
        let third = known.register(&process("a", 1));
        assert_eq!((third.returning, third.gone), (false, vec![process("a", 2)]));
        assert!(!known.register(&process("a", 3)).returning, "whoever has been succeeded is new");
    }

    #[test]
    fn a_connection_ends_the_one_before_it_of_the_same_process() {
        let mut known = KnownProcesses::default();
        let [first, second] = [1, 2].map(|instance| known.register(&process("a", instance)));
        let again = known.register(&process("a", 1));
        assert!(again.returning && first.replaced.is_cancelled() && !second.replaced.is_cancelled());
        assert_eq!(known.left(&process("a", 1), &first.replaced), Departure::Returned);
        assert!(!again.replaced.is_cancelled());
    }

    #[test]
    fn names_that_come_and_go_are_forgotten() {
        let mut known = KnownProcesses::default();
        for name in 0..2 * REMEMBERED {
            let [earlier, later] = [1, 2].map(|instance| known.register(&process(name, instance)).replaced);
            assert_eq!(known.left(&process(name, 1), &earlier), Departure::Succeeded);
            assert_eq!(known.left(&process(name, 2), &later), Departure::Alone);
        }
        assert!(known.processes.len() <= REMEMBERED + 1, "{}", known.processes.len());
    }
}
