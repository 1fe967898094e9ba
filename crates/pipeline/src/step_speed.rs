//! Training speed of a path, measured on random tokens. It needs no data and no run.

mod phases;

use std::sync::LazyLock;
use std::time::Instant;

use dipaco_config::{Optimizer, TrainConfig};
use dipaco_model::{
    ModelConfig, ModelError, ModuleWeights, Profile, StepMemory, StepShape, TokenBatch, TokenRows,
    backward_blocks, path_specs, split, step_memory,
};
use dipaco_path::{InnerConfig, MomentSpecs, PathState, TrainDevice, Trainer};
use dipaco_telemetry::Task;
use dipaco_topology::{Part, PathId, Topology};

pub use self::phases::PhaseTimes;
use crate::error::PipelineError;
use crate::median::Median;

/// Seed of the weights, so that each measurement computes the same.
const SEED: u64 = 0;

/// Seconds since the first call.
pub fn now() -> f64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_secs_f64()
}

/// A path whose training step is measured.
#[derive(Clone, Debug)]
pub struct StepSubject {
    /// Dimensions, with the size of the vocabulary.
    pub model: ModelConfig,
    /// The levels, which say what trains.
    pub topology: Topology,
    /// Batch, sequence length and optimizer.
    pub train: TrainConfig,
}

impl StepSubject {
    /// Memory of a step, by formula.
    pub fn memory(&self) -> StepMemory {
        memory_of_step(&self.model, &self.topology, self.train.optimizer, &shape(&self.train))
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> usize {
        self.train.batch.saturating_mul(self.train.sequence_tokens)
    }

    /// Floating-point operations of a step by the usual count: 6 per matrix parameter and token, and causal attention
    /// as half of the full square. Neither the look-up of embeddings nor the second forward pass of checkpointing
    /// counts. A frozen matrix has no gradient, which leaves 4, and below the lowest part that trains there is no
    /// backward pass, which leaves 2.
    pub fn flops(&self) -> f64 {
        let Self { model, topology, train } = self;
        let reached = backward_blocks(model, topology);
        let passes = |part: Part| match part {
            Part::Block(block) if !reached.contains(&block) => 1.0,
            _ => 2.0,
        };
        let mut operations = 0.0;
        for spec in path_specs(model) {
            if spec.part == Part::Embedding && !model.tie_embeddings {
                continue;
            }
            let gradients = if topology.part_trains(spec.part) { 1.0 } else { 0.0 };
            operations += 2.0 * spec.parameters() as f64 * (passes(spec.part) + gradients);
        }
        let attention = 2.0 * (model.attention_size() * train.sequence_tokens) as f64;
        for block in 0..model.blocks {
            // Its backward pass has twice the products of its forward pass, and no weights.
            operations += attention * if reached.contains(&block) { 3.0 } else { 1.0 };
        }
        operations * self.tokens() as f64
    }
}

/// The memory of a training step of a path, by formula.
pub fn memory_of_step(
    model: &ModelConfig,
    topology: &Topology,
    optimizer: Optimizer,
    shape: &StepShape,
) -> StepMemory {
    step_memory(model, topology, MomentSpecs::new(model, topology, optimizer).memory(), shape)
}

/// The shape of a training step, which its memory depends on.
pub fn shape(train: &TrainConfig) -> StepShape {
    StepShape {
        batch: train.batch,
        micro_batch: train.micro_batch,
        sequence_tokens: train.sequence_tokens,
        activation_checkpointing: train.activation_checkpointing,
    }
}

/// Length of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Steps at the beginning that do not count, because they allocate memory.
    pub warm_up: usize,
    /// Steps that count, at least 1.
    pub steps: usize,
    /// Seconds after which no further step begins. One step is always measured.
    pub seconds: f64,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub struct StepSpeed {
    /// Seconds of each step, ascending.
    pub seconds: Vec<f64>,
    /// Mean seconds of the phases of a step.
    pub phases: PhaseTimes,
    /// Loss of the last step, in nats per token.
    pub loss: f32,
}

impl StepSpeed {
    /// The median duration of a step in seconds.
    pub fn median(&self) -> f64 {
        self.seconds.clone().median()
    }
}

/// Trains a fresh path on random tokens and measures the time of each step. `task` counts the steps. `freed` is called before
/// the first step, each time a copy of the weights has been freed. Returns `None` when `stop` returned true between two steps.
///
/// # Errors
/// The errors of the trainer.
pub fn measure(
    device: &TrainDevice,
    subject: &StepSubject,
    effort: Effort,
    task: &Task,
    freed: impl Fn(),
    stop: impl Fn() -> bool,
) -> Result<Option<StepSpeed>, PipelineError> {
    let begin = Instant::now();
    let profile = Profile::new(now);
    let mut trainer = trainer(device, subject, effort, &freed)?.with_profile(profile.clone());
    freed();
    let batch = batch(subject)?;
    let mut seconds = Vec::new();
    let mut loss = 0.0;
    for step in 0..effort.warm_up + effort.steps {
        if stop() {
            return Ok(None);
        }
        if step == effort.warm_up {
            // The phases of the warm-up do not count.
            let _ = profile.take();
        }
        let at = Instant::now();
        loss = trainer.step(&batch, PathId(0))?.loss;
        if step >= effort.warm_up {
            seconds.push(at.elapsed().as_secs_f64());
        }
        task.note(format!("loss {loss:.3}"));
        task.add(1);
        if !seconds.is_empty() && begin.elapsed().as_secs_f64() > effort.seconds {
            break;
        }
    }
    let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
    let phases = PhaseTimes::per_step(profile.take(), seconds.len(), mean);
    seconds.sort_by(f64::total_cmp);
    Ok(Some(StepSpeed { seconds, phases, loss }))
}

/// A trainer of a path with random weights. The copies of the weights that it is made of are freed, so that they do not count as
/// memory of the step.
fn trainer(
    device: &TrainDevice,
    subject: &StepSubject,
    effort: Effort,
    freed: impl Fn(),
) -> Result<Trainer, PipelineError> {
    let StepSubject { model, topology, .. } = subject;
    let weights: Vec<ModuleWeights> = split(model, topology, &dipaco_model::init(model, SEED)?)?;
    freed();
    let state = PathState::start(&MomentSpecs::new(model, topology, subject.train.optimizer));
    let inner = InnerConfig::of_path(&subject.train, (effort.warm_up + effort.steps) as u64);
    Ok(Trainer::new(device, model, topology, &weights, state, inner)?)
}

/// Random tokens and their targets, the next tokens.
fn batch(subject: &StepSubject) -> Result<TokenBatch, ModelError> {
    let length = subject.train.sequence_tokens;
    let mut random = blake3::Hasher::new_derive_key("dipaco tokens of a measurement").finalize_xof();
    // The vocabulary is at most 2^24.
    let vocabulary = u32::try_from(subject.model.vocab_size).unwrap_or(u32::MAX).max(1);
    let mut token = || {
        let mut bytes = [0; 4];
        random.fill(&mut bytes);
        u32::from_le_bytes(bytes) % vocabulary
    };
    let (mut tokens, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..subject.train.batch {
        let sequence: Vec<u32> = (0..=length).map(|_| token()).collect();
        tokens.extend(&sequence[..length]);
        targets.extend(&sequence[1..]);
    }
    let (rows, vocabulary) = (subject.train.batch, subject.model.vocab_size);
    let tokens = TokenRows::new(tokens, rows, vocabulary)?;
    Ok(TokenBatch::new(tokens, targets, vocabulary)?)
}

#[cfg(test)]
mod tests {
    use dipaco_telemetry::{Progress, ProgressUnit};

    use super::*;
    use dipaco_topology::{LevelConfig, Modules, TopologyConfig};

    fn subject(tied: bool) -> StepSubject {
        let model = ModelConfig {
            hidden_size: 16,
            blocks: 1,
            heads: 2,
            head_dim: 8,
            ffn_size: 64,
            vocab_size: 40,
            context: 8,
            tie_embeddings: tied,
            ..ModelConfig::default()
        };
        let topology = Topology::new(&TopologyConfig::dense(1), 1).unwrap();
        let train = TrainConfig { batch: 2, sequence_tokens: 8, ..TrainConfig::default() };
        StepSubject { model, topology, train }
    }

    #[test]
    fn operations_are_counted_as_in_the_comparison() {
        // Matrices 4·16·16 + 3·64·16, norms 3·16, head 40·16; attention 1 block · 16 · 8 tokens; 16 tokens.
        let expected = 6.0 * f64::from(4 * 256 + 3 * 1024 + 48 + 640 + 128) * 16.0;
        assert_eq!(subject(false).flops(), expected);
        assert_eq!(subject(true).flops(), expected, "a shared table multiplies as often");
        let level = |blocks: &str, head: bool, frozen: bool| LevelConfig {
            modules: Modules::Count(1),
            blocks: blocks.into(),
            embedding: !head,
            head,
            frozen,
        };
        let frozen = |levels| {
            let topology = Topology::new(&TopologyConfig::grid(1, levels), 1).unwrap();
            StepSubject { topology, ..subject(false) }.flops()
        };
        let (block, head, attention) = (f64::from(4 * 256 + 3 * 1024 + 32), f64::from(640 + 16), 128.0);
        let lower = frozen(vec![level("0", false, true), level("", true, false)]);
        assert_eq!(lower, (2.0 * block + 2.0 * attention + 6.0 * head) * 16.0);
        let upper = frozen(vec![level("", false, false), level("0", true, true)]);
        assert_eq!(upper, (4.0 * block + 6.0 * attention + 4.0 * head) * 16.0);
    }

    #[test]
    fn steps_are_counted_and_can_be_stopped() {
        let progress = Progress::hidden();
        let task = progress.task("measure", None, ProgressUnit::Count("steps"));
        let effort = Effort { warm_up: 1, steps: 3, seconds: f64::MAX };
        let found =
            measure(&TrainDevice::Cpu, &subject(false), effort, &task, || (), || false).unwrap().unwrap();
        assert_eq!(found.seconds.len(), 3);
        assert!(found.seconds.is_sorted() && found.median() == found.seconds[1]);
        let again =
            measure(&TrainDevice::Cpu, &subject(false), effort, &task, || (), || false).unwrap().unwrap();
        assert_eq!(found.loss, again.loss, "the same weights and tokens each time");
        let brief = Effort { seconds: 0.0, ..effort };
        assert_eq!(
            measure(&TrainDevice::Cpu, &subject(false), brief, &task, || (), || false)
                .unwrap()
                .unwrap()
                .seconds
                .len(),
            1
        );
        assert!(
            measure(&TrainDevice::Cpu, &subject(false), effort, &task, || (), || true).unwrap().is_none()
        );
    }
}
