//! Results of leases in the ledger.

use std::sync::Arc;

use dipaco_sync::{
    Commit, Contribution, EarlyContribution, ExpectedSend, FragmentId, LeaseClaim, LeaseError, LeaseKey,
    LeaseTask, OutOfProportion,
};

use super::{FailureDecision, Ledger, TrainingFailure};
use crate::records::CountedGradient;
use crate::{ContributorRecord, LeaseResult, LedgerError, ObjectRef, ResultError};

/// A result that has passed its check and is in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredResult {
    /// The object.
    pub object: ObjectRef,
    /// Euclidean norm of an outer gradient; 0 for a state.
    pub norm: f64,
}

/// A result that a current lease makes, as [`Ledger::expects`] found. Only that function makes it.
#[derive(Clone, Debug)]
pub struct ExpectedResult {
    claim: LeaseClaim,
    item: LeaseResult,
    hash: String,
    /// Inner steps of the path after which the worker makes the result.
    to: u64,
    /// The send of an outer gradient; `None` for a state.
    send: Option<ExpectedSend>,
    /// Fingerprint of the arithmetic of the worker's device.
    numerics: String,
}

impl ExpectedResult {
    /// Inner steps of the path after which the worker makes the result.
    #[must_use]
    pub fn to(&self) -> u64 {
        self.to
    }
}

/// A result of a granted lease that is in the store.
#[derive(Debug)]
pub(super) struct ReceivedResult {
    pub(super) object: ObjectRef,
    /// Tokens in an outer gradient; 0 for a state.
    pub(super) tokens: u64,
    /// Euclidean norm of an outer gradient; 0 for a state.
    norm: f64,
    /// True if it counts with the end of its lease. An outer gradient that was sent before that end has counted at once, or is a
    /// duplicate: the manifest refers to its object as long as anything needs it.
    pub(super) waits: bool,
}

/// The outcome of recording a result.
#[derive(Debug)]
pub enum Recording {
    /// The result counts already, or counts with the end of its lease.
    Recorded,
    /// The result does not count.
    Rejected(ResultError),
    /// The outer gradient is out of proportion. It does not count, and the training of its path has failed for the worker.
    Failed(OutOfProportion, FailureDecision),
}

/// The decision about a result that may count.
enum Decision {
    /// It is this contribution to the fragment.
    Counts(FragmentId, EarlyContribution),
    /// It counts with the end of its lease.
    CountsWithLease,
    /// A lost lease of the path contributed it before.
    Duplicate,
}

/// The lease that contributes an outer gradient.
#[derive(Clone, Copy)]
pub(super) struct Contributor<'a> {
    /// Name of its worker's token.
    pub(super) token: &'a str,
    /// Fingerprint of the arithmetic of its worker's device.
    pub(super) numerics: &'a str,
    /// Inner steps of the path at the end of the lease.
    pub(super) to: u64,
}

impl Ledger {
    /// Checks that a lease makes this result.
    ///
    /// # Errors
    /// When the claim names no current lease, the lease does not expect the result, or has another content of it.
    pub fn expects(
        &self,
        claim: &LeaseClaim,
        item: LeaseResult,
        hash: &str,
    ) -> Result<ExpectedResult, ResultError> {
        let lease = self.state.check(claim)?;
        let (to, send) = match item {
            LeaseResult::OuterGradient { fragment, number, tokens } => {
                let expected = self.state.expects(claim, fragment, number, tokens)?;
                (expected.send.step, Some(expected))
            }
            LeaseResult::State => {
                if lease.task != LeaseTask::Train {
                    return Err(ResultError::Measures);
                }
                (lease.to, None)
            }
        };
        let numerics = lease.numerics.clone();
        self.check_numerics(&numerics)?;
        self.check_content(claim, item, hash)?;
        Ok(ExpectedResult { claim: claim.clone(), item, hash: hash.to_owned(), to, send, numerics })
    }

    /// Checks that a lease has no other content of a result.
    fn check_content(&self, claim: &LeaseClaim, item: LeaseResult, hash: &str) -> Result<(), ResultError> {
        let received = self.received.get(&(claim.key.path, claim.key.fence));
        match received.and_then(|received| received.get(&item.without_tokens())) {
            Some(result) if (result.object.hash.as_str(), result.tokens) != (hash, item.tokens()) => {
                Err(ResultError::OtherContent { item: item.name() })
            }
            _ => Ok(()),
        }
    }

    /// Records that a result of a lease is in the store, as [`Self::record_result`] does. The result was not checked before
    /// it was stored, or another process checked it, as one that the worker makes after `to` inner steps of the path.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn check_and_record(
        &mut self,
        claim: &LeaseClaim,
        item: LeaseResult,
        to: u64,
        stored: StoredResult,
    ) -> Result<Recording, LedgerError> {
        let error = match self.expects(claim, item, &stored.object.hash) {
            Ok(expected) if expected.to == to => return self.record_result(&expected, stored),
            Ok(expected) => ResultError::OtherSteps { item: item.name(), found: to, to: expected.to },
            Err(error) => error,
        };
        self.delete_unused([stored.object.name]);
        Ok(Recording::Rejected(error))
    }

    /// Records that a result of a lease is in the store. An outer gradient that is sent before the end of its lease
    /// counts at once. The object is deleted if it does not count.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn record_result(
        &mut self,
        expected: &ExpectedResult,
        stored: StoredResult,
    ) -> Result<Recording, LedgerError> {
        let ExpectedResult { claim, item, .. } = expected;
        let StoredResult { object, norm } = stored;
        let lease = (claim.key.path, claim.key.fence);
        let mut received =
            ReceivedResult { object: object.clone(), tokens: item.tokens(), norm, waits: false };
        match self.decide(expected, &received) {
            Ok(Decision::Counts(fragment, EarlyContribution { contribution, to })) => {
                let contributor =
                    Contributor { token: &claim.worker.token, numerics: &expected.numerics, to };
                self.count(fragment, contribution, &received, contributor)?;
                self.note_change(Vec::new());
            }
            Ok(Decision::CountsWithLease) => received.waits = true,
            Ok(Decision::Duplicate) => self.delete_unused([object.name]),
            Err(error) => {
                self.delete_unused([object.name]);
                let ResultError::OutOfProportion(failure) = error else {
                    return Ok(Recording::Rejected(error));
                };
                let decision = self.training_failed(claim, &TrainingFailure::OutOfProportion(failure))?;
                return Ok(Recording::Failed(failure, decision));
            }
        }
        self.received.entry(lease).or_default().insert(item.without_tokens(), received);
        Ok(Recording::Recorded)
    }

    /// Decides on a result that is in the store. Since [`Ledger::expects`] its lease may have ended, or another content of
    /// the result may have been recorded.
    fn decide(
        &mut self,
        expected: &ExpectedResult,
        received: &ReceivedResult,
    ) -> Result<Decision, ResultError> {
        let ExpectedResult { claim, item, hash, send, numerics, to: _ } = expected;
        let LeaseKey { path, fence, .. } = claim.key;
        let item = *item;
        if received.object.hash != *hash {
            return Err(ResultError::OtherContent { item: item.name() });
        }
        if self.closed {
            return Err(LeaseError::Lost { path, step: 0, fence }.into());
        }
        self.check_numerics(numerics)?;
        self.check_content(claim, item, hash)?;
        let Some(send) = send else {
            self.state.current(path, fence)?;
            return Ok(Decision::CountsWithLease);
        };
        let fragment = send.send.fragment;
        if let Some(objects) = self.objects.fragments.get(&fragment) {
            self.guard.check(fragment, &objects.norms, received.norm)?;
        }
        match self.state.contribute(send) {
            Commit::Accepted(Some(counted)) => Ok(Decision::Counts(fragment, counted)),
            Commit::Accepted(None) => Ok(Decision::CountsWithLease),
            Commit::Duplicate => Ok(Decision::Duplicate),
            Commit::Refused(error) => Err(error.into()),
        }
    }

    /// Keeps the object of an outer gradient that counts, and adds it to the accounts of its path and its fragment.
    pub(super) fn count(
        &mut self,
        fragment: FragmentId,
        contribution: Contribution,
        received: &ReceivedResult,
        Contributor { token, numerics, to }: Contributor<'_>,
    ) -> Result<(), LedgerError> {
        let Contribution { path, steps, tokens, .. } = contribution;
        let ReceivedResult { object, norm, .. } = received;
        self.owners.note_news(fragment);
        let slot = self.slot(fragment);
        let objects = self.objects.fragment_mut(fragment)?;
        objects.norms.remember(path, *norm);
        let gradient = CountedGradient { object: object.clone(), norm: *norm, token: token.to_owned() };
        objects.gradients.insert(contribution, Arc::new(gradient));
        let path = self.objects.path_mut(path)?;
        let fragments = path.counted.len();
        if let Some(counted) = path.counted.get_mut(slot) {
            counted.steps = counted.steps.saturating_add(steps);
            counted.tokens = counted.tokens.saturating_add(tokens);
        }
        let first = || ContributorRecord { first_step: to, ..ContributorRecord::default() };
        let contributor = path.contributors.entry(token.to_owned()).or_insert_with(first);
        contributor.gradients += 1;
        contributor.last_step = to;
        contributor.tokens = contributor.tokens.saturating_add(tokens);
        contributor.by_fragment.resize(fragments, 0);
        if let Some(gradients) = contributor.by_fragment.get_mut(slot) {
            *gradients += 1;
        }
        if contributor.numerics.len() < ContributorRecord::DEVICES {
            contributor.numerics.insert(numerics.to_owned());
        }
        if self.objects.numerics.is_none() {
            self.objects.numerics = Some(numerics.to_owned());
            self.objects.numerics_token = Some(token.to_owned());
        }
        Ok(())
    }
}
