//! Answers to requests with results of leases.

use std::sync::Arc;
use std::time::Duration;

use dipaco_ledger::{
    FailureDecision, LeaseCompletion, Ledger, LedgerError, QuarantineRecord, Recording, ResultError,
    StoredResult, TrainingFailure, possible_loss,
};
use dipaco_store::ObjectRef;
use dipaco_sync::{LeaseClaim, LeaseError, LeaseKey, LeaseTask};
use dipaco_telemetry::Event;

use super::CoordinatorRequests;
use crate::coordinator::error::CoordinatorError;
use crate::host::{
    Admission, AdmittedUpload, Answer, Reception, ResultIntake, ResultReceiver, Upload, UploadedPiece,
    refused,
};
use dipaco_protocol::{ContentDigest, LeaseReport, LeaseResult, Response};

impl ResultReceiver for CoordinatorRequests {
    type Error = CoordinatorError;

    fn intake(&self) -> &Arc<ResultIntake> {
        &self.intake
    }

    fn reception(&self) -> &Arc<Reception> {
        &self.reception
    }

    async fn admit(&self, piece: &UploadedPiece) -> Result<Admission, CoordinatorError> {
        Ok(match self.ledger().expects(&piece.claim, piece.item, &piece.digest.hash) {
            Ok(expected) => {
                Admission::Expected(AdmittedUpload { to: expected.to(), expected: Some(expected) })
            }
            Err(error) => Admission::Rejected(refusal(&error)),
        })
    }

    fn lost(&self, claim: &LeaseClaim) -> Option<Response> {
        let error = self.ledger().state().check(claim).err()?;
        Some(Response::Lost { reason: error.to_string() })
    }

    /// Records that a result is in the store. Its lease may have ended since the upload began. A result for the end of a
    /// lease counts only with [`complete_lease`](Self::complete_lease).
    async fn record(&self, upload: &Upload, stored: StoredResult) -> Result<Response, CoordinatorError> {
        let recording = self.count(|ledger| match &upload.admitted.expected {
            Some(expected) => ledger.record_result(expected, stored),
            None => ledger.check_and_record(&upload.claim, upload.item, upload.admitted.to, stored),
        })?;
        self.recorded(&upload.claim, upload.item, recording).await
    }
}

impl CoordinatorRequests {
    /// Makes a change with which results may begin to count. The first one sets the fingerprint of the run. So it wakes the
    /// workers that wait: those with other devices give their leases back.
    fn count<T>(
        &self,
        change: impl FnOnce(&mut Ledger) -> Result<T, LedgerError>,
    ) -> Result<T, CoordinatorError> {
        let (changed, is_first) = self.try_change(|ledger| {
            let is_set = ledger.numerics().is_some();
            let changed = change(ledger)?;
            Ok((changed, !is_set && ledger.numerics().is_some()))
        })?;
        if is_first {
            self.changed.notify_waiters();
        }
        Ok(changed)
    }

    /// Waits until a recorded result is on the disk, and returns the answer.
    async fn recorded(
        &self,
        claim: &LeaseClaim,
        item: LeaseResult,
        recording: Recording,
    ) -> Result<Response, CoordinatorError> {
        self.notify_synchronizers();
        self.on_disk().await?;
        Ok(match recording {
            Recording::Recorded => Response::Done,
            Recording::Rejected(error) => {
                if self.reception.may_log(&claim.worker) {
                    tracing::warn!(path = %claim.key.path, item = item.name(), %error, "a result does not count");
                }
                refusal(&error)
            }
            Recording::Failed(failure, decision) => {
                if self.reception.may_log(&claim.worker) {
                    tracing::warn!(path = %claim.key.path, item = item.name(), %failure, "a result does not count");
                }
                self.follow_failure(claim, &decision);
                let reason = failure.to_string();
                if self.ledger().is_out(claim) {
                    Response::Refused { reason }
                } else {
                    Response::Lost { reason }
                }
            }
        })
    }

    /// Records a result that a synchronizer has checked and stored.
    pub(super) async fn record_remote_result(
        &self,
        claim: &LeaseClaim,
        item: LeaseResult,
        to: u64,
        digest: ContentDigest,
        norm: f64,
    ) -> Result<Response, CoordinatorError> {
        if !digest.is_well_formed() || !norm.is_finite() {
            let reason = format!("{} has a hash of another form, or a norm that is no number", item.name());
            return Ok(Response::Refused { reason });
        }
        // The peer names no object: it could name one that counts.
        let name = item.object_name(claim.key, to, &digest.hash);
        let ContentDigest { hash, bytes } = digest;
        let stored = StoredResult { object: ObjectRef { name, hash, bytes }, norm };
        let recording = self.count(|ledger| ledger.check_and_record(claim, item, to, stored))?;
        self.recorded(claim, item, recording).await
    }

    /// Ends a lease whose training diverged after inner step `step` of the path.
    pub(super) async fn diverged(&self, claim: &LeaseClaim, step: u64) -> Result<Answer, CoordinatorError> {
        let failure = TrainingFailure::Diverged { step };
        let decision = self.try_change(|ledger| ledger.training_failed(claim, &failure))?;
        self.on_disk().await?;
        if !matches!(decision, FailureDecision::Lost(_)) && self.reception.may_log(&claim.worker) {
            let (path, worker) = (claim.key.path, &claim.worker.name);
            tracing::warn!(%path, worker, step, "the training of a path diverged");
        }
        self.follow_failure(claim, &decision);
        Ok(match decision {
            FailureDecision::Lost(error) => (Response::Lost { reason: error.to_string() }, None),
            FailureDecision::Retried | FailureDecision::Quarantined(_) => (Response::Done, None),
            FailureDecision::Alone => refused(
                "the training of this path has failed for every worker that is known: lower the learning rate, clip \
                 gradients, or let another machine join",
            ),
        })
    }

    /// Drops what belongs to a lease that ended with the failure of its training, and tells of a quarantine.
    fn follow_failure(&self, claim: &LeaseClaim, decision: &FailureDecision) {
        if !matches!(decision, FailureDecision::Lost(_)) && !self.ledger().is_out(claim) {
            self.progress.lost(claim.key.path);
            self.drop_ended_uploads(&claim.worker, claim.key.path, claim.key.fence);
        }
        self.announce(claim, decision);
        self.changed.notify_waiters();
    }

    /// Tells that a path has gone into quarantine.
    fn announce(&self, claim: &LeaseClaim, decision: &FailureDecision) {
        let FailureDecision::Quarantined(record) = decision else { return };
        let QuarantineRecord { step, workers, reason, back_to } = record.clone();
        let path = claim.key.path;
        tracing::error!(%path, step, ?workers, reason, back_to, "a path goes into quarantine: nobody trains it any more");
        self.progress.event(Event::PathQuarantined { path, step, workers, reason });
        self.note_progress();
        // Its modules need not wait for it any more.
        self.notify_synchronizers();
        self.changed.notify_waiters();
    }

    /// Completes a lease: its results count together with its report.
    pub(super) async fn complete_lease(
        &self,
        claim: &LeaseClaim,
        report: LeaseReport,
    ) -> Result<Answer, CoordinatorError> {
        let LeaseKey { path, fence, .. } = claim.key;
        let worker = &claim.worker.name;
        let loss = possible_loss(report.loss).unwrap_or(f64::NAN);
        let completed = self.count(|ledger| {
            let completed = ledger.complete_lease(self.now(), claim, &report);
            if let Ok(LeaseCompletion::Accepted { lease, .. }) = &completed
                && lease.task == LeaseTask::Train
            {
                let taken = ledger.state().steps_taken();
                self.progress.committed(path, fence, lease.from..lease.to, loss, taken);
            }
            completed
        })?;
        // A duplicate waits too: the write of its first request may still be under way.
        self.on_disk().await?;
        match completed {
            LeaseCompletion::Closed => {
                Ok((Response::Lost { reason: "the coordinator stops".to_owned() }, None))
            }
            LeaseCompletion::Duplicate => Ok((Response::Done, None)),
            LeaseCompletion::Lost(error) => {
                let (worker, reason) = (worker.clone(), error.to_string());
                self.progress.event_of_peer(Event::ResultRefused {
                    path,
                    round: self.round(error.step().unwrap_or(0)),
                    worker,
                    reason: reason.clone(),
                });
                Ok((Response::Lost { reason }, None))
            }
            LeaseCompletion::OtherNumerics(other) => Ok((Response::Lost { reason: other.to_string() }, None)),
            LeaseCompletion::Incomplete(missing) => Ok(refused(format!("{missing} is missing"))),
            LeaseCompletion::Accepted { lease, best } => {
                self.drop_ended_uploads(&claim.worker, path, fence);
                self.progress.add_linked(report.linked_bytes);
                let round = self.round(lease.from);
                let now = self.now();
                let seconds = possible_time(report.seconds, now.saturating_sub(lease.granted));
                // A worker waits before the grant, too. A wait for an earlier coordinator is none under this one.
                let waited_seconds = possible_time(report.waited_seconds, now);
                self.note_progress();
                if lease.task == LeaseTask::Train {
                    self.progress.add_time(seconds, waited_seconds);
                    self.notify_synchronizers();
                }
                self.progress.event(Event::PathCompleted {
                    path,
                    round,
                    worker: worker.clone(),
                    steps: Some(lease.to.saturating_sub(lease.from)),
                    loss,
                    heldout_loss: possible_loss(report.held_out_loss),
                    best,
                    seconds,
                    waited_seconds,
                });
                tracing::debug!(%path, round, %fence, worker, "committed");
                self.wake_after_lease(&claim.worker);
                Ok((Response::Done, None))
            }
        }
    }
}

/// The seconds that a peer reports, and at most those that have passed; 0 if no time has so many.
fn possible_time(seconds: f64, passed: Duration) -> f64 {
    if seconds.is_finite() { seconds.clamp(0.0, passed.as_secs_f64()) } else { 0.0 }
}

/// The answer to the worker of a result that does not count.
fn refusal(error: &ResultError) -> Response {
    let reason = error.to_string();
    match error {
        ResultError::Lease(LeaseError::Lost { .. }) | ResultError::OtherNumerics(_) => {
            Response::Lost { reason }
        }
        _ => Response::Refused { reason },
    }
}

#[cfg(test)]
mod tests;
