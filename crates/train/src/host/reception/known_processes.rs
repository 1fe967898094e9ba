//! The processes that have said hello.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;

use dipaco_sync::ProcessId;
use tokio_util::sync::CancellationToken;

/// Number of remembered processes from which on a process is forgotten when its connection ends. A forgotten process that
/// comes back is a new one: it gets new leases.
const REMEMBERED: usize = 1 << 16;
/// Processes of one token and name that are remembered. Two machines may have the same name by mistake: a replaced
/// process that comes back and is known does not replace its successor.
const KIN: usize = 8;

/// The processes that have said hello, each with its last connection.
#[derive(Debug, Default)]
pub(super) struct KnownProcesses {
    processes: BTreeMap<ProcessId, LastConnection>,
    hellos: u64,
}

#[derive(Debug)]
struct LastConnection {
    /// Number of its hello.
    hello: u64,
    /// Cancelled when a newer connection takes the place of this one.
    replaced: CancellationToken,
}

/// The outcome of registering a connection.
pub(crate) struct Registration {
    /// True if the process has been here before.
    pub(crate) returning: bool,
    /// Cancelled when a newer connection takes the place of this one.
    pub(crate) replaced: CancellationToken,
}

impl KnownProcesses {
    /// Registers a process and ends the connections that this one succeeds: the process's own, and those of earlier
    /// processes under its token and name. An earlier process may be long dead before the network notices.
    pub(super) fn register(&mut self, process: &ProcessId) -> Registration {
        self.hellos += 1;
        let replaced = CancellationToken::new();
        let connection = LastConnection { hello: self.hellos, replaced: replaced.clone() };
        let before = self.processes.insert(process.clone(), connection);
        let returning = before.is_some();
        match before {
            Some(before) => before.replaced.cancel(),
            None => self.replace_kin(process),
        }
        Registration { returning, replaced }
    }

    /// Ends the connections of the earlier processes of a new one, and forgets the earliest if there are too many.
    fn replace_kin(&mut self, process: &ProcessId) {
        let earlier = self.kin(process).filter(|(kin, _)| process.replaces(kin));
        earlier.for_each(|(_, connection)| connection.replaced.cancel());
        let earliest = self.kin(process).min_by_key(|(_, connection)| connection.hello);
        if self.kin(process).count() > KIN
            && let Some(earliest) = earliest.map(|(process, _)| process.clone())
        {
            self.processes.remove(&earliest);
        }
    }

    /// The processes of a token and name.
    fn kin(&self, process: &ProcessId) -> Range<'_, ProcessId, LastConnection> {
        let of_worker = |instance| ProcessId { instance, ..process.clone() };
        self.processes.range(of_worker(0)..=of_worker(u64::MAX))
    }

    /// Notes the end of a process's connection, and forgets the process and its replaced kin if too many are remembered.
    /// Returns false if a newer connection has taken the place of this one.
    pub(super) fn left(&mut self, process: &ProcessId, replaced: &CancellationToken) -> bool {
        if replaced.is_cancelled() {
            return false;
        }
        if self.processes.len() > REMEMBERED {
            self.processes.remove(process);
            let over = self.kin(process).filter(|(_, connection)| connection.replaced.is_cancelled());
            let over: Vec<_> = over.map(|(process, _)| process.clone()).collect();
            for process in over {
                self.processes.remove(&process);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: impl ToString, instance: u64) -> ProcessId {
        ProcessId { token: "token".to_owned(), name: name.to_string(), instance }
    }

    #[test]
    fn a_name_with_ever_new_processes_is_remembered_a_few_times() {
        let mut known = KnownProcesses::default();
        let other = known.register(&process("other", 0)).replaced;
        // Numbers of processes are random: the latest need not be the greatest.
        let instances = (0..1_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let processes: Vec<_> = instances.map(|instance| process("a", instance)).collect();
        let connections: Vec<_> = processes.iter().map(|process| known.register(process)).collect();
        assert!(connections.iter().all(|connection| !connection.returning));
        assert_eq!(known.processes.len(), 1 + KIN);
        // The end of a replaced connection is not the end of the worker.
        let ends = processes
            .iter()
            .zip(&connections)
            .map(|(process, connection)| known.left(process, &connection.replaced));
        let ends: Vec<_> = ends.collect();
        assert!(ends[..999].iter().all(|end| !end) && ends[999] && !other.is_cancelled());
    }

    #[test]
    fn names_that_come_and_go_are_forgotten() {
        let mut known = KnownProcesses::default();
        for name in 0..REMEMBERED {
            let [earlier, later] = [1, 2].map(|instance| known.register(&process(name, instance)).replaced);
            assert!(!known.left(&process(name, 1), &earlier));
            assert!(known.left(&process(name, 2), &later));
        }
        assert!(known.processes.len() <= REMEMBERED + KIN, "{}", known.processes.len());
    }

    #[test]
    fn two_machines_of_one_name_do_not_replace_each_other_for_ever() {
        let mut known = KnownProcesses::default();
        let first = known.register(&process("a", 1));
        let second = known.register(&process("a", 2));
        assert!(first.replaced.is_cancelled());
        let again = known.register(&process("a", 1));
        assert!(again.returning && !second.replaced.is_cancelled());
        // A connection ends the one before it of the same process.
        assert!(known.register(&process("a", 1)).returning);
        assert!(again.replaced.is_cancelled() && !second.replaced.is_cancelled());
    }
}
