//! The coordinator of a simulated run: the real core, a disk, and one operation at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::{
    Commit, Fence, Fold, FragmentId, Grant, Lease, LeaseOutcome, OuterRule, OuterStep, RunState,
    ScheduledReceive, ScheduledSend, TrainingProgress, Weighting, fragment_ids, fragment_ids_of,
    merge_weights,
};
use dipaco_topology::PathId;

use super::Bug;
use super::case::{Case, RESCALE, RULE};
use super::toy::{Gradient, PathState, VALUES, Values, seed};

/// What survives the coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) incarnation: u32,
    pub(crate) phase: usize,
    pub(crate) progress: TrainingProgress,
    pub(crate) weights: BTreeMap<FragmentId, Values>,
    momentum: BTreeMap<FragmentId, Values>,
    /// Earlier versions that some path still needs.
    kept: BTreeMap<(FragmentId, u32), Values>,
    states: BTreeMap<PathId, PathState>,
    gradients: BTreeMap<(FragmentId, PathId, u32), Gradient>,
}

impl Disk {
    pub(crate) fn new(case: &Case) -> Self {
        let fragments = case.schedule.fragments();
        let all: Vec<FragmentId> = fragment_ids(&case.topology, fragments).collect();
        let start = |path| (path, PathState::start(&fragment_ids_of(&case.topology, fragments, path)));
        Self {
            incarnation: 0,
            phase: 0,
            progress: TrainingProgress::start(&case.topology, fragments),
            weights: all.iter().map(|&fragment| (fragment, seed(fragment))).collect(),
            momentum: all.iter().map(|&fragment| (fragment, [0.0; VALUES])).collect(),
            kept: BTreeMap::new(),
            states: case.topology.path_ids().map(start).collect(),
            gradients: BTreeMap::new(),
        }
    }
}

/// What a worker asks.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Ask,
    Follow {
        path: PathId,
        fence: Fence,
    },
    Heartbeat {
        path: PathId,
        fence: Fence,
    },
    Contribute {
        path: PathId,
        fence: Fence,
        send: ScheduledSend,
        gradient: Gradient,
    },
    Complete {
        path: PathId,
        fence: Fence,
        last: Vec<(ScheduledSend, Gradient)>,
        state: Box<PathState>,
        done: LeaseOutcome,
    },
}

/// What it is told.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Work(Box<Work>),
    Wait,
    Finished,
    Done,
    Lost,
    Refused(String),
}

/// A lease with what it begins with.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) lease: Lease,
    pub(crate) state: PathState,
    pub(crate) globals: Vec<(ScheduledReceive, Values)>,
}

/// Who asked: worker, its incarnation, and its number for the request.
pub(crate) type Asker = (usize, u32, u64);

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Answer(Asker, Request),
    Step(OuterStep, Values, Values, Vec<Gradient>),
    BeginPhase,
}

/// A change on its way to the disk.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) disk: Disk,
    pub(crate) step: Option<(OuterStep, Vec<Gradient>)>,
    pub(crate) reply: Option<(Asker, Reply)>,
}

/// A running coordinator.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(crate) rounds: RunState,
    /// The disk as it will be when everything has been written.
    disk: Disk,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) writing: Option<Writing>,
    /// Outer steps that are being computed or wait to be written.
    computing: BTreeSet<FragmentId>,
    boundary: bool,
    bug: Option<Bug>,
}

impl Coordinator {
    /// Takes the run over from the disk.
    pub(crate) fn take_over(case: &Case, disk: &mut Disk, bug: Option<Bug>) -> Result<Self, String> {
        disk.incarnation += 1;
        if bug == Some(Bug::LostMomentum) && disk.incarnation > 1 {
            disk.momentum.values_mut().for_each(|momentum| *momentum = [0.0; VALUES]);
        }
        let mut rounds = RunState::new(
            case.topology.clone(),
            case.plan(disk.phase),
            disk.progress.clone(),
            disk.incarnation,
        )
        .map_err(|error| error.to_string())?;
        if let Some(seed) = case.sampling {
            rounds.sample_shards(seed, case.topology.path_ids().map(Case::shard).collect());
        }
        Ok(Self {
            rounds,
            disk: disk.clone(),
            queue: VecDeque::new(),
            writing: None,
            computing: BTreeSet::new(),
            boundary: false,
            bug,
        })
    }

    /// Ends leases, and returns the outer steps whose computation begins now.
    pub(crate) fn look(&mut self, now: Duration) -> Result<Vec<Operation>, String> {
        self.rounds.expire(now);
        if self.rounds.at_boundary() && !self.boundary {
            self.boundary = true;
            self.queue.push_back(Operation::BeginPhase);
        }
        let due = self.rounds.due(now).into_iter();
        let due: Vec<_> = due.filter(|step| !self.computing.contains(&step.fragment)).collect();
        due.into_iter()
            .map(|step| {
                self.computing.insert(step.fragment);
                self.compute(step)
            })
            .collect()
    }

    /// The new weights of an outer step, with the product's own merging and momentum.
    fn compute(&self, mut step: OuterStep) -> Result<Operation, String> {
        let fragment = step.fragment;
        if self.bug == Some(Bug::DoubleCount) && step.contributions.len() > 1 && step.version == 2 {
            let again = step.contributions[0];
            step.contributions.insert(0, again);
        }
        let gradient = |c: &dipaco_sync::Contribution| {
            self.disk.gradients.get(&(fragment, c.path, c.number)).cloned().ok_or_else(|| {
                format!(
                    "outer gradient {} of path {} to {fragment} counts and is not on the disk",
                    c.number, c.path
                )
            })
        };
        let gradients: Vec<Gradient> = step.contributions.iter().map(gradient).collect::<Result<_, _>>()?;
        // A path that contributed twice to one step is two learners of half the weight here.
        let learners: Vec<_> = (0..).map(PathId).zip(&step.contributions).collect();
        let sizes: Vec<_> = learners.iter().map(|&(place, c)| (place, Case::shard(c.path))).collect();
        let failed = |error: dipaco_sync::FoldError| format!("{fragment}: {error}");
        let (mut weights, mut momentum) = (self.disk.weights[&fragment], self.disk.momentum[&fragment]);
        if sizes.is_empty() {
            return Ok(Operation::Step(step, weights, momentum, gradients));
        }
        let mut fold =
            Fold::new(VALUES, merge_weights(Weighting::ShardSize, &sizes).map_err(failed)?, RESCALE);
        for (&(place, _), gradient) in learners.iter().zip(&gradients) {
            fold.announce(place).map_err(failed)?;
            fold.merge(place, &gradient.values).map_err(failed)?;
        }
        let merged = fold.finish().map_err(failed)?;
        let OuterRule { learning_rate, momentum: mu } = RULE;
        let config = NesterovConfig { learning_rate: learning_rate.into(), momentum: mu.into() };
        nesterov_step(&mut weights, &merged, &mut momentum, &config);
        Ok(Operation::Step(step, weights, momentum, gradients))
    }

    /// Does one thing: changes memory, and says what is to be written before anyone is told.
    pub(crate) fn operate(
        &mut self,
        now: Duration,
        operation: Operation,
    ) -> Result<Writing, Option<(Asker, Reply)>> {
        match operation {
            Operation::Answer(asker, request) => match self.answer(now, request) {
                (reply, true) => Ok(self.write(None, Some((asker, reply)))),
                (reply, false) => Err(Some((asker, reply))),
            },
            Operation::Step(step, weights, momentum, gradients) => {
                let fragment = step.fragment;
                self.computing.remove(&fragment);
                let mut core = step.clone();
                core.contributions.dedup();
                if !self.rounds.stepped(&core, Duration::from_millis(1)) {
                    return Err(None);
                }
                let before = std::mem::replace(self.disk.weights.entry(fragment).or_default(), weights);
                self.disk.kept.insert((fragment, step.version - 1), before);
                self.disk.momentum.insert(fragment, momentum);
                for contribution in &step.contributions {
                    self.disk.gradients.remove(&(fragment, contribution.path, contribution.number));
                }
                let needed = self.rounds.needed_versions(fragment);
                self.disk.kept.retain(|(kept, version), _| *kept != fragment || needed.contains(version));
                Ok(self.write(Some((step, gradients)), None))
            }
            Operation::BeginPhase => {
                self.disk.phase += 1;
                self.rounds.go_on(self.disk.phase);
                self.boundary = false;
                Ok(self.write(None, None))
            }
        }
    }

    fn write(&mut self, step: Option<(OuterStep, Vec<Gradient>)>, reply: Option<(Asker, Reply)>) -> Writing {
        self.disk.progress = self.rounds.progress().clone();
        Writing { disk: self.disk.clone(), step, reply }
    }

    /// The answer to a request, and whether the disk has to know before it is given.
    fn answer(&mut self, now: Duration, request: Request) -> (Reply, bool) {
        match request {
            Request::Ask => match self.rounds.grant(now, "w", &[]) {
                Grant::Finished => (Reply::Finished, false),
                Grant::Wait(_) => (Reply::Wait, false),
                Grant::Lease(lease) => (self.work(lease), false),
            },
            Request::Follow { path, fence } => match self.rounds.follow(now, path, fence) {
                Ok(Grant::Lease(lease)) => (self.work(lease), false),
                Ok(Grant::Wait(_)) => (Reply::Wait, false),
                // Nothing follows.
                Ok(Grant::Finished) => (Reply::Done, false),
                Err(error) => (refused(&error), false),
            },
            Request::Heartbeat { path, fence } => {
                let renewed = self.rounds.heartbeat(now, path, fence);
                (if renewed.is_ok() { Reply::Done } else { Reply::Lost }, false)
            }
            Request::Contribute { path, fence, send, gradient } => {
                match self.rounds.contribute(path, fence, send.fragment, send.number, 1) {
                    Commit::Accepted(_) => {
                        self.disk.gradients.insert((send.fragment, path, send.number), gradient);
                        (Reply::Done, true)
                    }
                    Commit::Duplicate => (Reply::Done, false),
                    Commit::Refused(error) => (refused(&error), false),
                }
            }
            Request::Complete { path, fence, last, state, done } => {
                let wanted: Vec<ScheduledSend> = match self.rounds.check(path, fence) {
                    Ok(lease) => lease.sends.iter().filter(|s| s.step == lease.to).copied().collect(),
                    Err(_) => Vec::new(),
                };
                match self.rounds.commit(path, fence, &done) {
                    Commit::Accepted(_) => {
                        for (send, gradient) in last {
                            if wanted.contains(&send) {
                                self.disk.gradients.insert((send.fragment, path, send.number), gradient);
                            }
                        }
                        self.disk.states.insert(path, *state);
                        (Reply::Done, true)
                    }
                    Commit::Duplicate => (Reply::Done, false),
                    Commit::Refused(error) => (refused(&error), false),
                }
            }
        }
    }

    fn work(&self, lease: Lease) -> Reply {
        let values = |receive: &ScheduledReceive| {
            let ScheduledReceive { fragment, version } = *receive;
            let newest = self.rounds.progress().versions[&fragment];
            let found = if version == newest {
                self.disk.weights.get(&fragment)
            } else {
                self.disk.kept.get(&(fragment, version))
            };
            found.map(|values| (*receive, *values)).ok_or((fragment, version))
        };
        match lease.receives.iter().map(values).collect() {
            Ok(globals) => {
                let state = self.disk.states[&lease.path].clone();
                Reply::Work(Box::new(Work { lease, state, globals }))
            }
            Err((fragment, version)) => {
                Reply::Refused(format!("version {version} of {fragment} is needed and gone"))
            }
        }
    }
}

fn refused(error: &dipaco_sync::LeaseError) -> Reply {
    match error {
        dipaco_sync::LeaseError::Lost { .. } => Reply::Lost,
        error => Reply::Refused(error.to_string()),
    }
}
