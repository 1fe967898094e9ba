//! A worker of a simulated run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{FragmentId, LeaseOutcome, LeaseTask, ScheduledReceive, ScheduledSend, fragment_ids_of};

use super::Bug;
use super::case::Case;
use super::coordinator::{Reply, Request, Work};
use super::toy::{Gradient, PathState, Values};

/// What a worker holds in memory.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Tells a process from its successor.
    pub(crate) incarnation: u32,
    pub(crate) alive: bool,
    pub(crate) finished: bool,
    pub(crate) paused_until: Duration,
    pub(crate) cut_off_until: Duration,
    /// Requests without an answer yet.
    pub(crate) open: BTreeMap<u64, Request>,
    next: u64,
    /// A lease whose training is done, and which is not complete.
    before: Option<Job>,
    /// What is trained.
    job: Option<Job>,
    /// The weights that it has seen last, which only a worker with a bug uses.
    seen: BTreeMap<FragmentId, (u32, Values)>,
}

#[derive(Debug)]
struct Job {
    work: Work,
    fragments: Vec<FragmentId>,
    state: PathState,
    begun: Duration,
    /// Outer gradients that have been sent and not been acknowledged.
    open: BTreeSet<u64>,
    /// Outer gradients that wait until the lease before is complete.
    waiting: Vec<Request>,
    /// What is sent at the end, when the training is done.
    last: Option<Vec<(ScheduledSend, Gradient)>>,
    /// The lease that follows.
    following: Option<Work>,
    completing: bool,
    /// Which job of its worker it is: events of an earlier one are stale.
    serial: u64,
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Act {
    /// Sends a request, under its number, and again until it is answered.
    Call(u64, Request),
    /// Trains on for this long.
    Train(Duration, u64),
    /// Sends a heartbeat after this long.
    Beat(Duration, u64),
    /// Asks for work after this long.
    AskLater(Duration),
    /// Asks for the lease that follows after this long.
    FollowLater(Duration, u64),
}

impl Worker {
    /// A process that has just started.
    pub(crate) fn started(incarnation: u32) -> Self {
        Self { incarnation, alive: true, ..Self::default() }
    }

    fn call(&mut self, request: Request) -> Act {
        self.next += 1;
        self.open.insert(self.next, request.clone());
        Act::Call(self.next, request)
    }

    pub(crate) fn ask(&mut self) -> Vec<Act> {
        let asks = self.open.values().any(|request| matches!(request, Request::Ask));
        if self.job.is_some() || asks || self.finished { Vec::new() } else { vec![self.call(Request::Ask)] }
    }

    fn drop_job(&mut self) -> Vec<Act> {
        (self.job, self.before) = (None, None);
        self.open.retain(|_, request| matches!(request, Request::Ask));
        self.ask()
    }

    /// Takes the answer to a request.
    ///
    /// # Errors
    /// When a request that was right is refused.
    pub(crate) fn hear(
        &mut self,
        now: Duration,
        case: &Case,
        who: usize,
        id: u64,
        reply: Reply,
        bug: Option<Bug>,
    ) -> Result<Vec<Act>, String> {
        let Some(request) = self.open.remove(&id) else { return Ok(Vec::new()) };
        Ok(match (request, reply) {
            (_, Reply::Refused(why)) => return Err(format!("a worker is refused: {why}")),
            (Request::Ask, Reply::Work(work)) => self.begin(now, case, who, *work, bug),
            (Request::Ask, Reply::Finished) => {
                self.finished = true;
                Vec::new()
            }
            (Request::Ask, _) => vec![Act::AskLater(Duration::from_millis(40))],
            (_, Reply::Lost) => self.drop_job(),
            (Request::Heartbeat { .. }, _) => Vec::new(),
            (Request::Follow { fence, .. }, reply) => match (&mut self.job, reply) {
                (Some(job), Reply::Work(work)) if job.work.lease.fence == fence => {
                    job.following = Some(*work);
                    self.go_on(now, case, who, bug)
                }
                (Some(job), Reply::Wait) if job.work.lease.fence == fence => {
                    vec![Act::FollowLater(Duration::from_millis(15), job.serial)]
                }
                _ => Vec::new(),
            },
            (Request::Contribute { .. }, _) => {
                for job in self.before.iter_mut().chain(&mut self.job) {
                    job.open.remove(&id);
                }
                self.complete(now)
            }
            (Request::Complete { .. }, _) if self.before.take().is_some() => {
                let waiting =
                    self.job.as_mut().map(|job| std::mem::take(&mut job.waiting)).unwrap_or_default();
                let mut acts = self.contribute(waiting);
                acts.extend(self.complete(now));
                acts.extend(self.go_on(now, case, who, bug));
                acts
            }
            (Request::Complete { .. }, _) => self.drop_job(),
        })
    }

    /// Begins the lease that follows one whose training is done.
    fn go_on(&mut self, now: Duration, case: &Case, who: usize, bug: Option<Bug>) -> Vec<Act> {
        if self.before.is_some() || self.job.as_ref().is_none_or(|job| job.last.is_none()) {
            return Vec::new();
        }
        let Some(work) = self.job.as_mut().and_then(|job| job.following.take()) else { return Vec::new() };
        self.before = self.job.take();
        let state = self.before.as_ref().map(|job| job.state.clone());
        let work = Work { state: state.unwrap_or_else(|| work.state.clone()), ..work };
        self.begin(now, case, who, work, bug)
    }

    pub(crate) fn follow(&mut self, serial: u64) -> Vec<Act> {
        let Some(job) = self.job.as_ref().filter(|job| job.serial == serial) else { return Vec::new() };
        let (path, fence) = (job.work.lease.path, job.work.lease.fence);
        if job.completing { Vec::new() } else { vec![self.call(Request::Follow { path, fence })] }
    }

    /// Sends outer gradients of the lease that is trained.
    fn contribute(&mut self, gradients: Vec<Request>) -> Vec<Act> {
        let acts: Vec<Act> = gradients.into_iter().map(|request| self.call(request)).collect();
        if let Some(job) = &mut self.job {
            job.open.extend(
                acts.iter().filter_map(|act| if let Act::Call(id, _) = act { Some(*id) } else { None }),
            );
        }
        acts
    }

    fn begin(&mut self, now: Duration, case: &Case, who: usize, work: Work, bug: Option<Bug>) -> Vec<Act> {
        let fragments = fragment_ids_of(&case.topology, case.schedule.fragments(), work.lease.path);
        let mut state = work.state.clone();
        let mut globals = work.globals.clone();
        for (receive, values) in &mut globals {
            let fresh = (receive.version, *values);
            if let (Some(Bug::StaleBase), Some(old)) = (bug, self.seen.insert(receive.fragment, fresh)) {
                *receive = ScheduledReceive { fragment: receive.fragment, version: old.0 };
                *values = old.1;
            }
        }
        state.take_over(case, &work.lease, &fragments, &globals);
        self.next += 1;
        let serial = self.next;
        let job = Job {
            work,
            fragments,
            state,
            begun: now,
            open: BTreeSet::new(),
            waiting: Vec::new(),
            last: None,
            following: None,
            completing: false,
            serial,
        };
        let measures = job.work.lease.task == LeaseTask::Measure;
        self.job = Some(job);
        let pause = Duration::from_millis(500).div_f64(case.workers[who].clock);
        let mut acts = vec![Act::Beat(pause, serial)];
        if measures {
            acts.extend(self.end(now, case));
        } else {
            acts.extend(self.until_next(case, who));
            if case.schedule.overlap() > 0 {
                acts.push(Act::FollowLater(Duration::from_millis(5), serial));
            }
        }
        acts
    }

    /// How long the worker trains until its path sends something, or its lease ends.
    fn until_next(&self, case: &Case, who: usize) -> Option<Act> {
        let job = self.job.as_ref()?;
        let at = job.state.step;
        let next = job.work.lease.sends.iter().map(|send| send.step).filter(|&step| step > at).min();
        let steps = next.unwrap_or(job.work.lease.to).min(job.work.lease.to) - at;
        // Leases of the cases are a few steps long.
        Some(Act::Train(case.workers[who].step * u32::try_from(steps).unwrap_or(u32::MAX), job.serial))
    }

    /// The training up to the next send is done.
    pub(crate) fn trained(
        &mut self,
        now: Duration,
        case: &Case,
        who: usize,
        serial: u64,
        bug: Option<Bug>,
    ) -> Vec<Act> {
        let Some(job) = self.job.as_mut().filter(|job| job.serial == serial) else { return Vec::new() };
        let lease = job.work.lease.clone();
        let at = job.state.step;
        let next = lease.sends.iter().map(|send| send.step).filter(|&step| step > at).min();
        let to = next.unwrap_or(lease.to).min(lease.to);
        let path = lease.path;
        job.state.train(path, to);
        let mut sent = Vec::new();
        for send in lease.sends.iter().filter(|send| send.step == to && to < lease.to) {
            if let Some(slot) = job.fragments.iter().position(|fragment| *fragment == send.fragment) {
                let gradient = job.state.send(case, path, send.fragment, slot);
                sent.push(Request::Contribute {
                    path: lease.path,
                    fence: lease.fence,
                    send: *send,
                    gradient,
                });
            }
        }
        let mut acts = match (&self.before, &mut self.job) {
            (Some(_), Some(job)) => {
                job.waiting.extend(sent);
                Vec::new()
            }
            _ => self.contribute(sent),
        };
        if to == lease.to {
            acts.extend(self.end(now, case));
            acts.extend(self.go_on(now, case, who, bug));
        } else {
            acts.extend(self.until_next(case, who));
        }
        acts
    }

    /// The training of the lease is done.
    fn end(&mut self, now: Duration, case: &Case) -> Vec<Act> {
        let Some(job) = &mut self.job else { return Vec::new() };
        let (path, to) = (job.work.lease.path, job.work.lease.to);
        let mut last = Vec::new();
        for send in job.work.lease.sends.iter().filter(|send| send.step == to) {
            if let Some(slot) = job.fragments.iter().position(|fragment| *fragment == send.fragment) {
                last.push((*send, job.state.send(case, path, send.fragment, slot)));
            }
        }
        job.last = Some(last);
        self.complete(now)
    }

    /// Completes the older lease once everything that it sent early is acknowledged.
    fn complete(&mut self, now: Duration) -> Vec<Act> {
        let Some(job) = self.before.as_mut().or(self.job.as_mut()) else { return Vec::new() };
        let Some(last) = &job.last else { return Vec::new() };
        if job.completing || !job.open.is_empty() || !job.waiting.is_empty() {
            return Vec::new();
        }
        job.completing = true;
        let done = LeaseOutcome { seconds: (now - job.begun).as_secs_f64(), ..LeaseOutcome::default() };
        let (path, fence) = (job.work.lease.path, job.work.lease.fence);
        let (last, state) = (last.clone(), Box::new(job.state.clone()));
        vec![self.call(Request::Complete { path, fence, last, state, done })]
    }

    pub(crate) fn beat(&mut self, case: &Case, who: usize, serial: u64) -> Vec<Act> {
        let Some(job) = self.job.as_ref().filter(|job| job.serial == serial) else { return Vec::new() };
        let (path, fence) = (job.work.lease.path, job.work.lease.fence);
        let pause = Duration::from_millis(500).div_f64(case.workers[who].clock);
        vec![self.call(Request::Heartbeat { path, fence }), Act::Beat(pause, serial)]
    }
}
