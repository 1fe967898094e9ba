//! A learner: what it trains, how far it is, and whether it can.

use std::time::Duration;

use dipaco_sync::{Fence, Lease};
use dipaco_topology::PathId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::LargeRun;
use super::chips::OwnChips;

/// No step is shorter than this share of the mean, however much steps vary.
const SHORTEST: f64 = 0.1;

/// A learner.
#[derive(Debug)]
pub(crate) struct Learner {
    pub(crate) name: String,
    pub(crate) random: ChaCha8Rng,
    pub(crate) chips: Option<OwnChips>,
    /// Seconds of an inner step with all its chips, in the mean.
    step_seconds: f64,
    /// The standard deviation of the time of a step, as a share of it.
    variation: f64,
    /// Whether its process runs.
    pub(crate) alive: bool,
    /// Whether it stands still, to go on with other chips.
    pub(crate) stopped: bool,
    pub(crate) job: Option<Job>,
    /// The path that it has trained last, whose state it holds.
    pub(crate) held: Vec<PathId>,
    /// The lease that it held when it died.
    pub(crate) left: Option<(PathId, Fence)>,
    /// When its link has carried everything, in seconds.
    pub(crate) link_free: f64,
    /// Tells what it does now from what it did before: what was to happen then does not.
    pub(crate) serial: u64,
    /// Tells a process from its successor.
    pub(crate) process: u32,
    /// Since when it trains.
    since: Option<Duration>,
    /// Seconds in which it trained.
    pub(crate) trained: f64,
    /// Seconds of training that count, those with fewer chips in proportion.
    pub(crate) good: f64,
}

/// A lease and how far it is.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) lease: Lease,
    /// Inner steps that the path has taken.
    pub(crate) at: u64,
    /// Up to where it trains before it sends something or ends.
    pub(crate) next: u64,
    /// Seconds of training with all chips that are left up to there.
    left: f64,
    /// Those of the last step up to there.
    last: f64,
    /// Seconds that it has trained.
    pub(crate) seconds: f64,
    /// Seconds of training with all chips in it, as far as they are measured.
    work: f64,
    /// When everything that it has sent has arrived, in seconds.
    pub(crate) arrived: f64,
}

impl Learner {
    pub(crate) fn new(run: &LargeRun, number: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(run.seed);
        random.set_stream(u64::from(number));
        let chips = run.chips.map(|chips| OwnChips::new(chips, run.learners, &mut random));
        let slow = number >= run.learners - run.learners / 2;
        Self {
            name: number.to_string(),
            random,
            chips,
            step_seconds: run.step_seconds * if slow { 1.0 + run.speed_gap } else { 1.0 },
            variation: run.step_variation,
            alive: true,
            stopped: false,
            job: None,
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

    /// Whether it can ask for work.
    pub(crate) fn is_free(&self) -> bool {
        self.alive && !self.stopped && self.job.is_none()
    }

    fn share(&self) -> f64 {
        self.chips.as_ref().map_or(1.0, OwnChips::share)
    }

    pub(crate) fn begin(&mut self, lease: Lease) {
        self.held = vec![lease.path];
        let at = lease.from;
        let (left, last) = (0.0, 0.0);
        self.job = Some(Job { lease, at, next: at, left, last, seconds: 0.0, work: 0.0, arrived: 0.0 });
        self.aim();
    }

    /// Sets out for the next step at which something is sent, or for the end of the lease.
    pub(crate) fn aim(&mut self) {
        let Some(job) = &mut self.job else { return };
        let sends = job.lease.sends.iter().map(|send| send.step).filter(|&step| step > job.at);
        job.next = sends.min().unwrap_or(job.lease.to).min(job.lease.to);
        if self.variation == 0.0 {
            job.left = (job.next - job.at) as f64 * self.step_seconds;
            job.last = self.step_seconds;
            return;
        }
        for _ in job.at..job.next {
            // A normal deviate by the method of Box and Muller.
            let (radius, angle): (f64, f64) = (self.random.random(), self.random.random());
            let normal = (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
            job.last = self.step_seconds * (1.0 + self.variation * normal).max(SHORTEST);
            job.left += job.last;
        }
    }

    /// Writes down what has been trained up to now, as far as it is after `from`.
    pub(crate) fn account(&mut self, now: Duration, from: Duration) {
        let share = self.share();
        let (Some(since), Some(job)) = (self.since, &mut self.job) else { return };
        let seconds = now.saturating_sub(since).as_secs_f64();
        let measured = now.saturating_sub(since.max(from)).as_secs_f64();
        job.left -= seconds * share;
        job.seconds += seconds;
        job.work += measured * share;
        self.trained += measured;
        self.since = Some(now);
    }

    /// Trains, if it can; returns in how many seconds it is where it aims at.
    pub(crate) fn go(&mut self, now: Duration) -> Option<f64> {
        self.serial += 1;
        let can = self.alive && !self.stopped;
        let job = self.job.as_ref().filter(|job| can && job.at < job.next);
        let pause = job.map(|job| job.left.max(0.0) / self.share());
        self.since = pause.map(|_| now);
        pause
    }

    /// Whether it trains.
    pub(crate) fn trains(&self) -> bool {
        self.since.is_some()
    }

    /// It is where it aimed at; returns how long its last step took.
    pub(crate) fn reach(&mut self) -> f64 {
        let share = self.share();
        let Some(job) = &mut self.job else { return 0.0 };
        job.at = job.next;
        job.left = 0.0;
        job.last / share
    }

    /// The lease counts.
    pub(crate) fn done(&mut self) {
        self.good += self.job.take().map_or(0.0, |job| job.work);
    }

    /// Its process dies, with everything that it had not brought.
    pub(crate) fn die(&mut self) {
        self.alive = false;
        self.stopped = false;
        self.process += 1;
        self.left = self.job.take().map(|job| (job.lease.path, job.lease.fence)).or(self.left);
    }

    /// Seconds of training that count, those of the lease that it works on included.
    pub(crate) fn good(&self) -> f64 {
        self.good + self.job.as_ref().map_or(0.0, |job| job.work)
    }
}
