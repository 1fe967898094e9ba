//! The training of one path under one lease, without the network.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use dipaco_shards::{Sampler, SamplerConfig, ShardsError, TokenFile};
use dipaco_sync::ScheduledSend;
use dipaco_topology::PathId;

use crate::PathError;
use crate::device::TrainDevice;
use crate::inner_step::InnerConfig;
use crate::state::PathState;
use crate::trainer::Trainer;
use crate::weights::PathWeights;
use dipaco_protocol::LeaseReport;
use dipaco_protocol::WorkerPlan;

/// Progress of a lease's training, for the heartbeat, and the request to stop it.
#[derive(Debug, Default)]
pub struct LeaseWatch {
    steps: AtomicU64,
    /// Bits of the last loss; 0 before the first step.
    loss: AtomicU32,
    cancelled: AtomicBool,
    /// Inner steps of repeated leases.
    repeated: AtomicU64,
}

impl LeaseWatch {
    /// Number of inner steps done, and the loss of the last step in nats per token.
    #[must_use]
    pub fn read(&self) -> (u64, Option<f32>) {
        let loss = self.loss.load(Ordering::Relaxed);
        (self.steps.load(Ordering::Relaxed), (loss != 0).then(|| f32::from_bits(loss)))
    }

    /// Records the number of inner steps done and the loss of the last step.
    pub(crate) fn note(&self, steps: u64, loss: f32) {
        self.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// Number of inner steps of earlier leases that were repeated.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// Ends the repetition of an earlier lease: the steps so far are not steps of this lease.
    pub fn end_repetition(&self) {
        self.repeated.fetch_add(self.steps.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Asks the training to stop after the current step.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A path's training data: the shard, and its held-out documents.
pub struct PathData {
    train: Sampler,
    held_out: Option<Sampler>,
    sequences: u64,
}

impl PathData {
    /// Opens a path's shard. The last `train.holdout_fraction` of its documents is held out for early stopping.
    ///
    /// # Errors
    /// When the file can't be read, or holds no document to train on.
    pub fn open(file: Arc<TokenFile>, path: PathId, plan: &WorkerPlan) -> Result<Self, PathError> {
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
        let log_probs = trainer.token_log_probs(&drawn.tokens, &drawn.targets, rows)?;
        for (log_prob, _) in
            log_probs.iter().zip(&drawn.targets).filter(|&(_, &t)| t != dipaco_shards::IGNORE)
        {
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

/// The outer gradient of a fragment, as the worker uploads it.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterGradient {
    /// The send to which it belongs.
    pub send: ScheduledSend,
    /// The fragment's weights at the path's last send or receive, minus its weights now; encoded.
    pub encoded: Vec<u8>,
    /// Tokens trained on for it, padding not counted.
    pub tokens: u64,
}

/// The results of a trained lease.
#[derive(Debug)]
pub struct TrainedLease {
    /// Outer gradients that the lease sends at its end.
    pub last: Vec<OuterGradient>,
    /// The path's state after the last inner step.
    pub state: PathState,
    /// The report for the coordinator.
    pub report: LeaseReport,
}

/// The inputs of a lease's training besides the path's weights and state.
#[derive(Clone, Copy)]
pub struct LeaseTraining<'a> {
    /// The device.
    pub device: &'a TrainDevice,
    /// The run's configuration.
    pub plan: &'a WorkerPlan,
    /// The path.
    pub path: PathId,
    /// The path's data.
    pub data: &'a PathData,
    /// Number of inner steps of the path before its current phase of routing.
    pub phase_step: u64,
    /// Number of inner steps of the path after the lease; its current number if the lease only measures.
    pub to: u64,
    /// Outer gradients to send, in order.
    pub sends: &'a [ScheduledSend],
}

/// Trains a lease. First measures the held-out loss of the weights, if they are global. `early` gets each outer
/// gradient that the lease sends before its end. In the first lease of a phase the path starts its new shard from the
/// beginning; moments and number of steps continue.
///
/// Returns `None` if `watch` was cancelled.
///
/// # Errors
/// When training fails or diverges.
pub fn train_lease(
    lease: LeaseTraining<'_>,
    mut weights: PathWeights,
    mut state: PathState,
    watch: &LeaseWatch,
    mut early: impl FnMut(OuterGradient),
) -> Result<Option<TrainedLease>, PathError> {
    let LeaseTraining { device, plan, path, data, phase_step, to, sends } = lease;
    let config = InnerConfig::of_lease(plan, phase_step);
    let schedule = plan.schedule()?;
    if state.step == phase_step {
        state.position = 0;
    }
    let from = state.step;
    let global = weights.global;
    let mut trainer = weights.trainer(device, plan, state, config)?;
    let held_out_loss = if global { data.held_out_loss(&mut trainer, plan.train.batch)? } else { None };
    let mut report = LeaseReport { held_out_loss, ..LeaseReport::default() };
    let begun = Instant::now();
    let mut loss_sum = 0.0;
    let mut last = Vec::new();
    for step in from + 1..=to {
        if watch.cancelled.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let done = trainer.step(&data.train, path)?;
        loss_sum += f64::from(done.loss);
        report.tokens += done.tokens;
        watch.note(step - from, done.loss);
        let now: Vec<ScheduledSend> = sends.iter().filter(|send| send.step == step).copied().collect();
        for send in now {
            let encoded = weights.send(plan, path, send.fragment, &mut trainer)?;
            // The outer gradient may cover steps of earlier leases. All steps of a path have about the same number of
            // tokens, so the mean of this lease stands for them.
            let steps = schedule.steps_in(path, send.fragment.index, step);
            let tokens = report.tokens * steps / (step - from);
            let gradient = OuterGradient { send, encoded, tokens };
            if step < to { early(gradient) } else { last.push(gradient) }
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    if to > from {
        let mean = loss_sum / (to - from) as f64;
        report.loss = Some(mean);
    }
    let kept = weights.keep(plan, path, &mut trainer, to)?;
    let state = PathState { kept, ..trainer.into_state()? };
    Ok(Some(TrainedLease { last, state, report }))
}

/// Opens a token file and checks its content hash against the run's shard.
///
/// # Errors
/// When the file can't be read, or has another content.
pub fn open_shard(file: &FilePath, hash: &str) -> Result<Arc<TokenFile>, PathError> {
    let opened = TokenFile::open(file)?;
    if opened.content_hash() != hash {
        return Err(PathError::WrongShard { file: file.to_owned() });
    }
    Ok(Arc::new(opened))
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
