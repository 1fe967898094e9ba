//! The processes that have said hello.
//!
//! A process takes nothing from a live one. Holders of one token may give each other's names, so a name proves nothing, and
//! the leases of a process pass to nobody while its connection is open. A process that was killed is silent. When another
//! one joins under the same token and name, the host listens to it for longer than a live one is silent, and ends its
//! connection: from then on the other process is its successor.
//!
//! The host gives a handle of each connection, and gets back the handles of those that it has to end or to doubt.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;

use dipaco_sync::ProcessId;

/// Number of remembered processes from which on a process is forgotten when its connection ends. A forgotten process that
/// comes back is a new one: it gets new leases.
const REMEMBERED: usize = 1 << 16;

/// The processes that have said hello, each with its last connection: those with an open connection, and the last one of
/// each name without. `C` is the host's handle of a connection.
#[derive(Debug)]
pub struct KnownProcesses<C> {
    processes: BTreeMap<ProcessId, LastConnection<C>>,
    /// Number of the last connection.
    last: u64,
}

#[derive(Debug)]
struct LastConnection<C> {
    number: ConnectionNumber,
    /// False after its end.
    open: bool,
    handle: C,
}

/// Tells a connection from all others at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionNumber(u64);

/// The outcome of registering a connection.
#[derive(Debug)]
pub struct Arrival<C> {
    /// Number of the connection, for [`KnownProcesses::left`].
    pub number: ConnectionNumber,
    /// True if this connection takes the place of an open one of the process: nobody has noted that the process left.
    pub returning: bool,
    /// The earlier connection of the process. The new one takes its place, so the host ends it.
    pub replaced: Option<C>,
    /// Open connections of other processes under the token and name. They may be dead, so the host listens to them.
    pub doubted: Vec<C>,
    /// Earlier processes under the same token and name whose connections have ended. This process succeeds them.
    pub gone: Vec<ProcessId>,
}

/// The outcome of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The process has a newer connection.
    Returned,
    /// The process may come back to its leases.
    Alone,
    /// Another process under the same token and name is here, and succeeds this one.
    Succeeded,
}

impl<C> Default for KnownProcesses<C> {
    fn default() -> Self {
        Self { processes: BTreeMap::new(), last: 0 }
    }
}

impl<C: Clone> KnownProcesses<C> {
    /// Registers a connection of a process.
    pub fn register(&mut self, process: &ProcessId, handle: C) -> Arrival<C> {
        self.last += 1;
        let number = ConnectionNumber(self.last);
        let connection = LastConnection { number, open: true, handle };
        let before = self.processes.insert(process.clone(), connection);
        let ended = self.kin(process).filter(|(_, connection)| !connection.open);
        let gone: Vec<_> = ended.map(|(kin, _)| kin.clone()).collect();
        for kin in &gone {
            self.processes.remove(kin);
        }
        let others = self.kin(process).filter(|(kin, _)| *kin != process);
        let doubted = others.map(|(_, connection)| connection.handle.clone()).collect();
        let returning = before.as_ref().is_some_and(|before| before.open);
        Arrival { number, returning, replaced: before.map(|before| before.handle), doubted, gone }
    }

    /// The processes of a token and name.
    fn kin(&self, process: &ProcessId) -> Range<'_, ProcessId, LastConnection<C>> {
        let of_worker = |instance| ProcessId { instance, ..process.clone() };
        self.processes.range(of_worker(0)..=of_worker(u64::MAX))
    }

    /// Notes the end of a process's connection. Forgets the process if it has a successor, or if too many are remembered.
    pub fn left(&mut self, process: &ProcessId, number: ConnectionNumber) -> Departure {
        if self.processes.get(process).is_none_or(|connection| connection.number != number) {
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
        known.register(&process("a", u64::MAX / 2), "victim");
        // Numbers of processes are random: the latest need not be the greatest.
        for number in 1..1_000_u64 {
            let thief = process("a", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let Arrival { number, returning, replaced, doubted, gone } = known.register(&thief, "thief");
            assert_eq!((returning, replaced, gone), (false, None, Vec::new()));
            assert_eq!(doubted, ["victim"], "the host listens to it, and it is alive");
            assert_eq!(known.left(&thief, number), Departure::Succeeded);
        }
        assert_eq!(known.processes.len(), 1);
        assert!(known.register(&process("a", u64::MAX / 2), "victim").returning);
    }

    #[test]
    fn a_process_is_succeeded_when_its_connection_has_ended() {
        let mut known = KnownProcesses::default();
        // The connection ends after the hello of the next process, and before.
        let first = known.register(&process("a", 3), ());
        assert!(known.register(&process("a", 2), ()).gone.is_empty());
        assert_eq!(known.left(&process("a", 3), first.number), Departure::Succeeded);
        let second = known.register(&process("a", 2), ());
        assert!(second.returning);
        assert_eq!(known.left(&process("a", 2), second.number), Departure::Alone);
        // Another token or name succeeds nobody.
        let other = ProcessId { token: "other".to_owned(), ..process("a", 1) };
        assert!(
            known.register(&other, ()).gone.is_empty()
                && known.register(&process("b", 1), ()).gone.is_empty()
        );
        let third = known.register(&process("a", 1), ());
        assert_eq!((third.returning, third.gone), (false, vec![process("a", 2)]));
        assert!(!known.register(&process("a", 3), ()).returning, "whoever has been succeeded is new");
    }

    #[test]
    fn a_connection_ends_the_one_before_it_of_the_same_process() {
        let mut known = KnownProcesses::default();
        let first = known.register(&process("a", 1), "first");
        known.register(&process("a", 2), "second");
        let again = known.register(&process("a", 1), "again");
        assert_eq!((again.returning, again.replaced, again.doubted), (true, Some("first"), vec!["second"]));
        assert_eq!(known.left(&process("a", 1), first.number), Departure::Returned);
        let next = known.register(&process("a", 1), "next");
        assert_eq!(
            next.replaced,
            Some("again"),
            "the end of the first connection is not the end of this one"
        );
    }

    #[test]
    fn a_process_that_has_left_joins_anew() {
        let mut known = KnownProcesses::default();
        let first = known.register(&process("a", 1), ());
        assert_eq!(known.left(&process("a", 1), first.number), Departure::Alone);
        assert!(!known.register(&process("a", 1), ()).returning, "somebody has noted that it left");
        assert!(known.register(&process("a", 1), ()).returning, "nobody has noted the end of its connection");
    }

    #[test]
    fn names_that_come_and_go_are_forgotten() {
        let mut known = KnownProcesses::default();
        for name in 0..2 * REMEMBERED {
            let [earlier, later] = [1, 2].map(|instance| known.register(&process(name, instance), ()).number);
            assert_eq!(known.left(&process(name, 1), earlier), Departure::Succeeded);
            assert_eq!(known.left(&process(name, 2), later), Departure::Alone);
        }
        assert!(known.processes.len() <= REMEMBERED + 1, "{}", known.processes.len());
    }
}
