//! Receives the results of leases: collects their pieces, checks complete results and stores them.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_codec::encoded_len;
use dipaco_ledger::StoredResult;
use dipaco_net::Exchange;
use dipaco_store::{ObjectRef, RunStore, StoreError};
use dipaco_sync::{FragmentId, LeaseClaim, LeaseKey};
use dipaco_topology::{ModuleId, PathId, Topology};

use crate::TrainError;
use crate::blocking::{blocking, joined};
use crate::host::HostError;
use crate::host::error::CollectError;
use crate::host::gradient_check::{CheckedResult, GradientCheck};
use crate::host::peer::{Answer, OTHER_ROLE, Peer, Role};
use crate::host::reception::Reception;
use crate::host::uploads::{
    AdmittedUpload, CompleteUpload, PieceOutcome, ReceivedContent, Upload, UploadKey, UploadedPiece, Uploads,
};
use crate::host::verified_gradients::VerifiedGradients;
use dipaco_path::{Layout, PathError, check_state, longest_state};
use dipaco_protocol::{LeaseResult, PIECE_BYTES, Response, WorkerPlan};

/// A process that receives results: it knows which leases expect a result, and records stored results.
pub(crate) trait ResultReceiver: Send + Sync + 'static {
    /// Error that ends the process.
    type Error: From<HostError> + From<TrainError> + Send;

    /// Collects and checks the results.
    fn intake(&self) -> &Arc<ResultIntake>;

    /// What the connections of this process share.
    fn reception(&self) -> &Arc<Reception>;

    /// Returns whether a lease is out and asks for the result of a piece. Asked once for each upload.
    fn admit(&self, piece: &UploadedPiece) -> impl Future<Output = Result<Admission, Self::Error>> + Send;

    /// The answer to the worker of a lease that has ended; `None` if the lease is out, or if only another process knows.
    fn lost(&self, _: &LeaseClaim) -> Option<Response> {
        None
    }

    /// Records the result of an upload, which is in the store, and returns the answer to its worker.
    fn record(
        &self,
        upload: &Upload,
        stored: StoredResult,
    ) -> impl Future<Output = Result<Response, Self::Error>> + Send;
}

/// The decision about an upload.
pub(crate) enum Admission {
    /// The lease expects the result.
    Expected(AdmittedUpload),
    /// The result is not wanted; the worker gets this answer.
    Rejected(Response),
}

/// Receives one piece of a result, and with the last piece the result. Returns the answer, or `None` if the payload did
/// not arrive.
pub(crate) async fn receive<R: ResultReceiver>(
    exchange: &mut Exchange,
    host: &Arc<R>,
    peer: &Peer,
    piece: UploadedPiece,
) -> Result<Option<Response>, R::Error> {
    if peer.role == Role::Synchronizer {
        return Ok(Some(Response::Refused { reason: OTHER_ROLE.to_owned() }));
    }
    // Checked before the payload is read: a result of a wrong length costs no memory and no bandwidth.
    if let Some(refusal) = host.intake().objection(&piece) {
        return Ok(Some(refusal));
    }
    let payload = match piece.digest.bytes.min(PIECE_BYTES) {
        0 => Bytes::new(),
        limit => match exchange.receive_payload(limit).await {
            Ok(payload) => payload,
            Err(error) => {
                tracing::debug!(worker = peer.process.name, %error, "the payload of a request did not arrive");
                return Ok(None);
            }
        },
    };
    // A task of its own, which goes on when the connection breaks: a result that is stored must also be recorded. The payload's
    // memory goes with it: otherwise a peer that connects again and again would fill the memory with pieces that wait.
    let (host, memory) = (host.clone(), exchange.take_memory());
    let accepted = tokio::spawn(async move {
        let accepted = accept(&*host, piece, payload).await;
        drop(memory);
        accepted
    });
    Ok(Some(joined(accepted.await)??))
}

/// Adds a piece to its upload. Checks, stores and records the result when its last piece has arrived.
async fn accept<R: ResultReceiver>(
    host: &R,
    piece: UploadedPiece,
    payload: Bytes,
) -> Result<Response, R::Error> {
    let intake = host.intake();
    // After the payload has arrived: until then the lease may have ended, and its uploads with it.
    let upload = match intake.uploads.find(&piece) {
        Ok(upload) => upload,
        Err(key) => match host.admit(&piece).await? {
            Admission::Expected(admitted) => {
                let upload = intake.begin(key, &piece, admitted);
                // The uploads of a lease that ended meanwhile may have been dropped before this one began.
                if let Some(lost) = host.lost(&piece.claim) {
                    let LeaseClaim { key: LeaseKey { path, fence, .. }, worker } = &piece.claim;
                    intake.uploads.drop_lease(worker, *path, *fence);
                    return Ok(lost);
                }
                upload
            }
            Admission::Rejected(response) => return Ok(response),
        },
    };
    let mut complete = match intake.uploads.add_piece(&upload, piece.offset, payload).await? {
        PieceOutcome::Answer(response) => return Ok(response),
        PieceOutcome::Complete(complete) => complete,
    };
    let response = match intake.check_and_store(&upload, &mut complete).await? {
        Storing::Stored(stored) => host.record(&upload, stored).await?,
        Storing::Refused(reason) => {
            if host.reception().may_log(&piece.claim.worker) {
                tracing::warn!(worker = piece.claim.worker.name, reason, "a result is refused");
            }
            Response::Refused { reason }
        }
        Storing::Lost(error) => return Ok(intake.uploads.lose(&upload, complete, &error)),
    };
    complete.finish(response.clone());
    Ok(response)
}

/// Collects, checks and stores results. It knows the form of a result, and nothing of leases.
pub(crate) struct ResultIntake {
    pub(crate) store: RunStore,
    pub(crate) plan: WorkerPlan,
    pub(crate) topology: Topology,
    pub(crate) layout: Layout,
    /// Results of which some pieces have arrived.
    pub(crate) uploads: Uploads,
    /// Outer gradients that are checked and not folded yet.
    pub(crate) gradients: VerifiedGradients,
    /// Modules whose outer gradients, and states of whose paths, this process takes; `None` if it takes all results.
    pub(crate) modules: Option<Vec<ModuleId>>,
}

/// The outcome of checking and storing a result.
enum Storing {
    /// The result is in the store.
    Stored(StoredResult),
    /// The result is wrong, for this reason.
    Refused(String),
    /// The file of the result has failed.
    Lost(CollectError),
}

impl ResultIntake {
    /// The answer to a hello: the run's identity, and the part of the configuration that workers need.
    pub(crate) fn welcome(&self, run: String) -> Result<Answer, TrainError> {
        Ok((Response::Welcome { run, plan: self.plan.to_json()? }, None))
    }

    /// Largest length of a result in bytes; 0 if the path has no such result.
    fn result_limit(&self, path: PathId, item: LeaseResult) -> u64 {
        match item {
            LeaseResult::OuterGradient { fragment, .. } => {
                let bytes = |values| encoded_len(values as u64, self.plan.outer.compression);
                self.values(path, fragment).and_then(bytes).unwrap_or(0)
            }
            LeaseResult::State => longest_state(&self.plan, &self.topology),
        }
    }

    /// Number of values of a fragment; `None` if the path does not train it.
    fn values(&self, path: PathId, fragment: FragmentId) -> Option<usize> {
        let trains = self.topology.module_trains(fragment.module);
        let through =
            trains && path.0 < self.topology.paths() && self.topology.goes_through(path, fragment.module);
        let fragment = self.layout.fragment(fragment.module.level, fragment.index).ok()?;
        through.then(|| fragment.values())
    }

    /// The answer to a result that this process never takes, or that no lease of this run can have; `None` for any other. The
    /// coordinator takes what belongs to other modules: a lease can name an address at which another synchronizer begins.
    fn objection(&self, piece: &UploadedPiece) -> Option<Response> {
        let &UploadedPiece { ref claim, item, ref digest, .. } = piece;
        let path = claim.key.path;
        let limit = self.result_limit(path, item);
        let goes_through = |module: &ModuleId| self.topology.goes_through(path, *module);
        let own = |modules: &Vec<ModuleId>| match item {
            LeaseResult::OuterGradient { fragment, .. } => modules.contains(&fragment.module),
            LeaseResult::State => modules.iter().any(goes_through),
        };
        let reason = match item {
            _ if path.0 >= self.topology.paths() => {
                format!("there is no path {path}: this run has {} paths", self.topology.paths())
            }
            _ if !self.modules.as_ref().is_none_or(own) => {
                let reason = format!("{} is not of the modules of this synchronizer", item.name());
                return Some(Response::Elsewhere { reason });
            }
            _ if !digest.is_well_formed() => "a hash has 64 lower-case hexadecimal digits".to_owned(),
            LeaseResult::OuterGradient { fragment, .. } if limit == 0 => format!(
                "path {path} does not train fragment {} of module {}",
                fragment.index, fragment.module
            ),
            _ if digest.bytes > limit => {
                format!("{} has at most {limit} bytes here, not {}", item.name(), digest.bytes)
            }
            _ => return None,
        };
        Some(Response::Refused { reason })
    }

    /// Begins an upload. One outer gradient at a time that is too long for the memory of pieces is checked while it arrives.
    fn begin(&self, key: UploadKey, piece: &UploadedPiece, admitted: AdmittedUpload) -> Arc<Upload> {
        let check = || {
            let LeaseResult::OuterGradient { fragment, .. } = piece.item else { return None };
            // An unknown fragment is an error of the check of the complete result.
            let fragment = self.layout.fragment(fragment.module.level, fragment.index).ok()?;
            let room = self.gradients.room_on_arrival()?;
            Some(GradientCheck::new(piece.digest.bytes, fragment.values(), Some(room)))
        };
        self.uploads.begin_checked(key, piece, admitted, check)
    }

    /// Checks a complete result, and puts it into the store.
    async fn check_and_store(
        self: &Arc<Self>,
        upload: &Arc<Upload>,
        complete: &mut CompleteUpload,
    ) -> Result<Storing, HostError> {
        let (content, arrived) = (complete.content(), complete.take_check());
        let (intake, of) = (self.clone(), upload.clone());
        let (content, checked) = blocking(move || {
            let checked = intake.check(&of, &content, arrived);
            (content, checked)
        })
        .await?;
        let CheckedResult { norm, values } = match checked {
            Ok(Ok(checked)) => checked,
            Ok(Err(why)) => {
                let (item, path) = (upload.item.name(), upload.claim.key.path);
                return Ok(Storing::Refused(format!("{item} of path {path}: {why}")));
            }
            Err(error) => return Ok(Storing::Lost(error)),
        };
        let object = upload.object();
        if let Err(error) = content.publish(&self.store, &object).await? {
            return Ok(Storing::Lost(error));
        }
        // After the store has the object: a restart finds there what it does not find in memory.
        if let Some((values, room)) = values {
            self.gradients.insert(object.clone(), values);
            drop(room);
        }
        Ok(Storing::Stored(StoredResult { object, norm }))
    }

    /// Checks a result: its content is the announced content, and has the form of the item. `arrived` has read the content
    /// while it arrived.
    ///
    /// # Errors
    /// When the file of the result can't be read. Within them the reason why the result is wrong.
    fn check(
        &self,
        upload: &Upload,
        content: &ReceivedContent,
        arrived: Option<GradientCheck>,
    ) -> Result<Result<CheckedResult, HostError>, CollectError> {
        let path = upload.claim.key.path;
        if content.digest != upload.digest {
            let (expected, found) = (upload.digest.hash.clone(), content.digest.hash.clone());
            return Ok(Err(HostError::OtherContent { expected, found }));
        }
        match upload.item {
            LeaseResult::OuterGradient { fragment, .. } => {
                self.check_gradient(path, fragment, content, arrived)
            }
            LeaseResult::State => {
                match check_state(&self.plan, &self.layout, path, upload.admitted.to, content) {
                    Ok(()) => Ok(Ok(CheckedResult::default())),
                    Err(PathError::Unread(error)) => Err(CollectError::Unread(error)),
                    Err(why) => Ok(Err(why.into())),
                }
            }
        }
    }

    /// Decodes an outer gradient, unless `arrived` has done so. Every value must be finite.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn check_gradient(
        &self,
        path: PathId,
        fragment: FragmentId,
        content: &ReceivedContent,
        arrived: Option<GradientCheck>,
    ) -> Result<Result<CheckedResult, HostError>, CollectError> {
        let check = match arrived {
            Some(check) => check,
            None => {
                let length = match self.layout.fragment(fragment.module.level, fragment.index) {
                    Ok(fragment) => fragment.values(),
                    Err(why) => return Ok(Err(why.into())),
                };
                // Many gradients may wait for a slow store at the same time. Those without room are read from the store again.
                let mut check = GradientCheck::new(content.digest.bytes, length, self.gradients.room(length));
                for piece in content.pieces() {
                    if !check.read(&piece.map_err(CollectError::Unread)?) {
                        break;
                    }
                }
                check
            }
        };
        let module = fragment.module;
        Ok(check.finish().map_err(|why| PathError::OuterGradient { module, path, why }.into()))
    }
}

/// Reads the piece of an object that begins at `offset`. The answer is the piece, or the refusal of an offset at which no
/// piece begins.
///
/// # Errors
/// When the store can't deliver the object.
pub(crate) async fn read_piece(
    store: &RunStore,
    object: &ObjectRef,
    offset: u64,
) -> Result<Answer, StoreError> {
    if offset > object.bytes || !offset.is_multiple_of(PIECE_BYTES) {
        let reason = format!("no piece of {} begins at byte {offset}", object.name);
        return Ok((Response::Refused { reason }, None));
    }
    let end = object.bytes.min(offset.saturating_add(PIECE_BYTES));
    let piece = store.get_range(object, offset..end).await?;
    Ok((Response::Piece { total: object.bytes }, Some(piece)))
}

#[cfg(test)]
mod tests;
