//! Takes what workers bring: pieces are put together, and what is whole is checked and put into the store.

use std::sync::{Arc, Mutex, PoisonError};

use dipaco_model::{parameters, path_specs};
use dipaco_store::{ObjectRef, RunStore, StoreError};
use dipaco_sync::{FragmentId, Guard};
use dipaco_topology::{PathId, Topology};

use crate::TrainError;
use crate::blocking::blocking;
use crate::host::connections::Answer;
use crate::host::uploads::{CompleteUpload, ReceivedContent, Uploads};
use dipaco_path::FRAGMENT_STATE_PARTS;
use dipaco_path::Layout;
use dipaco_path::module_files::{check_state, gradient_norm};
use dipaco_protocol::WorkerPlan;
use dipaco_protocol::{ContentDigest, LeaseResult, PIECE_BYTES, Request, Response};

/// Where results arrive. It knows what a result may look like, and nothing of leases.
pub(crate) struct ResultIntake {
    pub(crate) store: RunStore,
    pub(crate) plan: WorkerPlan,
    pub(crate) topology: Topology,
    pub(crate) layout: Layout,
    /// Results that are being brought.
    pub(crate) uploads: Uploads,
    /// Refuses outer gradients that are out of all proportion.
    pub(crate) guard: Mutex<Guard>,
}

impl ResultIntake {
    /// The answer to a hello: the run's identity, and everything that workers need of its configuration.
    pub(crate) fn welcome(&self, run: String) -> Result<Answer, TrainError> {
        let plan = serde_json::to_string(&self.plan).map_err(|source| TrainError::Json { source })?;
        Ok((Response::Welcome { run, plan }, None))
    }

    /// The largest payload, in bytes, that a request may bring.
    pub(crate) fn payload_limit(&self, request: &Request) -> u64 {
        match request {
            Request::Submit { path, item, whole, .. } if whole.bytes <= self.item_limit(*path, *item) => {
                whole.bytes.min(PIECE_BYTES)
            }
            _ => 0,
        }
    }

    /// The largest length of an item in bytes; 0 when the path has none like it.
    fn item_limit(&self, path: PathId, item: LeaseResult) -> u64 {
        match item {
            LeaseResult::OuterGradient { fragment, .. } => {
                let values = self.values(path, fragment).unwrap_or(0) as u64;
                let bytes = dipaco_codec::encoded_len(values, self.plan.outer.compression);
                if values == 0 { 0 } else { bytes.unwrap_or(0) }
            }
            LeaseResult::State => {
                let specs = path_specs(&self.plan.model);
                let fragments = self.topology.levels() * self.plan.sync.fragments as usize;
                // Two moments and what else a path keeps of its fragments, of four bytes a value, and a safetensors header
                // of well under 512 bytes a tensor.
                let tensors = 2 * specs.len() + FRAGMENT_STATE_PARTS * fragments;
                (2 + FRAGMENT_STATE_PARTS as u64) * (parameters(&specs) as u64 * 4)
                    + tensors as u64 * 512
                    + 4096
            }
        }
    }

    /// How many values a fragment has; `None` when the path does not go through it.
    fn values(&self, path: PathId, fragment: FragmentId) -> Option<usize> {
        let through = path.0 < self.topology.paths() && self.topology.goes_through(path, fragment.module);
        let fragment = self.layout.fragment(fragment.module.level, fragment.index).ok()?;
        through.then(|| fragment.values())
    }

    /// Why a result can't be one of this run, whatever its lease, if that is so.
    pub(crate) fn objection(
        &self,
        path: PathId,
        item: LeaseResult,
        whole: &ContentDigest,
    ) -> Option<Response> {
        let reason = match item {
            LeaseResult::OuterGradient { fragment, .. } if self.values(path, fragment).is_none() => format!(
                "path {path} does not go through fragment {} of module {}",
                fragment.index, fragment.module
            ),
            _ if whole.bytes > self.item_limit(path, item) => {
                let (name, limit) = (item.name(), self.item_limit(path, item));
                format!("{name} has at most {limit} bytes here, not {}", whole.bytes)
            }
            _ => return None,
        };
        Some(Response::Refused { reason })
    }

    /// Checks a result of which every piece has arrived, and puts it into the store under this name; or says why not.
    pub(crate) async fn keep(
        self: &Arc<Self>,
        name: String,
        (path, item): (PathId, LeaseResult),
        whole: ContentDigest,
        complete: &CompleteUpload,
    ) -> Result<Result<ObjectRef, Response>, TrainError> {
        let content = complete.content();
        let intake = self.clone();
        let (content, checked) = blocking(move || {
            let checked = intake.look_through(path, item, &whole, &content);
            (content, checked)
        })
        .await?;
        let in_vain = |why: &dyn std::fmt::Display| {
            tracing::warn!(%path, item = item.name(), %why, "a result is refused");
            let reason = format!("{} of path {path}: {why}", item.name());
            Ok(Err(Response::Refused { reason }))
        };
        match checked {
            Ok(norm) => {
                let guard = || self.guard.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((fragment, norm)) = norm
                    && let Err(why) = guard().look(fragment, norm)
                {
                    return in_vain(&why);
                }
            }
            Err(error) => return in_vain(&error),
        }
        let ContentDigest { hash, bytes } = content.whole.clone();
        let object = ObjectRef { name, hash, bytes };
        self.store.put_referenced(&object, content.pieces().cloned()).await?;
        Ok(Ok(object))
    }

    /// Whether a result is what it is said to be; returns the norm of an outer gradient.
    fn look_through(
        &self,
        path: PathId,
        item: LeaseResult,
        whole: &ContentDigest,
        content: &ReceivedContent,
    ) -> Result<Option<(FragmentId, f64)>, TrainError> {
        if content.whole != *whole {
            let (expected, found) = (whole.hash.clone(), content.whole.hash.clone());
            return Err(TrainError::OtherContent { expected, found });
        }
        match item {
            LeaseResult::OuterGradient { fragment, .. } => {
                let layout = self.layout.fragment(fragment.module.level, fragment.index)?;
                let parts = content.pieces().map(|piece| &piece[..]);
                Ok(Some((fragment, gradient_norm(path, fragment.module, &layout.specs, parts)?)))
            }
            LeaseResult::State => {
                check_state(&self.plan.model, &self.topology, &self.layout, &content.in_one()?)?;
                Ok(None)
            }
        }
    }
}

/// A piece of an object, to be answered with.
pub(crate) async fn piece(
    store: &RunStore,
    object: &ObjectRef,
    offset: u64,
) -> Result<Result<Answer, StoreError>, Response> {
    if offset > object.bytes || !offset.is_multiple_of(PIECE_BYTES) {
        let reason = format!("no piece of {} begins at byte {offset}", object.name);
        return Err(Response::Refused { reason });
    }
    let end = object.bytes.min(offset.saturating_add(PIECE_BYTES));
    let read = store.get_range(object, offset..end).await;
    Ok(read.map(|piece| (Response::Piece { total: object.bytes }, Some(piece))))
}
