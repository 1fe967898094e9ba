//! Answers to those who fetch.

use std::io::{Read, Seek, SeekFrom};

use dipaco_store::ObjectRef;
use dipaco_topology::PathId;

use super::CoordinatorRequests;
use crate::TrainError;
use crate::blocking::blocking;
use crate::host::piece;
use crate::host::{Answer, refused};
use dipaco_protocol::{PIECE_BYTES, Response};

fn outdated(object: &ObjectRef) -> Answer {
    let reason = format!("{} is not current any more; drop the work and ask for a new lease", object.name);
    (Response::Lost { reason }, None)
}

impl CoordinatorRequests {
    /// Sends a piece of an object that a worker may ask for: weights that some path needs and path states, nothing else
    /// of the store.
    pub(super) async fn object_piece(&self, object: &ObjectRef, offset: u64) -> Result<Answer, TrainError> {
        if !self.is_current(object)? {
            return Ok(outdated(object));
        }
        match piece(&self.intake.store, object, offset).await {
            Err(refused) => Ok((refused, None)),
            Ok(Ok(answer)) => Ok(answer),
            // Superseded and deleted since it was looked up.
            Ok(Err(_)) if !self.is_current(object)? => Ok(outdated(object)),
            Ok(Err(error)) => Err(error.into()),
        }
    }

    /// Reads an object that did not arrive as it should.
    pub(super) async fn check(&self, object: &ObjectRef) -> Result<Answer, TrainError> {
        if !self.is_current(object)? {
            return Ok(outdated(object));
        }
        match self.intake.store.get(object).await {
            Ok(_) => Ok((Response::Done, None)),
            Err(_) if !self.is_current(object)? => Ok(outdated(object)),
            Err(error) => Err(error.into()),
        }
    }

    fn is_current(&self, object: &ObjectRef) -> Result<bool, TrainError> {
        let ledger = self.ledger();
        let training = ledger.training()?;
        let fragments = training.modules.iter().flat_map(|module| &module.fragments);
        let mut weights = fragments.flat_map(|fragment| {
            let kept = fragment.kept.iter().map(|kept| &kept.weights);
            kept.chain([&fragment.weights]).chain(fragment.changes.iter().map(|change| &change.object))
        });
        Ok(weights.any(|weights| weights == object)
            || training.paths.iter().any(|record| record.state.as_ref() == Some(object)))
    }

    pub(super) async fn shard_piece(
        &self,
        path: PathId,
        hash: &str,
        offset: u64,
    ) -> Result<Answer, TrainError> {
        let file = match self.shard(&self.ledger(), path) {
            Ok(shard) if shard.hash != hash => {
                let reason = format!("the shard of path {path} is that of an earlier phase");
                return Ok((Response::Lost { reason }, None));
            }
            Ok(shard) => self.shards.join(&shard.file),
            Err(error) => return Ok(refused(error.to_string())),
        };
        let name = file.clone();
        let read = blocking(move || {
            let mut source = std::fs::File::open(&file)?;
            let total = source.metadata()?.len();
            source.seek(SeekFrom::Start(offset))?;
            let mut piece = Vec::new();
            source.take(PIECE_BYTES).read_to_end(&mut piece)?;
            Ok::<_, std::io::Error>((total, piece))
        })
        .await?;
        Ok(match read {
            Ok((total, piece)) => (Response::Piece { total }, Some(piece.into())),
            Err(source) => refused(format!(
                "the coordinator can't read {}: {source}; run `dipaco route assign` again",
                name.display()
            )),
        })
    }
}
