//! The training of one path under one lease, without the network.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use dipaco_sync::{FragmentId, ScheduledSend};
use dipaco_topology::PathId;

use crate::PathError;
use crate::data::PathData;
use crate::device::TrainDevice;
use crate::inner_step::InnerConfig;
use crate::kept_parts::KeptParts;
use crate::state::PathState;
use crate::trained_state::problem_of;
use crate::trainer::Trainer;
use crate::trainer_memory::TrainerMemory;
use crate::weights::{LocalModule, PathWeights};
use dipaco_protocol::LeaseReport;
use dipaco_protocol::WorkerPlan;

/// A stage of a lease's training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingStage {
    /// The path is on the device, before the first inner step.
    Loaded,
    /// The last inner step is done.
    Trained,
}

/// Hears of the stages of a training.
struct StageObserver(Box<dyn Fn(TrainingStage) + Send + Sync>);

impl std::fmt::Debug for StageObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StageObserver")
    }
}

/// Progress of a lease's training, for the heartbeat, and the request to stop it.
#[derive(Debug, Default)]
pub struct LeaseWatch {
    steps: AtomicU64,
    /// Bits of the last loss; 0 before the first step.
    loss: AtomicU32,
    cancelled: AtomicBool,
    /// Inner steps of repeated leases.
    repeated: AtomicU64,
    observer: Option<StageObserver>,
}

impl LeaseWatch {
    /// Number of inner steps done, and the loss of the last step in nats per token.
    #[must_use]
    pub fn read(&self) -> (u64, Option<f32>) {
        let loss = self.loss.load(Ordering::Relaxed);
        (self.steps.load(Ordering::Relaxed), (loss != 0).then(|| f32::from_bits(loss)))
    }

    /// A watch that calls `observe` at each stage of the training, on the training's thread.
    pub fn observed(observe: impl Fn(TrainingStage) + Send + Sync + 'static) -> Self {
        Self { observer: Some(StageObserver(Box::new(observe))), ..Self::default() }
    }

    fn reached(&self, stage: TrainingStage) {
        if let Some(StageObserver(observe)) = &self.observer {
            observe(stage);
        }
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
    /// True if somebody gets the held-out loss of the weights with which the lease begins.
    pub measures: bool,
    /// Memory of the training before, which this training takes over and leaves to the next.
    pub memory: &'a TrainerMemory,
}

/// Trains a lease. First measures the held-out loss of the weights, if the lease measures and they are global. `early` gets
/// each outer gradient that the lease sends before its end. In the first lease of a phase the path starts its new shard from
/// the beginning; moments and number of steps continue. At the end the moments are rounded to `train.state_dtype`.
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
    let LeaseTraining { device, plan, path, data, phase_step, to, sends, measures, memory } = lease;
    let schedule = plan.schedule()?;
    if state.step == phase_step {
        state.position = 0;
    }
    let from = state.step;
    let rested = from - schedule.trained(path, 0, from);
    let config = InnerConfig::of_lease(plan, phase_step, rested);
    let global = weights.global;
    // The trainer puts them on its device, so a copy of its own is freed before the first step.
    let local = std::mem::take(&mut weights.local);
    let views: Vec<_> = local.iter().map(LocalModule::view).collect();
    let topology = &weights.topology;
    let mut trainer = Trainer::reusing(memory, device, &plan.model, topology, &views, state, config)?;
    drop(local);
    let held_out_loss = if measures && global { data.held_out_loss(&mut trainer)? } else { None };
    let mut report = LeaseReport { held_out_loss, ..LeaseReport::default() };
    watch.reached(TrainingStage::Loaded);
    let begun = Instant::now();
    let mut loss_sum = 0.0;
    let mut last = Vec::new();
    for step in from + 1..=to {
        if watch.cancelled.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let batch = data.train.batch(trainer.position(), plan.train.batch)?;
        let done = trainer.step(&batch, path)?;
        loss_sum += f64::from(done.loss);
        report.tokens += done.tokens;
        watch.note(step - from, done.loss);
        if step == to {
            watch.reached(TrainingStage::Trained);
        }
        let now: Vec<ScheduledSend> = sends.iter().filter(|send| send.step == step).copied().collect();
        for send in now {
            let FragmentId { index, .. } = send.fragment;
            let another = sends.iter().any(|other| other.fragment == send.fragment && other.step > step)
                || KeptParts::of(plan, &schedule, path, to, index).base;
            let encoded = weights.send(plan, path, send.fragment, &mut trainer, another)?;
            // The outer gradient may cover steps of earlier leases. All steps of a path have about the same number of
            // tokens, so the mean of this lease stands for them. A lease whose length follows its worker's speed sends
            // all of its steps and no others.
            let dynamic = plan.sync.dynamic_steps;
            let steps = if dynamic { step - from } else { schedule.steps_in(path, index, step) };
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
    let mut state = PathState { kept, ..trainer.end(memory)? };
    if to > from {
        // A lease that only measures begins with moments that are rounded, and changes none.
        state.round_moments(plan.train.state_dtype);
        // The coordinator would refuse the state, and this worker could not go on from it either.
        if let Some(problem) = problem_of(plan, &weights.topology, &state) {
            return Err(PathError::DivergedResult { path, step: state.step.saturating_sub(1), problem });
        }
    }
    Ok(Some(TrainedLease { last, state, report }))
}
