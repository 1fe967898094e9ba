//! The coordinator of a simulated run: the real core, a disk, and one operation at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::{
    Commit, Fence, Fold, FoldRule, FoldTensor, FragmentId, Grant, Lease, LeaseOutcome, OuterRule, OuterStep,
    RunState, ScheduledReceive, ScheduledSend, TrainingProgress, Weighting, fragment_ids, fragment_ids_of,
    merge_weights,
};
use dipaco_topology::PathId;

use super::Bug;
use super::case::{Case, RESCALE, RULE};
use super::toy::{ToyGradient, ToyPathState, VALUES, Values, seed};

/// The durable data of a simulated run.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedDisk {
    pub(crate) incarnation: u32,
    pub(crate) phase: usize,
    pub(crate) progress: TrainingProgress,
    pub(crate) weights: BTreeMap<FragmentId, Values>,
    momentum: BTreeMap<FragmentId, Values>,
    /// Earlier versions that a path still needs.
    kept: BTreeMap<(FragmentId, u32), Values>,
    states: BTreeMap<PathId, ToyPathState>,
    gradients: BTreeMap<(FragmentId, PathId, u32), ToyGradient>,
}

impl SimulatedDisk {
    pub(crate) fn new(case: &Case) -> Self {
        let fragments = case.schedule.fragments();
        let all: Vec<FragmentId> = fragment_ids(&case.topology, fragments).collect();
        let start = |path| (path, ToyPathState::start(&fragment_ids_of(&case.topology, fragments, path)));
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

/// A request of a worker.
#[derive(Clone, Debug)]
pub(crate) enum ChaosRequest {
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
        gradient: ToyGradient,
    },
    Complete {
        path: PathId,
        fence: Fence,
        last: Vec<(ScheduledSend, ToyGradient)>,
        state: Box<ToyPathState>,
        done: LeaseOutcome,
    },
}

/// An answer of the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum ChaosReply {
    Lease(Box<GrantedLease>),
    Wait,
    Finished,
    Done,
    Lost,
    Refused(String),
}

/// A lease with its inputs.
#[derive(Clone, Debug)]
pub(crate) struct GrantedLease {
    pub(crate) lease: Lease,
    pub(crate) state: ToyPathState,
    pub(crate) globals: Vec<(ScheduledReceive, Values)>,
}

/// Sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) worker: usize,
    pub(crate) incarnation: u32,
    /// Number of the request at the worker.
    pub(crate) request: u64,
}

/// An answer with its recipient.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) to: Requester,
    pub(crate) reply: ChaosReply,
}

/// An outer step with the merged outer gradients.
#[derive(Clone, Debug)]
pub(crate) struct MergedStep {
    pub(crate) step: OuterStep,
    /// One outer gradient for each contribution.
    pub(crate) gradients: Vec<ToyGradient>,
}

/// A merged outer step with its results.
#[derive(Clone, Debug)]
pub(crate) struct ComputedStep {
    merged: MergedStep,
    weights: Values,
    momentum: Values,
}

/// A task of the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Answer(Requester, ChaosRequest),
    Step(Box<ComputedStep>),
    BeginPhase,
}

/// An unfinished write to the disk.
#[derive(Debug)]
pub(crate) struct DiskWrite {
    pub(crate) disk: SimulatedDisk,
    pub(crate) merged: Option<MergedStep>,
    /// The answer to send after the write.
    pub(crate) answer: Option<Answer>,
}

/// Effect of an operation outside the coordinator's memory.
pub(crate) enum Effect {
    Write(Box<DiskWrite>),
    Answer(Answer),
    Nothing,
}

/// A running coordinator.
#[derive(Debug)]
pub(crate) struct SimulatedCoordinator {
    pub(crate) run_state: RunState,
    /// The disk after all pending writes.
    disk: SimulatedDisk,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) writing: Option<Box<DiskWrite>>,
    /// Fragments with an outer step in computation or in an unfinished write.
    computing: BTreeSet<FragmentId>,
    boundary: bool,
    bug: Option<Bug>,
}

impl SimulatedCoordinator {
    /// Continues the run from the disk.
    pub(crate) fn take_over(case: &Case, disk: &mut SimulatedDisk, bug: Option<Bug>) -> Result<Self, String> {
        disk.incarnation += 1;
        if bug == Some(Bug::LostMomentum) && disk.incarnation > 1 {
            disk.momentum.values_mut().for_each(|momentum| *momentum = [0.0; VALUES]);
        }
        let mut run_state = RunState::new(
            case.topology.clone(),
            case.plan(disk.phase),
            disk.progress.clone(),
            disk.incarnation,
        )
        .map_err(|error| error.to_string())?;
        if let Some(seed) = case.sampling {
            run_state.sample_shards(seed, case.topology.path_ids().map(Case::shard).collect());
        }
        Ok(Self {
            run_state,
            disk: disk.clone(),
            queue: VecDeque::new(),
            writing: None,
            computing: BTreeSet::new(),
            boundary: false,
            bug,
        })
    }

    /// Expires leases, and returns the outer steps whose computation begins now.
    pub(crate) fn look(&mut self, now: Duration) -> Result<Vec<Operation>, String> {
        self.run_state.expire(now);
        if self.run_state.at_boundary() && !self.boundary {
            self.boundary = true;
            self.queue.push_back(Operation::BeginPhase);
        }
        let due = self.run_state.due(now).into_iter();
        let due: Vec<_> = due.filter(|step| !self.computing.contains(&step.fragment)).collect();
        due.into_iter()
            .map(|step| {
                self.computing.insert(step.fragment);
                self.compute(step)
            })
            .collect()
    }

    /// Computes the new weights of an outer step with production's merging and momentum.
    fn compute(&self, mut step: OuterStep) -> Result<Operation, String> {
        let fragment = step.fragment;
        if self.bug == Some(Bug::DoubleCount) && step.contributions.len() > 1 && step.version == 2 {
            let again = step.contributions[0];
            step.contributions.insert(0, again);
        }
        let gradient = |c: &dipaco_sync::Contribution| {
            self.disk.gradients.get(&(fragment, c.path, c.number)).cloned().ok_or_else(|| {
                format!(
                    "outer gradient {} of path {} to {fragment} counts, but is not on the disk",
                    c.number, c.path
                )
            })
        };
        let gradients: Vec<ToyGradient> =
            step.contributions.iter().map(gradient).collect::<Result<_, _>>()?;
        // Each contribution is its own learner here, so a path with two contributions to the step counts twice.
        let learners: Vec<_> = (0..).map(PathId).zip(&step.contributions).collect();
        let sizes: Vec<_> = learners.iter().map(|&(place, c)| (place, Case::shard(c.path))).collect();
        let failed = |error: dipaco_sync::FoldError| format!("{fragment}: {error}");
        let (mut weights, mut momentum) = (self.disk.weights[&fragment], self.disk.momentum[&fragment]);
        if sizes.is_empty() {
            let merged = MergedStep { step, gradients };
            return Ok(Operation::Step(Box::new(ComputedStep { merged, weights, momentum })));
        }
        let shares = merge_weights(Weighting::ShardSize, &sizes).map_err(failed)?;
        let rule = FoldRule { rescale: RESCALE, ..FoldRule::default() };
        let mut fold = Fold::new(vec![FoldTensor::plain(VALUES)], shares, rule);
        for (&(place, _), gradient) in learners.iter().zip(&gradients) {
            fold.announce(place).map_err(failed)?;
            fold.merge(place, &gradient.values).map_err(failed)?;
        }
        let merged = fold.finish().map_err(failed)?;
        let OuterRule { learning_rate, momentum: mu } = RULE;
        let config = NesterovConfig { learning_rate: learning_rate.into(), momentum: mu.into() };
        nesterov_step(&mut weights, &merged, &mut momentum, &config);
        let outer_step = MergedStep { step, gradients };
        Ok(Operation::Step(Box::new(ComputedStep { merged: outer_step, weights, momentum })))
    }

    /// Carries out an operation in memory. If it changes durable data, the answer must wait for the returned write.
    pub(crate) fn operate(&mut self, now: Duration, operation: Operation) -> Effect {
        match operation {
            Operation::Answer(to, request) => match self.answer(now, request) {
                (reply, true) => self.write(None, Some(Answer { to, reply })),
                (reply, false) => Effect::Answer(Answer { to, reply }),
            },
            Operation::Step(computed) => {
                let ComputedStep { merged, weights, momentum } = *computed;
                let step = &merged.step;
                let fragment = step.fragment;
                self.computing.remove(&fragment);
                // The planted bug repeats a contribution. The core must not see it: the audit has to find it.
                let mut core = step.clone();
                core.contributions.dedup();
                if !self.run_state.stepped(&core, Duration::from_millis(1)) {
                    return Effect::Nothing;
                }
                let before = std::mem::replace(self.disk.weights.entry(fragment).or_default(), weights);
                self.disk.kept.insert((fragment, step.version - 1), before);
                self.disk.momentum.insert(fragment, momentum);
                for contribution in &step.contributions {
                    self.disk.gradients.remove(&(fragment, contribution.path, contribution.number));
                }
                let needed = self.run_state.needed_versions(fragment);
                self.disk.kept.retain(|(kept, version), _| *kept != fragment || needed.contains(version));
                self.write(Some(merged), None)
            }
            Operation::BeginPhase => {
                self.disk.phase += 1;
                self.run_state.go_on(self.disk.phase);
                self.boundary = false;
                self.write(None, None)
            }
        }
    }

    fn write(&mut self, merged: Option<MergedStep>, answer: Option<Answer>) -> Effect {
        self.disk.progress = self.run_state.progress().clone();
        Effect::Write(Box::new(DiskWrite { disk: self.disk.clone(), merged, answer }))
    }

    /// Answers a request. The second value is true if the disk must have the change before the worker gets the answer.
    fn answer(&mut self, now: Duration, request: ChaosRequest) -> (ChaosReply, bool) {
        match request {
            ChaosRequest::Ask => match self.run_state.grant(now, "w", &[]) {
                Grant::Finished => (ChaosReply::Finished, false),
                Grant::Wait(_) => (ChaosReply::Wait, false),
                Grant::Lease(lease) => (self.granted(lease), false),
            },
            ChaosRequest::Follow { path, fence } => match self.run_state.follow(now, path, fence) {
                Ok(Grant::Lease(lease)) => (self.granted(lease), false),
                Ok(Grant::Wait(_)) => (ChaosReply::Wait, false),
                // No lease follows.
                Ok(Grant::Finished) => (ChaosReply::Done, false),
                Err(error) => (refused(&error), false),
            },
            ChaosRequest::Heartbeat { path, fence } => {
                let renewed = self.run_state.heartbeat(now, path, fence);
                (if renewed.is_ok() { ChaosReply::Done } else { ChaosReply::Lost }, false)
            }
            ChaosRequest::Contribute { path, fence, send, gradient } => {
                match self.run_state.contribute(path, fence, send.fragment, send.number, 1) {
                    Commit::Accepted(_) => {
                        self.disk.gradients.insert((send.fragment, path, send.number), gradient);
                        (ChaosReply::Done, true)
                    }
                    Commit::Duplicate => (ChaosReply::Done, false),
                    Commit::Refused(error) => (refused(&error), false),
                }
            }
            ChaosRequest::Complete { path, fence, last, state, done } => {
                let wanted: Vec<ScheduledSend> = match self.run_state.check(path, fence) {
                    Ok(lease) => lease.sends.iter().filter(|s| s.step == lease.to).copied().collect(),
                    Err(_) => Vec::new(),
                };
                match self.run_state.commit(path, fence, &done) {
                    Commit::Accepted(_) => {
                        for (send, gradient) in last {
                            if wanted.contains(&send) {
                                self.disk.gradients.insert((send.fragment, path, send.number), gradient);
                            }
                        }
                        self.disk.states.insert(path, *state);
                        (ChaosReply::Done, true)
                    }
                    Commit::Duplicate => (ChaosReply::Done, false),
                    Commit::Refused(error) => (refused(&error), false),
                }
            }
        }
    }

    fn granted(&self, lease: Lease) -> ChaosReply {
        let values = |receive: &ScheduledReceive| {
            let ScheduledReceive { fragment, version } = *receive;
            let newest = self.run_state.progress().versions[&fragment];
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
                ChaosReply::Lease(Box::new(GrantedLease { lease, state, globals }))
            }
            Err((fragment, version)) => {
                ChaosReply::Refused(format!("version {version} of {fragment} is needed, but deleted"))
            }
        }
    }
}

fn refused(error: &dipaco_sync::LeaseError) -> ChaosReply {
    match error {
        dipaco_sync::LeaseError::Lost { .. } => ChaosReply::Lost,
        error => ChaosReply::Refused(error.to_string()),
    }
}
