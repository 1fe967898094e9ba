//! `dipaco bench step`: measures the training step of one path.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use dipaco_config::{RunConfig, Sources, TrainConfig};
use dipaco_model::{Dtype, ModelConfig, kernel_choice, parameters, path_specs, trained_specs};
use dipaco_pipeline::machine_memory::machine_memory;
use dipaco_pipeline::product_rate::product_rate;
use dipaco_pipeline::step_speed::{Effort, PhaseTimes, StepSpeed, StepSubject, measure};
use dipaco_pipeline::vocabulary;
use dipaco_pipeline::{PipelineError, RunDirectory, limits};
use dipaco_telemetry::{Align, Progress, ProgressUnit, Table, human};
use dipaco_topology::{Topology, TopologyConfig};
use serde::Serialize;

use super::available_memory;
use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::{memory, output};

/// Steps before the measured steps.
const WARM_UP: usize = 3;
/// Upper bound on --threads.
const MOST_THREADS: usize = 4096;

pub(super) const EXAMPLES: &str = "\
Examples:
  dipaco bench step --size s                           4 blocks of width 256, f32, all cores
  dipaco bench step --size l --dtype bf16 --json       the paper's path
  dipaco bench step --size l --dtype bf16 --batch 16 --device cuda
  dipaco bench step --config my.toml                   the step of your own run

Sizes:
  s   4 blocks, D 256, V  4096, 8 x  256 tokens
  m   8 blocks, D 512, V  8192, 4 x  512 tokens
  l  12 blocks, D 896, V 32000, 1 x 1024 tokens
Rates count 6 operations per matrix parameter and token, and causal attention.";

/// Options of `dipaco bench step`.
#[derive(Debug, Args)]
pub(crate) struct StepOptions {
    /// Size of the path, for comparison with other programs.
    #[arg(long, value_enum, default_value_t, conflicts_with = "config")]
    size: Size,
    /// Configuration file of the path and its training.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number type of matrix products; the default is model.dtype of the configuration, or f32.
    #[arg(long, value_enum, value_name = "TYPE")]
    dtype: Option<DtypeOption>,
    /// Number of threads to compute with; the default is one per core.
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Number of measured steps. 3 more before them are not measured.
    #[arg(long, default_value_t = 10, value_name = "N")]
    steps: usize,
    /// Number of sequences of a step; the default is that of the size or of the configuration. A GPU needs more than a CPU to be
    /// busy.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Number of sequences per forward and backward pass. It must divide the batch; 0 means the whole batch.
    #[arg(long, value_name = "N")]
    micro_batch: Option<usize>,
    /// Keep only the input of each block for the backward pass and recompute the rest.
    #[arg(long)]
    activation_checkpointing: bool,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// The values of `--size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Size {
    /// 5.3M parameters.
    #[default]
    S,
    /// 34M parameters.
    M,
    /// 180M parameters: a path of the paper.
    L,
}

/// The values of `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DtypeOption {
    F32,
    Bf16,
}

impl From<DtypeOption> for Dtype {
    fn from(option: DtypeOption) -> Self {
        match option {
            DtypeOption::F32 => Self::F32,
            DtypeOption::Bf16 => Self::Bf16,
        }
    }
}

impl Size {
    fn name(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::M => "m",
            Self::L => "l",
        }
    }

    fn subject(self) -> Result<StepSubject, PipelineError> {
        let (blocks, hidden_size, heads, vocab_size, sequence_tokens, batch) = match self {
            Self::S => (4, 256, 4, 4096, 256, 8),
            Self::M => (8, 512, 8, 8192, 512, 4),
            Self::L => (12, 896, 16, 32_000, 1024, 1),
        };
        let model = ModelConfig {
            hidden_size,
            blocks,
            heads,
            head_dim: 64,
            // 8/3 D, rounded up to 64.
            ffn_size: (8 * hidden_size).div_ceil(3 * 64) * 64,
            vocab_size,
            context: sequence_tokens,
            ..ModelConfig::default()
        };
        let topology = Topology::new(&TopologyConfig::dense(blocks), blocks)?;
        let train = TrainConfig { batch, sequence_tokens, ..TrainConfig::default() };
        Ok(StepSubject { model, topology, train })
    }
}

/// The measurement, as JSON.
#[derive(Debug, Serialize)]
struct SpeedReport {
    what: String,
    size: String,
    params: usize,
    /// Parameters of the levels that are not frozen.
    trained_params: usize,
    dtype: Dtype,
    /// `CPU`, or the GPU.
    device: String,
    /// The set of kernels of the products; `null` on a GPU.
    kernels: Option<&'static str>,
    /// Why this set.
    kernels_reason: Option<&'static str>,
    threads: usize,
    batch: usize,
    sequence_tokens: usize,
    micro_batch: usize,
    activation_checkpointing: bool,
    steps: usize,
    /// The median.
    ms_per_step: f64,
    ms_min: f64,
    ms_max: f64,
    tokens_per_s: f64,
    gflops: f64,
    /// Rate of matrix products on this machine, measured in the same run; `null` on a GPU.
    product_gflops: Option<f64>,
    /// `gflops` over `product_gflops`.
    share: Option<f64>,
    /// Milliseconds per step. On a GPU all of them are in `rest`.
    phases: PhaseTimes,
    /// Peak memory during the steps; absent where the system does not report it.
    peak_mib: Option<u64>,
    loss: f32,
}

pub(super) fn run(options: &StepOptions, progress: &Progress) -> Result<(), CliError> {
    let (name, subject) = subject(options)?;
    let device = options.device.open()?;
    if device.is_cpu() {
        check_memory(&subject, machine_memory().map(|memory| memory.available))?;
    }
    let interrupt = Interrupt::listen()?;
    limits::threads(options.threads.unwrap_or(0))?;
    let effort = Effort { warm_up: WARM_UP, steps: options.steps, seconds: f64::MAX };
    let task = progress.task("steps", Some((WARM_UP + options.steps) as u64), ProgressUnit::Count("steps"));
    let found =
        // The copies of the weights are no memory of a step.
        measure(&device, &subject, effort, &task, memory::give_freed_back, || interrupt.is_set())?
            .ok_or(CliError::Interrupted)?;
    task.finish();
    // Before the matrix products of the comparison allocate memory.
    let peak = memory::peak();
    let product_rate = device.is_cpu().then(|| product_rate(subject.model.dtype));
    let mut report = report(name, &subject, device.describe()?, &found, product_rate, peak);
    if device.is_cpu() {
        let choice = kernel_choice()?;
        (report.kernels, report.kernels_reason) = (Some(choice.set.name()), Some(choice.reason.as_str()));
    }
    if options.json { output::print_json(&report) } else { output::print(&describe(&report, &subject)) }
}

/// The path that the options choose, with its name in the report.
fn subject(options: &StepOptions) -> Result<(String, StepSubject), CliError> {
    let usage = |message: String, remedy: &str| Err(CliError::Usage { message, remedy: remedy.into() });
    if options.steps == 0 {
        return usage("--steps 0 measures nothing".into(), "give at least 1");
    }
    if let Some(threads) = options.threads.filter(|threads| !(1..=MOST_THREADS).contains(threads)) {
        return usage(
            format!("--threads {threads}: it must be from 1 to {MOST_THREADS}"),
            "leave it out for one thread per core",
        );
    }
    let (name, mut subject) = match &options.config {
        None => (options.size.name().to_owned(), options.size.subject()?),
        Some(file) => {
            let sources = Sources::with_environment(Some(file.clone()), Vec::new());
            let mut config = RunConfig::load(&sources)?.config;
            // The configuration of a run may name a tokenizer in the run's folder.
            config.prepare =
                RunDirectory::new(file.parent().unwrap_or(Path::new(""))).located(&config.prepare);
            let config = vocabulary::expected(&config)?.config;
            let topology =
                Topology::new(&config.topology, config.model.blocks).map_err(PipelineError::from)?;
            (file.display().to_string(), StepSubject { model: config.model, topology, train: config.train })
        }
    };
    if let Some(dtype) = options.dtype {
        subject.model.dtype = dtype.into();
    }
    subject.train.activation_checkpointing |= options.activation_checkpointing;
    if let Some(batch) = options.batch {
        subject.train.batch = batch as usize;
    }
    if let Some(micro_batch) = options.micro_batch {
        subject.train.micro_batch = micro_batch;
    }
    let (batch, micro_batch) = (subject.train.batch, subject.train.micro_batch);
    if micro_batch != 0 && !batch.is_multiple_of(micro_batch) {
        return usage(
            format!("--micro-batch {micro_batch} does not divide the batch of {batch} sequences"),
            "give a number that does, or 0 for all at once",
        );
    }
    Ok((name, subject))
}

/// Refuses a step that needs more memory than there is.
fn check_memory(subject: &StepSubject, available: Option<u64>) -> Result<(), CliError> {
    let remedy = "give --micro-batch 1, --activation-checkpointing or --dtype bf16, or a smaller path";
    available_memory::check("this step needs", subject.memory().total(), available, remedy)
}

fn report(
    size: String,
    subject: &StepSubject,
    device: String,
    found: &StepSpeed,
    product_rate: Option<f64>,
    peak: Option<u64>,
) -> SpeedReport {
    let StepSubject { model, train, .. } = subject;
    let median = found.median();
    let rate = subject.flops() / median;
    SpeedReport {
        what: format!("dipaco {}", env!("CARGO_PKG_VERSION")),
        size,
        params: parameters(&path_specs(model)),
        trained_params: parameters(&trained_specs(model, &subject.topology)),
        dtype: model.dtype,
        device,
        kernels: None,
        kernels_reason: None,
        threads: rayon::current_num_threads(),
        batch: train.batch,
        sequence_tokens: train.sequence_tokens,
        micro_batch: train.micro_batch,
        activation_checkpointing: train.activation_checkpointing,
        steps: found.seconds.len(),
        ms_per_step: median * 1e3,
        ms_min: found.seconds.first().map_or(0.0, |seconds| seconds * 1e3),
        ms_max: found.seconds.last().map_or(0.0, |seconds| seconds * 1e3),
        tokens_per_s: subject.tokens() as f64 / median,
        gflops: rate / 1e9,
        product_gflops: product_rate.map(|product_rate| product_rate / 1e9),
        share: product_rate.map(|product_rate| rate / product_rate),
        phases: found.phases.in_milliseconds(),
        peak_mib: peak.map(|bytes| bytes >> 20),
        loss: found.loss,
    }
}

fn describe(report: &SpeedReport, subject: &StepSubject) -> String {
    let StepSubject { model, train, .. } = subject;
    let passes = match train.micro_batch {
        0 => String::new(),
        micro_batch => format!(", {micro_batch} at once"),
    };
    let checkpointing = if train.activation_checkpointing { ", activation checkpointing" } else { "" };
    let plural = if report.threads == 1 { "" } else { "s" };
    let trained = if report.trained_params < report.params {
        format!(" ({} train)", human::count(report.trained_params as f64))
    } else {
        String::new()
    };
    let mut text = format!(
        "{}: {} parameters{trained} in {} blocks, D {}, {} heads of {}, F {}, V {}\n{}: {} x {} tokens{passes}, {}, {} \
         thread{plural}{checkpointing}\n",
        report.size,
        human::count(report.params as f64),
        model.blocks,
        model.hidden_size,
        model.heads,
        model.head_dim,
        model.ffn_size,
        human::integer(model.vocab_size as u64),
        report.device,
        report.batch,
        report.sequence_tokens,
        report.dtype,
        report.threads,
    );
    if let (Some(kernels), Some(reason)) = (report.kernels, report.kernels_reason) {
        text += &format!("kernels {kernels}: {reason}\n");
    }
    text += "\n";
    let right = Align::Right;
    let mut table = Table::new(&[("step", Align::Left), ("ms", right), ("share", right)]);
    let whole: f64 = report.phases.named().iter().map(|(_, milliseconds)| milliseconds).sum();
    for (phase, milliseconds) in report.phases.named() {
        let share = 100.0 * milliseconds / whole;
        table.row([phase.to_owned(), format!("{milliseconds:.2}"), format!("{share:.1} %")]);
    }
    table.row(["median".to_owned(), format!("{:.2}", report.ms_per_step)]);
    table.row(["fastest".to_owned(), format!("{:.2}", report.ms_min)]);
    table.row([format!("slowest of {}", report.steps), format!("{:.2}", report.ms_max)]);
    text += &table.to_string();
    text += &format!(
        "\n{} tokens/s, {:.1} GFLOP/s",
        human::integer(report.tokens_per_s.round() as u64),
        report.gflops,
    );
    if let (Some(share), Some(product_gflops)) = (report.share, report.product_gflops) {
        let share = 100.0 * share;
        text += &format!(
            ": {share:.1} % of the {product_gflops:.1} GFLOP/s of this machine's {} products",
            report.dtype
        );
    }
    text += "\n";
    let peak = report.peak_mib.map(|mib| format!("peak memory {} MiB, ", human::integer(mib)));
    text + &format!("{}loss {:.4}\n", peak.unwrap_or_default(), report.loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_begun() {
        let subject = Size::S.subject().unwrap();
        assert!(check_memory(&subject, None).is_ok() && check_memory(&subject, Some(1 << 40)).is_ok());
        let error = check_memory(&subject, Some(1_000_000)).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("1.0 MB are available"), "{error}");
    }

    #[test]
    fn the_sizes_are_those_of_the_comparison() {
        let sizes = [Size::S, Size::M, Size::L].map(|size| {
            let model = size.subject().unwrap().model;
            (model.ffn_size, parameters(&path_specs(&model)))
        });
        assert_eq!(sizes, [(704, 5_310_720), (1408, 34_087_424), (2432, 179_853_184)]);
    }
}
