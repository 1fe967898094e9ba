//! One lease of one path: what a worker does under it, without the network.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use dipaco_shards::{Sampler, SamplerConfig, ShardsError, TokenFile};
use dipaco_sync::ScheduledSend;
use dipaco_topology::PathId;

use crate::PathError;
use crate::device::TrainDevice;
use crate::state::PathState;
use crate::trainer::{InnerConfig, Trainer};
use crate::weights::PathWeights;
use dipaco_protocol::LeaseReport;
use dipaco_protocol::WorkerPlan;

/// How far a round is, for the heartbeat; and whether it is to be given up.
#[derive(Debug, Default)]
pub struct LeaseWatch {
    steps: AtomicU64,
    /// Bits of the last loss; 0 before the first step.
    loss: AtomicU32,
    cancelled: AtomicBool,
}

impl LeaseWatch {
    /// Inner steps done, and the loss of the last one in nats per token.
    #[must_use]
    pub fn read(&self) -> (u64, Option<f32>) {
        let loss = self.loss.load(Ordering::Relaxed);
        (self.steps.load(Ordering::Relaxed), (loss != 0).then(|| f32::from_bits(loss)))
    }

    /// Notes that so many inner steps are done, and the loss of the last one.
    pub(crate) fn note(&self, steps: u64, loss: f32) {
        self.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// Asks the round to stop after the step that it is in.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A path's training data: the shard, and what of it is held out.
pub struct PathData {
    train: Sampler,
    held_out: Option<Sampler>,
    sequences: u64,
}

impl PathData {
    /// Opens a path's shard. The last `train.holdout_fraction` of its documents is held out for early stopping.
    ///
    /// # Errors
    /// When the file can't be read or holds nothing to train on.
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
            // A shard of one document can spare none, and documents of one token have nothing to predict.
            Err(ShardsError::NoSequences { .. }) => None,
            opened => Some(opened?),
        };
        let sequences = held_out.as_ref().map_or(0, Sampler::sequences).min(plan.train.holdout_sequences);
        Ok(Self { train, held_out: held_out.filter(|_| sequences > 0), sequences })
    }

    /// Mean loss of a path on the held-out documents, in nats per token; `None` when nothing is held out.
    ///
    /// # Errors
    /// When the data can't be read, or the device fails.
    pub fn held_out_loss(&self, trainer: &mut Trainer, batch: usize) -> Result<Option<f64>, PathError> {
        let Some(sampler) = &self.held_out else { return Ok(None) };
        mean_loss(trainer, sampler, self.sequences, batch)
    }
}

/// Mean loss over the first `sequences` sequences of a sampler, in nats per token; `None` when they hold no target.
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
    // Counts of tokens are far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    Ok((counted > 0).then(|| sum / counted as f64))
}

/// How many documents of a shard are held out: at least one when any are asked for, and never more than half.
fn held_out_documents(documents: u64, fraction: f64) -> u64 {
    if fraction <= 0.0 {
        return 0;
    }
    // Documents are counted far below 2^53.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let asked = (documents as f64 * fraction).round() as u64;
    asked.clamp(1, (documents / 2).max(1)).min(documents / 2)
}

/// The seed of a path's data order: another one for each path, or paths with equal shards would see equal batches.
fn data_seed(seed: u64, path: PathId) -> u64 {
    let hash = blake3::Hasher::new_derive_key("dipaco data order of a path")
        .update(&seed.to_le_bytes())
        .update(&path.0.to_le_bytes())
        .finalize();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// An outer gradient of a fragment on its way to the synchronizer.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterGradient {
    /// Which one.
    pub send: ScheduledSend,
    /// What the path's last outer gradient of this fragment, or the global weights, were minus what its weights are, as
    /// it is written.
    pub encoded: Vec<u8>,
    /// Tokens in it, padding not counted.
    pub tokens: u64,
}

/// What a finished lease leaves.
#[derive(Debug)]
pub struct TrainedLease {
    /// The outer gradients that are sent at its end.
    pub last: Vec<OuterGradient>,
    /// The path's state at the end.
    pub state: PathState,
    /// What to tell the coordinator.
    pub report: LeaseReport,
}

/// What a lease is carried out from, besides the path's weights and state.
#[derive(Clone, Copy)]
pub struct LeaseTraining<'a> {
    /// Where to compute.
    pub device: &'a TrainDevice,
    /// The run's configuration.
    pub plan: &'a WorkerPlan,
    /// The path.
    pub path: PathId,
    /// The path's data.
    pub data: &'a PathData,
    /// Inner steps of the path before the phase of routing that it is in.
    pub phase_step: u64,
    /// Up to which inner step of the path to train; not beyond where it is to measure only.
    pub to: u64,
    /// What is sent on the way, in order.
    pub sends: &'a [ScheduledSend],
}

/// Measures the held-out loss of the weights that the lease begins with, when they are global, and trains up to its end;
/// `early` gets what is sent before. In the first lease of a phase the path begins its new shard; moments and steps go
/// on.
///
/// Returns `None` when `watch` was cancelled.
///
/// # Errors
/// When training fails or diverges.
pub fn train_lease(
    round: LeaseTraining<'_>,
    mut weights: PathWeights,
    mut state: PathState,
    watch: &LeaseWatch,
    mut early: impl FnMut(OuterGradient),
) -> Result<Option<TrainedLease>, PathError> {
    let LeaseTraining { device, plan, path, data, phase_step, to, sends } = round;
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
        if now.is_empty() {
            continue;
        }
        let local = trainer.weights()?;
        for send in now {
            let encoded = weights.send(plan, path, send.fragment, &local)?;
            // A path's steps have about as many tokens each: those of this lease stand for those before it.
            let steps = schedule.steps_in(path, send.fragment.index, step);
            let tokens = report.tokens * steps / (step - from);
            let gradient = OuterGradient { send, encoded, tokens };
            if step < to { early(gradient) } else { last.push(gradient) }
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    if to > from {
        // The number of inner steps of a lease is far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let mean = loss_sum / (to - from) as f64;
        report.loss = Some(mean);
    }
    let kept = weights.keep(plan, path, &trainer.weights()?, to)?;
    let state = PathState { kept, ..trainer.into_state()? };
    Ok(Some(TrainedLease { last, state, report }))
}

/// Opens a token file and checks that it is the one that the run was started with.
///
/// # Errors
/// When it can't be read, or is another file.
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
