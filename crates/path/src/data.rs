//! The training data of a path: its shard, and the documents that are held out.

use std::sync::Arc;

use dipaco_protocol::WorkerPlan;
use dipaco_shards::{DocumentSet, IGNORE, Sampler, SamplerConfig, ShardsError, TokenSet};
use dipaco_topology::PathId;

use crate::PathError;
use crate::held_out::held_out_documents;
use crate::trainer::Trainer;

/// A path's training data: the shard, and its held-out documents.
pub struct PathData {
    pub(crate) train: Sampler,
    held_out: Option<Sampler>,
    sequences: u64,
    /// Tokens at the start of a held-out sequence that are read and not counted, as in an evaluation.
    prefix: usize,
}

impl PathData {
    /// The data of a path from its shard, an open token file with the content hash `hash`. A share
    /// `train.holdout_fraction` of its documents is held out for early stopping.
    ///
    /// # Errors
    /// When the file has another content, can't be read, or holds no document to train on.
    pub fn new(file: TokenSet, hash: &str, path: PathId, plan: &WorkerPlan) -> Result<Self, PathError> {
        if file.content_hash() != hash {
            return Err(PathError::WrongShard { file: file.path().to_owned() });
        }
        let file = Arc::new(file);
        let held_out = held_out_documents(&file, plan.train.holdout_fraction, plan.seed);
        let trained = DocumentSet::of(file.documents(), |document| !held_out.contains(document));
        let length = plan.train.sequence_tokens;
        let order = SamplerConfig {
            sequence_length: length,
            seed: data_seed(plan.seed, path),
            packing: plan.train.packing,
        };
        let train = match Sampler::selected(file.clone(), trained, order) {
            Err(ShardsError::NoSequences { .. }) => return Err(PathError::EmptyShard { path }),
            opened => opened?,
        };
        let in_turn = SamplerConfig { sequence_length: length, seed: 0, packing: false };
        let held_out = match Sampler::selected(file, held_out, in_turn) {
            // A small shard may have none, and a document of one token has no target.
            Err(ShardsError::NoSequences { .. }) => None,
            opened => Some(opened?),
        };
        let sequences = held_out.as_ref().map_or(0, Sampler::sequences).min(plan.train.holdout_sequences);
        let held_out = held_out.filter(|_| sequences > 0);
        Ok(Self { train, held_out, sequences, prefix: plan.uncounted_tokens })
    }

    /// Mean loss of a path on the held-out documents, in nats per token; `None` if the shard has none.
    ///
    /// # Errors
    /// When the data can't be read, or the device fails.
    pub fn held_out_loss(&self, trainer: &mut Trainer) -> Result<Option<f64>, PathError> {
        let Some(sampler) = &self.held_out else { return Ok(None) };
        Ok(mean_loss(trainer, sampler, self.sequences, self.prefix)?.map(|(loss, _)| loss))
    }
}

/// Mean loss over the first `sequences` sequences of a sampler, in nats per token, and the number of tokens that count;
/// `None` if they hold no target. The first `prefix` tokens of a sequence are read and not counted. It reads as many
/// sequences at once as a step does, so it needs no more memory.
pub fn mean_loss(
    trainer: &mut Trainer,
    sampler: &Sampler,
    sequences: u64,
    prefix: usize,
) -> Result<Option<(f64, u64)>, PathError> {
    let (mut sum, mut counted) = (0.0, 0u64);
    let mut position = 0;
    while position < sequences {
        let rows = usize::try_from(sequences - position).unwrap_or(usize::MAX).min(trainer.at_once());
        let drawn = sampler.batch(position, rows)?;
        let log_probs = trainer.token_log_probs(&drawn)?;
        // The target of position t is token t + 1.
        let first = prefix.max(1) - 1;
        let rows_of = log_probs.chunks_exact(drawn.time()).zip(drawn.targets().chunks_exact(drawn.time()));
        for (log_probs, targets) in rows_of {
            let row = log_probs.iter().zip(targets).skip(first);
            for (log_prob, _) in row.filter(|&(_, &target)| target != IGNORE) {
                sum -= f64::from(*log_prob);
                counted += 1;
            }
        }
        position += rows as u64;
    }
    Ok((counted > 0).then(|| (sum / counted as f64, counted)))
}

/// The seed of a path's data order. It differs between paths: otherwise paths with equal shards would see equal
/// batches.
fn data_seed(seed: u64, path: PathId) -> u64 {
    let hash = blake3::Hasher::new_derive_key("dipaco data order of a path")
        .update(&seed.to_le_bytes())
        .update(&path.0.to_le_bytes())
        .finalize();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_draw_their_data_in_orders_of_their_own() {
        assert_ne!(data_seed(1, PathId(0)), data_seed(1, PathId(1)));
        assert_ne!(data_seed(1, PathId(0)), data_seed(2, PathId(0)));
    }
}
