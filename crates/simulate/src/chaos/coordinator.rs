//! The coordinator of a simulated run: the real core, a disk, and one operation at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::{
    Fence, Fold, FoldRule, FoldTensor, FragmentId, Grant, Lease, LeaseClaim, LeaseKey, LeaseOutcome,
    LeaseRequest, LeaseSecret, OuterRule, OuterStep, ProcessId, RunState, ScheduledReceive, TrainingProgress,
    Weighting, fragment_ids, fragment_ids_of, merge_weights,
};
use dipaco_topology::PathId;

use super::Bug;
use super::case::{Case, RESCALE, RULE};
use super::object_store::{Item, ItemKey, ObjectName, ObjectStore};
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
    /// The stored state of each path; absent before its first completed lease.
    pub(super) states: BTreeMap<PathId, ObjectName>,
    pub(super) gradients: BTreeMap<(FragmentId, PathId, u32), ObjectName>,
}

impl SimulatedDisk {
    pub(crate) fn new(case: &Case) -> Self {
        let fragments = case.schedule.fragments();
        let all: Vec<FragmentId> = fragment_ids(&case.topology, fragments).collect();
        Self {
            incarnation: 0,
            phase: 0,
            progress: TrainingProgress::start(&case.topology, fragments),
            weights: all.iter().map(|&fragment| (fragment, seed(fragment))).collect(),
            momentum: all.iter().map(|&fragment| (fragment, [0.0; VALUES])).collect(),
            kept: BTreeMap::new(),
            states: BTreeMap::new(),
            gradients: BTreeMap::new(),
        }
    }

    /// True if the manifest refers to an object.
    pub(crate) fn refers_to(&self, name: &str) -> bool {
        self.states.values().chain(self.gradients.values()).any(|object| object.name == name)
    }
}

/// A request of a worker.
#[derive(Clone, Debug)]
pub(crate) enum ChaosRequest {
    Ask {
        held: Vec<PathId>,
    },
    Follow {
        lease: LeaseKey,
    },
    Heartbeat {
        lease: LeaseKey,
        /// Inner steps that the worker has taken in the lease.
        taken: u64,
    },
    /// Uploads a result.
    Upload {
        lease: LeaseKey,
        item: Item,
    },
    Complete {
        lease: LeaseKey,
        done: LeaseOutcome,
    },
}

/// An answer of the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum ChaosReply {
    Lease(Box<ChaosLease>),
    Wait,
    Finished,
    Done,
    Lost,
    Refused(String),
}

/// A lease with its inputs.
#[derive(Clone, Debug)]
pub(crate) struct ChaosLease {
    pub(crate) lease: Lease,
    pub(crate) state: ToyPathState,
    pub(crate) globals: Vec<(ScheduledReceive, Values)>,
}

/// Sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    /// Number of the peer: workers come first, then liars.
    pub(crate) worker: usize,
    pub(crate) incarnation: u32,
    /// Identity of the process, which its certificate and its hello prove.
    pub(crate) process: ProcessId,
    /// Number of the request at the worker.
    pub(crate) request: u64,
}

/// An answer with its recipient.
#[derive(Clone, Debug)]
pub(crate) struct ChaosAnswer {
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
    /// Records a result whose object is in the store.
    Record {
        to: Requester,
        lease: LeaseKey,
        item: Item,
        object: ObjectName,
    },
    Step(Box<ComputedStep>),
    BeginPhase,
}

/// An unfinished write to the disk.
#[derive(Debug)]
pub(crate) struct DiskWrite {
    pub(crate) disk: SimulatedDisk,
    pub(crate) merged: Option<MergedStep>,
    /// The answer to send after the write.
    pub(crate) answer: Option<ChaosAnswer>,
    /// Objects to delete after the write.
    pub(crate) obsolete: Vec<String>,
}

/// Effect of an operation outside the coordinator's memory.
pub(crate) enum Effect {
    Write(Box<DiskWrite>),
    /// Puts an object into the store, and records it afterwards. Production writes a result before it counts.
    Store(ObjectName, Box<Operation>),
    Answer(ChaosAnswer),
    Nothing,
}

/// A running coordinator.
#[derive(Debug)]
pub(crate) struct SimulatedCoordinator {
    pub(crate) run_state: RunState,
    /// The disk after all pending writes.
    pub(super) disk: SimulatedDisk,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) writing: Option<Box<DiskWrite>>,
    /// Fragments with an outer step in computation or in an unfinished write.
    computing: BTreeSet<FragmentId>,
    boundary: bool,
    pub(super) bug: Option<Bug>,
    /// The newest process of each worker.
    processes: BTreeMap<(String, String), u64>,
    /// Results of the granted leases that are in the store.
    pub(super) received: BTreeMap<(PathId, Fence), BTreeMap<ItemKey, ObjectName>>,
    /// Objects that the next write makes obsolete.
    pub(super) obsolete: Vec<String>,
    /// Number of granted leases; their secrets follow from it.
    granted: u64,
    /// True if paths are bound to the workers that hold their states.
    pub(super) bound: bool,
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
            processes: BTreeMap::new(),
            received: BTreeMap::new(),
            obsolete: Vec::new(),
            granted: 0,
            bound: case.bound,
        })
    }

    /// Expires leases, and returns the outer steps whose computation begins now.
    pub(crate) fn look(&mut self, now: Duration, store: &ObjectStore) -> Result<Vec<Operation>, String> {
        for lease in self.run_state.expire(now) {
            self.discard_received(lease.path);
        }
        if self.run_state.at_boundary() && !self.boundary {
            self.boundary = true;
            self.queue.push_back(Operation::BeginPhase);
        }
        let due = self.run_state.due(now).into_iter();
        let due: Vec<_> = due.filter(|step| !self.computing.contains(&step.fragment)).collect();
        due.into_iter()
            .map(|step| {
                self.computing.insert(step.fragment);
                self.compute(step, store)
            })
            .collect()
    }

    /// Computes the new weights of an outer step with production's merging and momentum.
    fn compute(&self, mut step: OuterStep, store: &ObjectStore) -> Result<Operation, String> {
        let fragment = step.fragment;
        if self.bug == Some(Bug::DoubleCount) && step.contributions.len() > 1 && step.version == 2 {
            let again = step.contributions[0];
            step.contributions.insert(0, again);
        }
        let gradient = |c: &dipaco_sync::Contribution| {
            let object = self.disk.gradients.get(&(fragment, c.path, c.number)).ok_or_else(|| {
                format!(
                    "outer gradient {} of path {} to {fragment} counts, but is not on the disk",
                    c.number, c.path
                )
            })?;
            store.gradient(c.path, object)
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
    ///
    /// # Errors
    /// When the store lacks an object that counts.
    pub(crate) fn operate(
        &mut self,
        now: Duration,
        operation: Operation,
        store: &ObjectStore,
    ) -> Result<Effect, String> {
        Ok(match operation {
            Operation::Answer(to, _) if !self.greets(&to.process) => Effect::Nothing,
            Operation::Answer(to, ChaosRequest::Upload { lease, item }) => self.upload(to, lease, item),
            Operation::Answer(to, request) => match self.answer(now, &to.process, request, store)? {
                (reply, true) => self.write(None, Some(ChaosAnswer { to, reply })),
                (reply, false) => Effect::Answer(ChaosAnswer { to, reply }),
            },
            Operation::Record { to, lease, item, object } => {
                match self.record(&self.claim(lease, &to.process), &item, object) {
                    (reply, true) => self.write(None, Some(ChaosAnswer { to, reply })),
                    (reply, false) => Effect::Answer(ChaosAnswer { to, reply }),
                }
            }
            Operation::Step(computed) => {
                let ComputedStep { merged, weights, momentum } = *computed;
                let step = &merged.step;
                let fragment = step.fragment;
                self.computing.remove(&fragment);
                // The planted bug repeats a contribution. The core must not see it: the audit has to find it.
                let mut core = step.clone();
                core.contributions.dedup();
                if !self.run_state.stepped(&core, Duration::from_millis(1)) {
                    return Ok(Effect::Nothing);
                }
                let before = std::mem::replace(self.disk.weights.entry(fragment).or_default(), weights);
                self.disk.kept.insert((fragment, step.version - 1), before);
                self.disk.momentum.insert(fragment, momentum);
                for contribution in &step.contributions {
                    let key = (fragment, contribution.path, contribution.number);
                    self.obsolete.extend(self.disk.gradients.remove(&key).map(|object| object.name));
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
        })
    }

    fn write(&mut self, merged: Option<MergedStep>, answer: Option<ChaosAnswer>) -> Effect {
        self.disk.progress = self.run_state.progress().clone();
        let obsolete = std::mem::take(&mut self.obsolete);
        Effect::Write(Box::new(DiskWrite { disk: self.disk.clone(), merged, answer, obsolete }))
    }

    /// Returns whether a process may still send requests: the connection of a process that has a successor is closed.
    /// The leases of an earlier process of the same worker end.
    fn greets(&mut self, process: &ProcessId) -> bool {
        let worker = (process.token.clone(), process.name.clone());
        let newest = self.processes.entry(worker).or_insert(process.instance);
        if process.instance < *newest {
            return false;
        }
        *newest = process.instance;
        let left: Vec<_> = self
            .run_state
            .leases()
            .filter(|lease| process.replaces(&lease.worker))
            .map(|lease| (lease.path, lease.fence))
            .collect();
        for (path, fence) in left {
            self.run_state.release(path, fence);
            self.discard_received(path);
        }
        true
    }

    /// The claim of a process to a lease that it names.
    pub(super) fn claim(&self, key: LeaseKey, process: &ProcessId) -> LeaseClaim {
        let named = self.run_state.lease(key.path).filter(|lease| lease.fence == key.fence);
        match named {
            // The planted bug: path and fencing number suffice.
            Some(lease) if self.bug == Some(Bug::ForeignLease) => lease.claim(),
            _ => LeaseClaim { key, worker: process.clone() },
        }
    }

    /// Answers a request. The second value is true if the disk must have the change before the worker gets the answer.
    fn answer(
        &mut self,
        now: Duration,
        process: &ProcessId,
        request: ChaosRequest,
        store: &ObjectStore,
    ) -> Result<(ChaosReply, bool), String> {
        self.granted += 1;
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&self.granted.to_le_bytes());
        let secret = LeaseSecret::new(bits);
        Ok(match request {
            ChaosRequest::Ask { held } => {
                let request = LeaseRequest { worker: process, held: &held, secret };
                match self.run_state.grant(now, &request) {
                    Grant::Finished => (ChaosReply::Finished, false),
                    Grant::Wait(_) => (ChaosReply::Wait, false),
                    Grant::Lease(lease) => (self.granted(*lease, store)?, false),
                }
            }
            ChaosRequest::Follow { lease } => {
                match self.run_state.follow(now, &self.claim(lease, process), secret) {
                    Ok(Grant::Lease(lease)) => (self.granted(*lease, store)?, false),
                    Ok(Grant::Wait(_)) => (ChaosReply::Wait, false),
                    // No lease follows.
                    Ok(Grant::Finished) => (ChaosReply::Done, false),
                    Err(error) => (refused(&error), false),
                }
            }
            ChaosRequest::Heartbeat { lease, taken } => {
                let renewed = self.run_state.heartbeat(now, &self.claim(lease, process), taken);
                (if renewed.is_ok() { ChaosReply::Done } else { ChaosReply::Lost }, false)
            }
            // Uploads go through the store first.
            ChaosRequest::Upload { .. } => (ChaosReply::Lost, false),
            ChaosRequest::Complete { lease, done } => self.complete(now, &self.claim(lease, process), &done),
        })
    }

    fn granted(&self, lease: Lease, store: &ObjectStore) -> Result<ChaosReply, String> {
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
        Ok(match lease.receives.iter().map(values).collect() {
            Ok(globals) => {
                let state = match self.disk.states.get(&lease.path) {
                    Some(object) => store.state(lease.path, object)?,
                    None => {
                        let schedule = self.run_state.schedule();
                        let topology = self.run_state.topology();
                        ToyPathState::start(&fragment_ids_of(topology, schedule.fragments(), lease.path))
                    }
                };
                ChaosReply::Lease(Box::new(ChaosLease { lease, state, globals }))
            }
            Err((fragment, version)) => {
                ChaosReply::Refused(format!("version {version} of {fragment} is needed, but deleted"))
            }
        })
    }
}

pub(super) fn refused(error: &dipaco_sync::LeaseError) -> ChaosReply {
    match error {
        dipaco_sync::LeaseError::Lost { .. } => ChaosReply::Lost,
        error => ChaosReply::Refused(error.to_string()),
    }
}
