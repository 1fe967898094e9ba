//! Measures training steps on the first GPU and prints one JSON object: tokens per second, memory, and the time of each
//! kernel. Build it and copy the binary to the machine with the GPU:
//!
//! `cargo build --release -p dipaco-cuda --example gpu_step`, then `gpu_step [BATCH [CONTEXT [bf16|f32 [STEPS]]]]`
//!
//! The shape is size `l` of `dipaco bench step`: D 896, 12 blocks, F 2432, V 32000, heads of 64.
#![expect(clippy::print_stdout, reason = "the program prints its result")]

use std::error::Error;
use std::time::Instant;

use dipaco_cuda::{CudaOptions, CudaPath, Gpu, KernelTime, PathUpload, Trained};
use dipaco_model::{Dtype, ModelConfig, TokenBatch, TokenRows, parameters, path_specs};
use dipaco_optim::AdamWConfig;

/// Steps before the measurement, in which cuBLASLt's algorithms are looked up.
const WARMUP: usize = 3;

/// The shape and the numbers of the measured steps.
struct Measurement {
    config: ModelConfig,
    batch: usize,
    steps: usize,
}

/// Pseudo-random numbers of 31 bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let Measurement { config, batch, steps } = arguments()?;
    let options = CudaOptions { micro_batch: batch, checkpointing: false };
    let adamw = AdamWConfig::default();
    let gpu = Gpu::open(0)?;
    let mut random = Random(1);
    // A spread of 0.02 around 0, near the initial weights; the values of norms do not change the speed.
    let count = parameters(&path_specs(&config));
    let weights: Vec<f32> =
        (0..count).map(|_| (random.next() as f32 / 2f32.powi(30) - 1.0) * 0.035).collect();
    let moments = vec![0f32; weights.len()];
    let begin = Instant::now();
    let trained = Trained::all(&config);
    let upload =
        PathUpload { weights: &weights, trained: &trained, first: &moments, second: &moments, step: 0 };
    let mut path = CudaPath::new(&gpu, config.clone(), options, &upload)?;
    let setup = begin.elapsed().as_secs_f64();
    let mut batch_of = || {
        let count = batch * config.context;
        let tokens: Vec<u32> = (0..count).map(|_| random.next() % config.vocab_size as u32).collect();
        let targets: Vec<u32> = tokens.iter().skip(1).chain(&tokens[..1]).copied().collect();
        let tokens = TokenRows::new(tokens, batch, config.vocab_size)?;
        TokenBatch::new(tokens, targets, config.vocab_size)
    };
    let mut seconds = Vec::with_capacity(steps);
    for step in 0..steps + WARMUP {
        let batch = batch_of()?;
        let begin = Instant::now();
        let done = path.step(&batch, &adamw, adamw.learning_rate)?;
        if !done.loss.mean.is_finite() {
            return Err(format!("the loss of step {step} is {}", done.loss.mean).into());
        }
        if step >= WARMUP {
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    let (last, times) = path.profiled_step(&batch_of()?, &adamw, adamw.learning_rate)?;
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
    let (context, precision) = (config.context, config.dtype);
    println!(
        "{{\"gpu\": \"{}\", \"precision\": \"{precision:?}\", \"batch\": {batch}, \"context\": {context},",
        gpu.info()?.name
    );
    println!(" \"parameters\": {count}, \"memory_mib\": {},", CudaPath::memory(&config, &options)? >> 20);
    println!(" \"setup_seconds\": {setup:.3}, \"step_seconds\": {median:.6}, \"loss\": {},", last.loss.mean);
    println!(" \"tokens_per_second\": {:.0}, \"kernels\": [", (batch * context) as f64 / median);
    print_kernels(&times);
    Ok(())
}

fn arguments() -> Result<Measurement, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let batch: usize = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let context: usize = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let dtype = match arguments.next().as_deref() {
        None | Some("bf16") => Dtype::Bf16,
        Some("f32") => Dtype::F32,
        Some(other) => return Err(format!("`{other}` is neither bf16 nor f32").into()),
    };
    let steps: usize = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let config = ModelConfig {
        hidden_size: 896,
        blocks: 12,
        heads: 16,
        head_dim: 64,
        ffn_size: 2432,
        vocab_size: 32_000,
        context,
        dtype,
        ..ModelConfig::default()
    };
    Ok(Measurement { config, batch, steps })
}

fn print_kernels(times: &[KernelTime]) {
    for (i, time) in times.iter().enumerate() {
        let comma = if i + 1 < times.len() { "," } else { "" };
        println!(
            "  {{\"what\": \"{}\", \"runs\": {}, \"seconds\": {:.6}}}{comma}",
            time.what, time.runs, time.seconds
        );
    }
    println!(" ]}}");
}
