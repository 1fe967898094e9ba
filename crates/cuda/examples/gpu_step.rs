//! Measures training steps on the first GPU and prints one JSON object: tokens per second, memory, and where a step's
//! time goes. Carry the binary to the GPU's machine:
//!
//! `cargo build --release -p dipaco-cuda --example gpu_step`, then `gpu_step [BATCH [CONTEXT [bf16|f32 [STEPS]]]]`
//!
//! The shape is size `l` of `dipaco bench step`: D 896, 12 blocks, F 2432, V 32000, heads of 64.
#![expect(clippy::print_stdout, reason = "the result is what this prints")]

use std::error::Error;
use std::time::Instant;

use dipaco_cuda::{AdamW, CudaOptions, CudaPath, Gpu, PathShape, PathState, Precision};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let batch: usize = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let context: usize = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let precision = match arguments.next().as_deref() {
        None | Some("bf16") => Precision::Bf16,
        Some("f32") => Precision::F32,
        Some(other) => return Err(format!("`{other}` is neither bf16 nor f32").into()),
    };
    let steps: usize = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let shape = PathShape {
        hidden_size: 896,
        blocks: 12,
        heads: 16,
        head_dim: 64,
        ffn_size: 2432,
        vocab_size: 32_000,
        context,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-5,
        tie_embeddings: false,
    };
    let options = CudaOptions { precision, micro_batch: batch, checkpointing: false };
    let adamw = AdamW {
        learning_rate: 4e-4,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        clip_norm: 1.0,
    };
    let gpu = Gpu::open(0)?;
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    // A spread of 0.02 around 0, which is near enough to the initial weights; norms do not matter for the speed.
    let weights: Vec<f32> =
        (0..shape.parameters()).map(|_| (random() as f32 / 2f32.powi(30) - 1.0) * 0.035).collect();
    let moments = vec![0f32; weights.len()];
    let begin = Instant::now();
    let path_state = PathState { weights: &weights, first: &moments, second: &moments, step: 0 };
    let mut path = CudaPath::new(&gpu, shape.clone(), options, &path_state)?;
    let setup = begin.elapsed().as_secs_f64();
    let mut batch_of = || {
        let tokens: Vec<u32> = (0..batch * context).map(|_| random() % 32_000).collect();
        let targets: Vec<u32> = tokens.iter().skip(1).chain(&tokens[..1]).copied().collect();
        (tokens, targets)
    };
    let mut seconds = Vec::with_capacity(steps);
    for step in 0..steps + 3 {
        let (tokens, targets) = batch_of();
        let begin = Instant::now();
        let report = path.step(&tokens, &targets, batch, &adamw)?;
        if !report.loss.is_finite() {
            return Err(format!("the loss of step {step} is {}", report.loss).into());
        }
        // The first steps look up cuBLASLt's algorithms.
        if step >= 3 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    let (tokens, targets) = batch_of();
    let (report, times) = path.profiled_step(&tokens, &targets, batch, &adamw)?;
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
    let info = gpu.info()?;
    println!(
        "{{\"gpu\": \"{}\", \"precision\": \"{precision:?}\", \"batch\": {batch}, \"context\": {context},",
        info.name
    );
    println!(
        " \"parameters\": {}, \"memory_mib\": {},",
        shape.parameters(),
        CudaPath::memory(&shape, &options)? >> 20
    );
    println!(" \"setup_seconds\": {setup:.3}, \"step_seconds\": {median:.6}, \"loss\": {},", report.loss);
    println!(" \"tokens_per_second\": {:.0}, \"kernels\": [", (batch * context) as f64 / median);
    for (i, time) in times.iter().enumerate() {
        let comma = if i + 1 < times.len() { "," } else { "" };
        println!(
            "  {{\"what\": \"{}\", \"runs\": {}, \"seconds\": {:.6}}}{comma}",
            time.what, time.runs, time.seconds
        );
    }
    println!(" ]}}");
    Ok(())
}
