//! The coordinator of a simulated run: production's ledger, and a driver in virtual time.
//!
//! The driver does in this order, as production does: it asks the ledger whether a result is expected, checks the
//! result, puts it into the store, and records it. The ledger gives the parts of a write in their order, and keeps the answers
//! back until their change is on the disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use dipaco_ledger::{
    Arrival, ConnectionNumber, Departure, DroppedObjects, ExpectedResult, FailureDecision, KnownProcesses,
    LeaseCompletion, LeaseResult, Ledger, Recording, ResultError, SavedCheckpoint, StoredResult, StoredRun,
    TrainingFailure, UntilWritten,
};
use dipaco_sync::{
    FragmentId, Grant, Lease, LeaseClaim, LeaseError, LeaseKey, LeaseRequest, LeaseSecret, ProcessId,
};

use super::Bug;
use super::case::Case;
use super::disk::SimulatedDisk;
use super::messages::{ChaosAnswer, ChaosLease, ChaosReply, ChaosRequest, Requester};
use super::object_store::{Content, ObjectStore};
use super::outer_step::AskedStep;
use super::storing_result::StoringResult;
use super::toy::{InputWeights, MergedStep, ToyPathState};

mod outer_steps;

/// The outcome of a request.
pub(crate) enum Handled {
    /// The answer.
    Answer(ChaosReply),
    /// The answer, once all changes of the ledger are on the disk.
    AnswerOnDisk(ChaosReply),
    /// The result goes into the store, and is recorded afterwards.
    Store(Box<StoringResult>),
    /// The connection of the process is closed.
    Nothing,
}

/// A running coordinator.
#[derive(Debug)]
pub(crate) struct SimulatedCoordinator {
    pub(crate) ledger: Ledger,
    pub(super) bug: Option<Bug>,
    known: KnownProcesses<()>,
    /// The open connections.
    open: BTreeMap<ProcessId, ConnectionNumber>,
    /// The processes whose connections have ended: nothing of them arrives any more.
    ended: BTreeSet<ProcessId>,
    /// Number of granted leases; their secrets follow from it.
    granted: u64,
    /// The deadline for which a timer is set.
    pub(crate) timer: Option<Duration>,
    /// Answers that wait for a change of the ledger to be on the disk.
    pub(crate) answers: UntilWritten<ChaosAnswer>,
    /// Outer steps of changes that are not on the disk.
    pub(crate) merged: UntilWritten<MergedStep>,
    /// Objects to delete when the reader has not pinned them.
    pub(crate) dropped: DroppedObjects,
    /// Ordered outer steps that are not taken; the first one is in computation.
    pub(super) ordered: VecDeque<AskedStep>,
    /// The last order of each fragment, until its step counts: version and fencing number.
    pub(super) asked: BTreeMap<FragmentId, (u32, u64)>,
    /// True while the text is divided for the next phase.
    pub(crate) rerouting: bool,
}

impl SimulatedCoordinator {
    /// Continues the run from the disk.
    pub(crate) fn take_over(
        case: &Case,
        disk: &SimulatedDisk,
        store: &ObjectStore,
        bug: Option<Bug>,
    ) -> Result<Self, String> {
        let mut manifest = disk.manifest.clone();
        if bug == Some(Bug::LostMomentum)
            && let Some(training) = &mut manifest.training
        {
            let fragments = training.modules.iter_mut().flat_map(|module| &mut module.fragments);
            fragments.for_each(|fragment| fragment.momentum = None);
        }
        let mut checkpoints = Vec::new();
        for record in &manifest.checkpoints {
            let Content::Checkpoint(content) = store.get(&record.object)? else {
                return Err(format!("{} is no checkpoint", record.object.name));
            };
            let training = serde_json::from_slice(content).map_err(|error| error.to_string())?;
            checkpoints.push(SavedCheckpoint { record: record.clone(), training });
        }
        let stored = StoredRun { manifest, checkpoints, names: store.names() };
        let ledger = Ledger::take_over(stored, case.topology.clone(), case.plan());
        Ok(Self {
            ledger: ledger.map_err(|error| error.to_string())?,
            bug,
            known: KnownProcesses::default(),
            open: BTreeMap::new(),
            ended: BTreeSet::new(),
            granted: 0,
            timer: None,
            answers: UntilWritten::default(),
            merged: UntilWritten::default(),
            dropped: DroppedObjects::default(),
            ordered: VecDeque::new(),
            asked: BTreeMap::new(),
            rerouting: false,
        })
    }

    /// Returns whether a process has an open connection. The first request opens it.
    pub(super) fn greets(&mut self, process: &ProcessId) -> bool {
        if self.ended.contains(process) {
            return false;
        }
        if !self.open.contains_key(process) {
            let Arrival { number, gone, .. } = self.known.register(process, ());
            self.open.insert(process.clone(), number);
            for gone in &gone {
                self.ledger.part_with(gone);
            }
        }
        true
    }

    /// The connection of a killed process ends.
    pub(super) fn connection_ends(&mut self, now: Duration, process: &ProcessId) {
        self.ended.insert(process.clone());
        self.ledger.release_modules(now, process);
        let Some(number) = self.open.remove(process) else { return };
        if self.known.left(process, number) == Departure::Succeeded {
            self.ledger.part_with(process);
        }
    }

    /// The claim of a process to a lease that it names.
    fn claim(&self, key: LeaseKey, process: &ProcessId) -> LeaseClaim {
        let named = self.ledger.state().lease(key.path).filter(|lease| lease.fence == key.fence);
        match named {
            // The planted bug: path and fencing number suffice.
            Some(lease) if self.bug == Some(Bug::ForeignLease) => lease.claim(),
            _ => LeaseClaim { key, worker: process.clone() },
        }
    }

    /// A secret that no other lease has.
    fn secret(&mut self) -> LeaseSecret {
        self.granted += 1;
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&self.granted.to_le_bytes());
        bits[8..12].copy_from_slice(&self.ledger.incarnation().to_le_bytes());
        LeaseSecret::new(bits)
    }

    /// Handles a request.
    ///
    /// # Errors
    /// When the store lacks an object that counts, or the ledger contradicts itself.
    pub(crate) fn handle(
        &mut self,
        now: Duration,
        to: &Requester,
        request: ChaosRequest,
        store: &ObjectStore,
    ) -> Result<Handled, String> {
        let process = &to.process;
        if !self.greets(process) {
            return Ok(Handled::Nothing);
        }
        Ok(match request {
            ChaosRequest::Ask { held } => {
                let request =
                    LeaseRequest { worker: process, held: &held, secret: self.secret(), numerics: "" };
                let grant = self.ledger.grant(now, &request);
                Handled::Answer(self.granted(Ok(grant), store)?.unwrap_or(ChaosReply::Finished))
            }
            ChaosRequest::Follow { lease } => {
                let (claim, secret) = (self.claim(lease, process), self.secret());
                let grant = self.ledger.follow(now, &claim, secret);
                // No lease follows.
                Handled::Answer(self.granted(grant, store)?.unwrap_or(ChaosReply::Done))
            }
            ChaosRequest::Heartbeat { lease, taken, repeated } => {
                let renewed = self.ledger.heartbeat(now, &self.claim(lease, process), taken, repeated);
                Handled::Answer(if renewed.is_ok() { ChaosReply::Done } else { ChaosReply::Lost })
            }
            ChaosRequest::Upload { lease, item, content } => self.upload(to, lease, item, content),
            ChaosRequest::Diverged { lease, step } => {
                let (claim, failure) = (self.claim(lease, process), TrainingFailure::Diverged { step });
                let decision = self.ledger.training_failed(&claim, &failure);
                Handled::AnswerOnDisk(match decision.map_err(|error| error.to_string())? {
                    FailureDecision::Lost(_) => ChaosReply::Lost,
                    FailureDecision::Retried | FailureDecision::Alone | FailureDecision::Quarantined(_) => {
                        ChaosReply::Done
                    }
                })
            }
            ChaosRequest::Complete { lease, report } => {
                let completion = self.ledger.complete_lease(now, &self.claim(lease, process), &report);
                Handled::AnswerOnDisk(match completion.map_err(|error| error.to_string())? {
                    LeaseCompletion::Accepted { .. } | LeaseCompletion::Duplicate => ChaosReply::Done,
                    LeaseCompletion::Lost(error) => refused(&error.into()),
                    LeaseCompletion::Closed => ChaosReply::Lost,
                    LeaseCompletion::OtherNumerics(other) => ChaosReply::Refused(other.to_string()),
                    LeaseCompletion::Incomplete(missing) => {
                        ChaosReply::Refused(format!("{missing} is missing"))
                    }
                })
            }
        })
    }

    /// Admits a result and checks it, before it goes into the store.
    fn upload(&self, to: &Requester, lease: LeaseKey, item: LeaseResult, content: Content) -> Handled {
        let claim = self.claim(lease, &to.process);
        let hash = content.under(String::new()).hash;
        let expected = match self.ledger.expects(&claim, item, &hash) {
            Ok(expected) => Some(expected),
            // The planted bug: whatever a lease may have is written.
            Err(ResultError::OtherContent { .. }) if self.bug == Some(Bug::OverwrittenObject) => None,
            Err(error) => return Handled::Answer(refused(&error)),
        };
        let end = expected.as_ref().map_or(0, ExpectedResult::to);
        let norm = match (&content, item) {
            (Content::Gradient(gradient), LeaseResult::OuterGradient { .. }) => gradient.norm(),
            (Content::State(state), LeaseResult::State)
                if state.step == end || self.bug == Some(Bug::UncheckedState) =>
            {
                0.0
            }
            _ => {
                return Handled::Answer(ChaosReply::Refused(format!("{}: wrong content", item.name())));
            }
        };
        let name = match self.bug {
            Some(Bug::OverwrittenObject) => item.object_name(lease, 0, "hash"),
            _ => item.object_name(lease, end, &hash),
        };
        let stored = StoredResult { object: content.under(name), norm };
        Handled::Store(Box::new(StoringResult { to: to.clone(), claim, item, expected, stored, content }))
    }

    /// Records a result that is in the store.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub(crate) fn record(&mut self, result: StoringResult) -> Result<ChaosReply, String> {
        let StoringResult { claim, item, expected, stored, .. } = result;
        let recording = match expected {
            Some(expected) => self.ledger.record_result(&expected, stored),
            None => self.ledger.check_and_record(&claim, item, 0, stored),
        };
        Ok(match recording.map_err(|error| error.to_string())? {
            Recording::Recorded => ChaosReply::Done,
            Recording::Rejected(error) => refused(&error),
            Recording::Failed(_, _) if !self.ledger.is_out(&claim) => ChaosReply::Lost,
            Recording::Failed(failure, _) => ChaosReply::Refused(failure.to_string()),
        })
    }

    /// The answer to a request for a lease; `None` if there is none for the worker.
    fn granted(
        &self,
        grant: Result<Grant, LeaseError>,
        store: &ObjectStore,
    ) -> Result<Option<ChaosReply>, String> {
        Ok(match grant {
            Ok(Grant::Lease(lease)) => Some(ChaosReply::Lease(Box::new(self.lease(&lease, store)?))),
            Ok(Grant::Wait(_)) => Some(ChaosReply::Wait),
            Ok(Grant::Finished) => None,
            Err(error) => Some(refused(&error.into())),
        })
    }

    /// A lease with its inputs from the store.
    fn lease(&self, lease: &Lease, store: &ObjectStore) -> Result<ChaosLease, String> {
        let lease = self.ledger.granted_lease(lease).map_err(|error| error.to_string())?;
        let inputs = |weights: &[dipaco_ledger::FragmentWeights]| {
            let input = |weights: &dipaco_ledger::FragmentWeights| {
                Ok::<_, String>(InputWeights {
                    fragment: weights.fragment,
                    weights: store.weights(&weights.object)?,
                    received: weights.received,
                    share: weights.share,
                })
            };
            weights.iter().map(input).collect::<Result<Vec<_>, _>>()
        };
        let fragments: Vec<_> = lease.weights.iter().map(|weights| weights.fragment).collect();
        let stored = match &lease.state {
            Some(object) => store.state(object)?,
            None => ToyPathState::start(&fragments),
        };
        let replay = lease.replay.iter().map(|completed| inputs(&completed.weights));
        Ok(ChaosLease {
            weights: inputs(&lease.weights)?,
            stored,
            replay: replay.collect::<Result<_, _>>()?,
            lease,
        })
    }
}

/// The answer to a result or a claim that does not count.
fn refused(error: &ResultError) -> ChaosReply {
    match error {
        ResultError::Lease(LeaseError::Lost { .. }) => ChaosReply::Lost,
        error => ChaosReply::Refused(error.to_string()),
    }
}
