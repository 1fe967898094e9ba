//! The training data of a path: its shard, and the documents that are held out.

use std::sync::Arc;

use dipaco_protocol::WorkerPlan;
use dipaco_shards::{IGNORE, Sampler, SamplerConfig, ShardsError, TokenFile};
use dipaco_topology::PathId;

use crate::PathError;
use crate::trainer::Trainer;

/// A path's training data: the shard, and its held-out documents.
pub struct PathData {
    pub(crate) train: Sampler,
    held_out: Option<Sampler>,
    sequences: u64,
}

impl PathData {
    /// The data of a path from its shard, an open token file with the content hash `hash`. The last
    /// `train.holdout_fraction` of its documents is held out for early stopping.
    ///
    /// # Errors
    /// When the file has another content, can't be read, or holds no document to train on.
    pub fn new(file: TokenFile, hash: &str, path: PathId, plan: &WorkerPlan) -> Result<Self, PathError> {
        if file.content_hash() != hash {
            return Err(PathError::WrongShard { file: file.path().to_owned() });
        }
        let file = Arc::new(file);
        let documents = file.documents();
        let held_out = held_out_documents(documents, plan.train.holdout_fraction);
        let length = plan.train.sequence_tokens;
        let border = documents - held_out;
        let order = SamplerConfig {
            sequence_length: length,
            seed: data_seed(plan.seed, path),
            packing: plan.train.packing,
        };
        let train = match Sampler::new(file.clone(), 0..border, order) {
            Err(ShardsError::NoSequences { .. }) => return Err(PathError::EmptyShard { path }),
            opened => opened?,
        };
        let in_turn = SamplerConfig { sequence_length: length, seed: 0, packing: false };
        let held_out = match Sampler::new(file, border..documents, in_turn) {
            // A shard of one document can spare none, and a document of one token has no target.
            Err(ShardsError::NoSequences { .. }) => None,
            opened => Some(opened?),
        };
        let sequences = held_out.as_ref().map_or(0, Sampler::sequences).min(plan.train.holdout_sequences);
        Ok(Self { train, held_out: held_out.filter(|_| sequences > 0), sequences })
    }

    /// Mean loss of a path on the held-out documents, in nats per token; `None` if the shard has none.
    ///
    /// # Errors
    /// When the data can't be read, or the device fails.
    pub fn held_out_loss(&self, trainer: &mut Trainer, batch: usize) -> Result<Option<f64>, PathError> {
        let Some(sampler) = &self.held_out else { return Ok(None) };
        mean_loss(trainer, sampler, self.sequences, batch)
    }
}

/// Mean loss over the first `sequences` sequences of a sampler, in nats per token; `None` if they hold no target.
pub fn mean_loss(
    trainer: &mut Trainer,
    sampler: &Sampler,
    sequences: u64,
    batch: usize,
) -> Result<Option<f64>, PathError> {
    let (mut sum, mut counted) = (0.0, 0u64);
    let mut position = 0;
    while position < sequences {
        let rows = usize::try_from(sequences - position).unwrap_or(usize::MAX).min(batch);
        let drawn = sampler.batch(position, rows)?;
        let log_probs = trainer.token_log_probs(&drawn)?;
        for (log_prob, _) in log_probs.iter().zip(drawn.targets()).filter(|&(_, &t)| t != IGNORE) {
            sum -= f64::from(*log_prob);
            counted += 1;
        }
        position += rows as u64;
    }

    Ok((counted > 0).then(|| sum / counted as f64))
}

/// Number of held-out documents of a shard: at least one if the fraction is positive, and at most half of the shard.
fn held_out_documents(documents: u64, fraction: f64) -> u64 {
    if fraction <= 0.0 {
        return 0;
    }
    let asked = (documents as f64 * fraction).round() as u64;
    asked.clamp(1, (documents / 2).max(1)).min(documents / 2)
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
    fn a_part_of_every_shard_that_can_spare_it_is_held_out() {
        assert_eq!(held_out_documents(1000, 0.02), 20);
        assert_eq!(held_out_documents(10, 0.02), 1);
        assert_eq!(held_out_documents(2, 0.9), 1);
        assert_eq!(held_out_documents(1, 0.02), 0);
        assert_eq!(held_out_documents(1000, 0.0), 0);
    }

    #[test]
    fn paths_draw_their_data_in_orders_of_their_own() {
        assert_ne!(data_seed(1, PathId(0)), data_seed(1, PathId(1)));
        assert_ne!(data_seed(1, PathId(0)), data_seed(2, PathId(0)));
    }
}
