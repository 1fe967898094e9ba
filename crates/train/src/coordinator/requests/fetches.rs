//! Answers to fetches.

use std::error::Error;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use bytes::Bytes;
use dipaco_shards::{ShardsError, TokenSetManifest};
use dipaco_store::{ObjectRef, StoreError};
use dipaco_topology::PathId;

use super::CoordinatorRequests;
use crate::TrainError;
use crate::blocking::blocking;
use crate::coordinator::error::CoordinatorError;
use crate::host::{Answer, read_piece, refused};
use dipaco_protocol::{PIECE_BYTES, Response};

/// The answer about an object that is not current. The weights and the state of a lease stay as long as it lasts, so a
/// worker that asks for them has lost its lease. Outer steps drop changes that a lease names: its worker then asks for
/// the weights.
fn outdated(object: &ObjectRef) -> Answer {
    let reason = format!("{} is not current any more; drop the work and ask for a new lease", object.name);
    (Response::Lost { reason }, None)
}

impl CoordinatorRequests {
    /// Sends a piece of an object that a worker may ask for: weights that some path needs, changes of weights, and path
    /// states. No other object of the store leaves it.
    pub(super) async fn object_piece(
        &self,
        object: &ObjectRef,
        offset: u64,
    ) -> Result<Answer, CoordinatorError> {
        self.answer_of(object, read_piece(&self.intake.store, object, offset)).await
    }

    /// A link to an object that a worker may fetch.
    pub(super) async fn object_link(&self, object: &ObjectRef) -> Answer {
        if !self.is_current(object) {
            return outdated(object);
        }
        (self.links.answer(object).await, None)
    }

    /// Reads an object that a worker received with a wrong hash. A damaged object ends the coordinator.
    pub(super) async fn check_object(&self, object: &ObjectRef) -> Result<Answer, CoordinatorError> {
        let check = async {
            self.checks.check(self.now(), &self.intake.store, object).await.map(|()| (Response::Done, None))
        };
        self.answer_of(object, check).await
    }

    /// The answer that a read of an object gives. While the store's patience lasts, the worker waits.
    async fn answer_of(
        &self,
        object: &ObjectRef,
        read: impl Future<Output = Result<Answer, StoreError>>,
    ) -> Result<Answer, CoordinatorError> {
        if !self.is_current(object) {
            return Ok(outdated(object));
        }
        match read.await {
            // Superseded and deleted since the look-up.
            Err(_) if !self.is_current(object) => Ok(outdated(object)),
            answer => Ok(answer?),
        }
    }

    /// True if the manifest refers to this object as weights, as a change of weights or as a state.
    fn is_current(&self, object: &ObjectRef) -> bool {
        self.ledger().is_current(object)
    }

    /// Sends a piece of the shard of a path: of its list, or of token file number `file` of the list.
    pub(super) async fn shard_piece(
        &self,
        path: PathId,
        hash: &str,
        file: Option<u32>,
        offset: u64,
    ) -> Result<Answer, CoordinatorError> {
        let list = match self.ledger().shard(path) {
            Ok(shard) if shard.hash != hash => {
                let reason = format!("this shard of path {path} is of an earlier phase");
                return Ok((Response::Lost { reason }, None));
            }
            Ok(shard) => self.shards.join(&shard.file),
            Err(error) => return Ok(refused(error.to_string())),
        };
        let read = || {
            let list = list.clone();
            async move { Ok(blocking(move || read_file(&list, file, offset)).await??) }
        };
        match self.intake.store.patience().repeat(read, may_pass).await {
            Ok((total, Some(piece))) => Ok((Response::Piece { total }, Some(Bytes::from(piece)))),
            Ok((total, None)) => Ok(refused(format!(
                "no piece begins at byte {offset}: this file of the shard of path {path} has {total} bytes"
            ))),
            Err(TrainError::Shards(error)) => {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                Ok(refused(format!(
                    "the coordinator can't read the shard of path {path}: {error}{cause}; run `dipaco route assign` again"
                )))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// True if a shard may be readable later: the disk failed, and the file is there.
fn may_pass(error: &TrainError) -> bool {
    matches!(error, TrainError::Shards(ShardsError::Io { source, .. }) if source.kind() != ErrorKind::NotFound)
}

/// The length of a file of a shard, and the piece of it at `offset`; `None` beyond the file's end.
fn read_file(list: &Path, file: Option<u32>, offset: u64) -> Result<(u64, Option<Vec<u8>>), ShardsError> {
    let path = match file {
        None => list.to_owned(),
        Some(file) => TokenSetManifest::read(list)?.place(list, file as usize)?,
    };
    let read = || -> std::io::Result<_> {
        let mut source = std::fs::File::open(&path)?;
        let total = source.metadata()?.len();
        if offset > total {
            return Ok((total, None));
        }
        source.seek(SeekFrom::Start(offset))?;
        let mut piece = Vec::new();
        source.take(PIECE_BYTES).read_to_end(&mut piece)?;
        Ok((total, Some(piece)))
    };
    read().map_err(|source| ShardsError::Io { action: "read", path: path.clone(), source })
}
