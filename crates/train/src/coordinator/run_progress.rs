//! Progress of a training run for its user: a bar over all inner steps, and the event file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_ledger::Ledger;
use dipaco_sync::Fence;
use dipaco_telemetry::{Event, Events, Progress, ProgressUnit, Task};
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::coordinator::round_tally::RoundTally;

/// Progress of all paths together, in inner steps.
pub(crate) struct RunProgress {
    events: Events,
    task: Task,
    counters: Mutex<ProgressCounters>,
    /// Held while events of complete rounds are written, so that they stand in the file in the order of the rounds.
    ordered: Mutex<()>,
    peer_events: Mutex<EventBudget>,
}

/// How far the paths of a run are, those that nobody trains included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunReach {
    /// Rounds that all paths have completed.
    pub(crate) rounds: u64,
    /// Inner steps that all paths but the kept ones have taken together.
    pub(crate) steps: u64,
}

impl RunReach {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        Self { rounds: ledger.rounds_done().into(), steps: ledger.state().steps_taken() }
    }
}

/// Events that peers cause before one of them must wait for the next second.
const PEER_EVENTS: f64 = 10_000.0;

/// Bounds the events that peers can cause: a peer may connect, leave and bring refused results as often as it likes.
#[derive(Debug)]
struct EventBudget {
    /// Events that may be written now.
    left: f64,
    /// Time of the last event.
    at: Instant,
    /// Events that were not written.
    suppressed: u64,
}

impl EventBudget {
    fn new(now: Instant) -> Self {
        Self { left: PEER_EVENTS, at: now, suppressed: 0 }
    }

    /// Takes an event, one more for each second that has passed.
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed).min(PEER_EVENTS);
        self.at = now;
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        } else {
            self.suppressed += 1;
        }
        allowed
    }
}

#[derive(Debug)]
struct ProgressCounters {
    /// Inner steps of kept paths.
    kept: u64,
    /// Inner steps that all paths have taken, without those of leases that are out.
    committed: u64,
    /// Inner steps done in leases that are out. A path may have two: a lease whose results are on their way, and the one
    /// that follows it.
    running: BTreeMap<(PathId, Fence), u64>,
    /// The last training loss of each path.
    losses: BTreeMap<PathId, f32>,
    tally: RoundTally,
    time: WorkerTime,
    /// Bytes that workers have read straight from the store.
    linked: u64,
    /// Time from which on the display shows the counters again.
    show_at: Instant,
}

/// Time between two displays of the counters: a display goes through all paths.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Time of workers in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerTime {
    /// Time in inner steps.
    pub(crate) inner: f64,
    /// Time between inner steps: transfers, and waiting for other workers and for leases.
    pub(crate) waited: f64,
}

impl ProgressCounters {
    /// Notes that all paths but the kept ones have taken so many inner steps. A late word takes none back.
    fn reach(&mut self, steps: u64) {
        self.committed = self.committed.max(self.kept.saturating_add(steps));
    }

    /// Forgets the leases of a path up to this one.
    fn forget(&mut self, path: PathId, last: Fence) {
        let leases = self.running.range((path, Fence(0))..=(path, last));
        for lease in leases.map(|(&lease, _)| lease).collect::<Vec<_>>() {
            self.running.remove(&lease);
        }
    }

    /// Inner steps that all paths have taken, with those of leases that are out.
    fn taken(&self) -> u64 {
        self.committed + self.running.values().sum::<u64>()
    }
}

impl RunProgress {
    /// Continues from `reached` with paths that have taken `committed` inner steps of `total` inner steps of all paths
    /// together; a round has `inner_steps` of each path.
    pub(crate) fn new(
        progress: &Progress,
        events: Events,
        inner_steps: u64,
        reached: RunReach,
        committed: u64,
        total: u64,
    ) -> Self {
        let task = progress.task("train", Some(total), ProgressUnit::Count("steps"));
        task.resume_at(committed);
        let tally = RoundTally::new(inner_steps, reached.rounds);
        let counters = ProgressCounters {
            kept: committed.saturating_sub(reached.steps),
            committed,
            running: BTreeMap::new(),
            losses: BTreeMap::new(),
            tally,
            time: WorkerTime::default(),
            linked: 0,
            show_at: Instant::now(),
        };
        let peer_events = Mutex::new(EventBudget::new(Instant::now()));
        Self { events, task, counters: Mutex::new(counters), ordered: Mutex::default(), peer_events }
    }

    /// Writes an event that a peer can cause at will, unless peers have caused too many.
    pub(crate) fn event_of_peer(&self, event: Event) {
        let mut budget = self.peer_events.lock().unwrap_or_else(PoisonError::into_inner);
        if budget.take(Instant::now()) {
            drop(budget);
            self.event(event);
        } else if budget.suppressed == 1 {
            tracing::warn!("peers cause very many events; the event file does not get all of them");
        }
    }

    /// Writes an event to the event file, or drops it while that can't be written.
    pub(crate) fn event(&self, event: Event) {
        self.events.note(event);
    }

    /// Notes that a path at this step was leased.
    pub(crate) fn leased(&self, step: u64) {
        let event = self.counters().tally.leased(step, Instant::now());
        if let Some(event) = event {
            self.event(event);
        }
    }

    fn counters(&self) -> MutexGuard<'_, ProgressCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut ProgressCounters)) {
        let mut counters = self.counters();
        change(&mut counters);
        let now = Instant::now();
        if now >= counters.show_at {
            counters.show_at = now + SHOW_EVERY;
            self.show(&counters);
        }
    }

    /// Shows the counters.
    fn show(&self, counters: &ProgressCounters) {
        if !counters.losses.is_empty() {
            let sum: f64 = counters.losses.values().copied().map(f64::from).sum();
            let mean = sum / counters.losses.len() as f64;
            self.task.note(format!("loss {mean:.3}"));
        }
        self.task.set(counters.taken());
    }

    /// Notes the inner steps that a worker has done in its lease, and its loss.
    pub(crate) fn running(&self, path: PathId, fence: Fence, steps: u64, loss: Option<f32>) {
        self.update(|counters| {
            counters.running.insert((path, fence), steps);
            counters.losses.extend(loss.map(|loss| (path, loss)));
        });
    }

    /// Notes that the leases of a path were lost. Their inner steps are done again. A lease that the path has got since
    /// shows its steps with its next heartbeat.
    pub(crate) fn lost(&self, path: PathId) {
        self.update(|counters| counters.forget(path, Fence(u64::MAX)));
    }

    /// Notes that a path has completed a lease of the inner steps `trained`, and that all paths have taken `steps` inner steps
    /// together ([`RunReach::steps`]). Called while the ledger is locked, so that nobody finds the round complete before its
    /// loss is here. Shows nothing for that reason.
    pub(crate) fn committed(&self, path: PathId, fence: Fence, trained: Range<u64>, loss: f64, steps: u64) {
        let mut counters = self.counters();
        counters.forget(path, fence);
        counters.tally.committed(trained, loss);
        counters.reach(steps);
    }

    /// Notes how far the paths are, and writes the events of the rounds that are complete now.
    pub(crate) fn moved_on(&self, reached: RunReach) {
        let _ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = Vec::new();
        self.update(|counters| {
            counters.reach(reached.steps);
            events = counters.tally.completes(reached.rounds, Instant::now());
        });
        events.into_iter().for_each(|event| self.event(event));
    }

    /// Adds the time of a worker for a lease.
    pub(crate) fn add_time(&self, inner: f64, waited: f64) {
        let mut counters = self.counters();
        counters.time.inner += inner;
        counters.time.waited += waited;
    }

    /// Adds bytes that a worker has read straight from the store.
    pub(crate) fn add_linked(&self, bytes: u64) {
        let mut counters = self.counters();
        // A peer may report any number.
        counters.linked = counters.linked.saturating_add(bytes);
    }

    /// Bytes that workers have read straight from the store under this coordinator, as they report it.
    pub(crate) fn linked(&self) -> u64 {
        self.counters().linked
    }

    /// Time of all workers under this coordinator.
    pub(crate) fn worker_time(&self) -> WorkerTime {
        self.counters().time
    }

    /// Ends the bar.
    pub(crate) fn finish(&self) {
        self.show(&self.counters());
        self.task.finish();
    }
}

#[cfg(test)]
mod tests {
    use dipaco_telemetry::read_events;

    use super::*;

    #[test]
    fn rounds_end_and_the_bar_fills_although_nobody_trains_some_paths() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.jsonl");
        let (begin, events) = (RunReach { rounds: 0, steps: 0 }, Events::create(&file).unwrap());
        // Two rounds of ten inner steps of two paths, and a kept path.
        let progress = RunProgress::new(&Progress::hidden(), events, 10, begin, 20, 60);
        let committed = |expected| assert_eq!(progress.counters().committed, expected);
        progress.running(PathId(0), Fence(1), 10, None);
        // The second path is passed over twice: at once, and after an outer step.
        progress.committed(PathId(0), Fence(1), 0..10, 5.0, 20);
        assert!(progress.counters().running.is_empty());
        committed(40);
        progress.moved_on(RunReach { rounds: 1, steps: 30 });
        committed(50);
        progress.committed(PathId(0), Fence(2), 10..20, 4.0, 40);
        progress.moved_on(RunReach { rounds: 2, steps: 40 });
        progress.moved_on(RunReach { rounds: 1, steps: 30 });
        committed(60);
        let rounds = read_events(&file).unwrap().map(|record| match record.unwrap().event {
            Event::RoundCompleted { round, loss, .. } => (round, loss),
            other => panic!("{other:?}"),
        });
        assert_eq!(rounds.collect::<Vec<_>>(), [(0, 5.0), (1, 4.0)]);
    }

    #[test]
    fn the_bar_has_the_steps_of_a_lease_and_of_the_one_that_follows_it() {
        let begin = RunReach { rounds: 0, steps: 0 };
        let progress = RunProgress::new(&Progress::hidden(), Events::off(), 10, begin, 0, 40);
        let taken = |expected| assert_eq!(progress.counters().taken(), expected);
        progress.running(PathId(1), Fence(3), 2, None);
        // The results of the first lease are on their way while the path trains on.
        progress.running(PathId(0), Fence(1), 10, None);
        progress.running(PathId(0), Fence(2), 3, None);
        taken(15);
        progress.running(PathId(0), Fence(1), 10, None);
        taken(15);
        progress.committed(PathId(0), Fence(1), 0..10, 5.0, 10);
        taken(15);
        progress.running(PathId(0), Fence(4), 1, None);
        taken(16);
        // A lease is lost with the one that follows it.
        progress.lost(PathId(0));
        taken(12);
    }

    #[test]
    fn a_flood_of_events_is_an_event_a_second() {
        let begin = Instant::now();
        let mut budget = EventBudget::new(begin);
        let written = |budget: &mut EventBudget, from: u64, to: u64| {
            (from..to).filter(|&i| budget.take(begin + Duration::from_millis(i))).count()
        };
        let burst = written(&mut budget, 0, 20_000);
        assert!((10_000..=10_020).contains(&burst), "{burst}");
        let later = written(&mut budget, 20_000, 30_000);
        assert!((9..=11).contains(&later), "{later}");
    }
}
