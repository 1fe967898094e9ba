//! A learner: its lease, its progress and its availability.

use std::time::Duration;

use dipaco_sync::{Fence, Lease, ProcessId};
use dipaco_topology::PathId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::LargeRun;
use super::chips::OwnChips;

/// Shortest inner step, as a share of the mean.
const SHORTEST: f64 = 0.1;

/// A learner of a simulated run.
#[derive(Debug)]
pub(crate) struct Learner {
    pub(crate) worker: ProcessId,
    pub(crate) random: ChaCha8Rng,
    pub(crate) chips: Option<OwnChips>,
    /// Mean seconds of an inner step with all chips.
    step_seconds: f64,
    /// Standard deviation of the time of an inner step, as a share of the mean.
    variation: f64,
    /// True if the learner's process runs.
    pub(crate) alive: bool,
    /// True during a pause for a change of chips.
    pub(crate) stopped: bool,
    pub(crate) current: Option<LearnerLease>,
    /// The lease that `current` follows: it is trained, and its results are on their way.
    pub(crate) uploading: Option<LearnerLease>,
    /// The path that the learner trained last; the learner holds its state.
    pub(crate) held: Vec<PathId>,
    /// The learner's lease at its death.
    pub(crate) left: Option<(PathId, Fence)>,
    /// Time at which the link becomes free, in seconds.
    pub(crate) link_free: f64,
    /// Number of the current activity. Events of an earlier activity are stale.
    pub(crate) serial: u64,
    /// Number of the process. A restart increases it.
    pub(crate) process: u32,
    /// Time since which the learner trains.
    since: Option<Duration>,
    /// Seconds of training.
    pub(crate) trained: f64,
    /// Seconds of accepted training, in proportion to the available chips.
    pub(crate) good: f64,
}

/// A lease and its progress.
#[derive(Debug)]
pub(crate) struct LearnerLease {
    pub(crate) lease: Lease,
    /// Inner steps of the path so far.
    pub(crate) at: u64,
    /// Inner step of the next send, or the end of the lease.
    pub(crate) next: u64,
    /// Remaining seconds of training until `next`, with all chips.
    left: f64,
    /// Seconds of the last step before `next`, with all chips.
    last: f64,
    /// Seconds of training in the lease.
    pub(crate) seconds: f64,
    /// Measured seconds of training in the lease, in proportion to the available chips.
    work: f64,
    /// Arrival time of the last sent data, in seconds.
    pub(crate) arrived: f64,
}

impl Learner {
    pub(crate) fn new(run: &LargeRun, number: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(run.seed);
        random.set_stream(u64::from(number));
        let chips = run.chips.map(|chips| OwnChips::new(chips, run.learners, &mut random));
        let slow = number >= run.learners - run.learners / 2;
        Self {
            worker: ProcessId::local(&number.to_string()),
            random,
            chips,
            step_seconds: run.step_seconds * if slow { 1.0 + run.speed_gap } else { 1.0 },
            variation: run.step_variation,
            alive: true,
            stopped: false,
            current: None,
            uploading: None,
            held: Vec::new(),
            left: None,
            link_free: 0.0,
            serial: 0,
            process: 0,
            since: None,
            trained: 0.0,
            good: 0.0,
        }
    }

    /// True if the learner can ask for a lease.
    pub(crate) fn is_free(&self) -> bool {
        self.alive && !self.stopped && self.current.is_none()
    }

    fn share(&self) -> f64 {
        self.chips.as_ref().map_or(1.0, OwnChips::share)
    }

    /// True if the learner has trained its lease, and nothing else is on its way: it can ask for the lease that follows.
    pub(crate) fn waits_for_arrival(&self) -> bool {
        let trained = self.current.as_ref().is_some_and(|current| current.at == current.lease.to);
        self.alive && !self.stopped && trained && self.uploading.is_none()
    }

    /// Begins the lease that follows the current one, whose results are on their way.
    pub(crate) fn follow(&mut self, lease: Lease) {
        self.uploading = self.current.take();
        self.begin(lease);
    }

    pub(crate) fn begin(&mut self, lease: Lease) {
        self.held = vec![lease.path];
        let at = lease.from;
        let (left, last) = (0.0, 0.0);
        self.current =
            Some(LearnerLease { lease, at, next: at, left, last, seconds: 0.0, work: 0.0, arrived: 0.0 });
        self.aim();
    }

    /// Sets the target to the next step with a send, or to the end of the lease.
    pub(crate) fn aim(&mut self) {
        let Some(current) = &mut self.current else { return };
        let sends = current.lease.sends.iter().map(|send| send.step).filter(|&step| step > current.at);
        current.next = sends.min().unwrap_or(current.lease.to).min(current.lease.to);
        if self.variation == 0.0 {
            current.left = (current.next - current.at) as f64 * self.step_seconds;
            current.last = self.step_seconds;
            return;
        }
        for _ in current.at..current.next {
            // A normally distributed number (Box-Muller).
            let (radius, angle): (f64, f64) = (self.random.random(), self.random.random());
            let normal = (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
            current.last = self.step_seconds * (1.0 + self.variation * normal).max(SHORTEST);
            current.left += current.last;
        }
    }

    /// Accounts for the training up to `now`. Measurements begin at `from`.
    pub(crate) fn account(&mut self, now: Duration, from: Duration) {
        let share = self.share();
        let (Some(since), Some(current)) = (self.since, &mut self.current) else { return };
        let seconds = now.saturating_sub(since).as_secs_f64();
        let measured = now.saturating_sub(since.max(from)).as_secs_f64();
        current.left -= seconds * share;
        current.seconds += seconds;
        current.work += measured * share;
        self.trained += measured;
        self.since = Some(now);
    }

    /// Starts or stops training. Returns the seconds until the target, or `None` if the learner can't train.
    pub(crate) fn go(&mut self, now: Duration) -> Option<f64> {
        self.serial += 1;
        let can = self.alive && !self.stopped;
        let current = self.current.as_ref().filter(|current| can && current.at < current.next);
        let pause = current.map(|current| current.left.max(0.0) / self.share());
        self.since = pause.map(|_| now);
        pause
    }

    /// True if the learner trains.
    pub(crate) fn trains(&self) -> bool {
        self.since.is_some()
    }

    /// Reaches the target. Returns the seconds of the last step.
    pub(crate) fn reach(&mut self) -> f64 {
        let share = self.share();
        let Some(current) = &mut self.current else { return 0.0 };
        current.at = current.next;
        current.left = 0.0;
        current.last / share
    }

    /// A lease with this fencing number that the learner has not completed.
    pub(crate) fn lease(&self, fence: Fence) -> Option<&LearnerLease> {
        self.uploading.iter().chain(&self.current).find(|held| held.lease.fence == fence)
    }

    /// The core has accepted the older lease.
    pub(crate) fn done(&mut self) {
        let done = if self.uploading.is_some() { &mut self.uploading } else { &mut self.current };
        self.good += done.take().map_or(0.0, |done| done.work);
    }

    /// The process dies, and the uncommitted results of its lease are lost.
    pub(crate) fn die(&mut self) {
        self.alive = false;
        self.stopped = false;
        self.process += 1;
        // A lease that follows another is lost with it.
        let current = self.current.take();
        let lost = self.uploading.take().or(current);
        self.left = lost.map(|lost| (lost.lease.path, lost.lease.fence)).or(self.left);
    }

    /// Seconds of accepted training, including the current lease.
    pub(crate) fn good(&self) -> f64 {
        self.good + self.uploading.iter().chain(&self.current).map(|held| held.work).sum::<f64>()
    }
}
