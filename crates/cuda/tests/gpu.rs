//! A path on the GPU compared with the same path on the CPU. Skipped on a machine without a GPU.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed unwrap is a failed test, and a skipped one says so"
)]

#[path = "reference/cpu_path.rs"]
mod cpu_path;

use cpu_path::{CpuPath, data};
use dipaco_cuda::{CudaError, CudaOptions, CudaPath, CudaReader, CudaStep, Gpu, PathUpload, Trained};
use dipaco_model::{Dtype, ModelConfig, parameters, path_specs};
use dipaco_optim::AdamWConfig;

/// Returns the first GPU. Prints a line and returns nothing on a machine without one that is new enough; fails on any other
/// error.
fn gpu() -> Option<Gpu> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(
            error @ (CudaError::NoLibrary { library: "libcuda", .. }
            | CudaError::NoDevice { .. }
            | CudaError::Capability { .. }),
        ) => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sizes of a small run, and sizes that fit no tile.
fn configs() -> [ModelConfig; 2] {
    let even = ModelConfig { blocks: 3, vocab_size: 1000, context: 200, ..ModelConfig::default() };
    let odd = ModelConfig {
        hidden_size: 52,
        blocks: 2,
        heads: 3,
        head_dim: 18,
        ffn_size: 77,
        vocab_size: 301,
        context: 45,
        tie_embeddings: true,
        ..ModelConfig::default()
    };
    [even, odd]
}

const ROWS: usize = 4;
const RATE: f64 = 3e-3;
const WHOLE: CudaOptions = CudaOptions { micro_batch: ROWS, checkpointing: false };

/// An epsilon so large that the rounding of a gradient near 0 does not change the sign of its step.
fn adamw() -> AdamWConfig {
    AdamWConfig { epsilon: 1e-4, ..AdamWConfig::default() }
}

fn on_gpu(gpu: &Gpu, cpu: &CpuPath, config: &ModelConfig, options: CudaOptions) -> CudaPath {
    let weights = cpu.weights();
    let CpuPath { trained, first, second, .. } = cpu;
    let path = PathUpload { weights: &weights, trained, first, second, step: 0 };
    CudaPath::new(gpu, config.clone(), options, &path).unwrap()
}

/// The moments, with this number in each.
fn moments(path: &mut CudaPath, numbers: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut first, mut second) = (vec![0.0; numbers], vec![0.0; numbers]);
    path.moments_into(&mut first, &mut second).unwrap();
    (first, second)
}

/// Euclidean distance, relative to the norm of the expected numbers.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let mut difference = found.iter().zip(expected).map(|(a, b)| f64::from(a - b));
    squares(&mut difference) / squares(&mut expected.iter().map(|&x| f64::from(x))).max(1e-30)
}

#[test]
fn five_steps_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for config in configs() {
        // Tolerances of the loss, the gradient's norm, the gradient and the weights.
        let cases = [(Dtype::F32, [1e-5, 1e-4, 1e-4, 1e-5]), (Dtype::Bf16, [2e-3, 1e-2, 3e-2, 2e-3])];
        for (dtype, tolerances) in cases {
            let mut cpu = CpuPath::new(&config, 1);
            let mut path = on_gpu(&gpu, &cpu, &ModelConfig { dtype, ..config.clone() }, WHOLE);
            for step in 0..5 {
                let batch = data(&config, ROWS, step);
                let expected = cpu.step(&batch, RATE, &adamw());
                let found = path.step(&batch, &adamw(), RATE).unwrap();
                let off = [
                    f64::from((found.loss.mean / expected.loss - 1.0).abs()),
                    (found.gradient_norm / expected.gradient_norm - 1.0).abs(),
                    distance(&path.gradient().unwrap(), &expected.gradient),
                    distance(&path.weights().unwrap(), &cpu.weights()),
                ];
                let within = off.iter().zip(tolerances).all(|(off, tolerance)| *off <= tolerance);
                assert!(within, "{dtype}, step {step}: loss, norm, gradient, weights off by {off:?}");
            }
            assert_eq!(path.steps(), 5);
            let (first, second) = moments(&mut path, cpu.first.len());
            assert!(distance(&first, &cpu.first) <= tolerances[2]);
            assert!(distance(&second, &cpu.second) <= 2.0 * tolerances[2]);
        }
    }
}

#[test]
fn the_same_steps_give_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    for config in configs() {
        let cases = [(Dtype::F32, ROWS), (Dtype::Bf16, ROWS), (Dtype::Bf16, 1)];
        for (dtype, micro_batch) in cases {
            let cpu = CpuPath::new(&config, 2);
            let config = ModelConfig { dtype, ..config.clone() };
            let options = CudaOptions { micro_batch, ..WHOLE };
            let run = |options| {
                let mut path = on_gpu(&gpu, &cpu, &config, options);
                let step = |i| path.step(&data(&config, ROWS, i), &adamw(), RATE).unwrap();
                let steps: Vec<CudaStep> = (0..3).map(step).collect();
                (steps, path.weights().unwrap(), moments(&mut path, cpu.first.len()))
            };
            let once = run(options);
            assert_eq!(once, run(options));
            assert_eq!(once, run(CudaOptions { checkpointing: true, ..options }));
        }
    }
}

#[test]
fn steps_from_a_record_have_the_bits_of_steps_without() {
    let Some(gpu) = gpu() else { return };
    for config in configs() {
        for (dtype, micro_batch) in [(Dtype::F32, ROWS), (Dtype::Bf16, ROWS), (Dtype::Bf16, 1)] {
            let [earlier, cpu] = [2, 3].map(|seed| CpuPath::new(&config, seed));
            let config = ModelConfig { dtype, ..config.clone() };
            let options = CudaOptions { micro_batch, ..WHOLE };
            let batch = |i| data(&config, ROWS, i);
            // A step that is timed launches each kernel by itself.
            let mut path = on_gpu(&gpu, &cpu, &config, options);
            let expected: Vec<CudaStep> =
                (0..4).map(|i| path.profiled_step(&batch(i), &adamw(), RATE).unwrap().0).collect();
            let weights = path.weights().unwrap();
            let expected_moments = moments(&mut path, cpu.first.len());

            let mut path = on_gpu(&gpu, &earlier, &config, options);
            for _ in 0..2 {
                for i in 0..3 {
                    path.step(&batch(i), &adamw(), RATE).unwrap();
                }
                assert!(path.has_shape(&gpu, &config, options));
                let numbers = cpu.weights();
                let CpuPath { trained, first, second, .. } = &cpu;
                path.reload(&PathUpload { weights: &numbers, trained, first, second, step: 0 }).unwrap();
                let steps: Vec<CudaStep> =
                    (0..4).map(|i| path.step(&batch(i), &adamw(), RATE).unwrap()).collect();
                assert_eq!(steps, expected);
                assert!(path.weights().unwrap() == weights);
                assert!(moments(&mut path, cpu.first.len()) == expected_moments);
            }
        }
    }
}

#[test]
fn losses_scores_and_features_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for config in configs() {
        for (dtype, tolerance) in [(Dtype::F32, 1e-5), (Dtype::Bf16, 1e-2)] {
            let cpu = CpuPath::new(&config, 3);
            let on_device = ModelConfig { dtype, ..config.clone() };
            let mut path = on_gpu(&gpu, &cpu, &on_device, CudaOptions { micro_batch: 3, ..WHOLE });
            let batch = data(&config, ROWS, 1);
            let expected = cpu.path.token_log_probs(&batch).unwrap();
            let found = path.token_log_probs(&batch).unwrap();
            assert!(distance(&found, &expected) < tolerance);
            for _ in 0..2 {
                assert_eq!(path.token_log_probs(&batch).unwrap(), found, "from a record");
            }
            let loss = path.loss(&batch).unwrap();
            let mean = expected.iter().map(|&p| -f64::from(p)).sum::<f64>() / loss.counted as f64;
            assert!((f64::from(loss.mean) / mean - 1.0).abs() < tolerance);
            let mut reader = CudaReader::new(&gpu, on_device.clone(), 3, &cpu.weights()).unwrap();
            assert!(distance(&reader.token_log_probs(&batch).unwrap(), &expected) < tolerance);
            let lengths = [1, 7, 32, config.context];
            for blocks in 0..=config.blocks {
                let expected = cpu.path.early_features(blocks, batch.tokens(), &lengths).unwrap();
                let found = reader.features(blocks, batch.tokens(), &lengths).unwrap();
                assert!(distance(&found, &expected) < tolerance, "{dtype}, {blocks} blocks");
                let again = reader.features(blocks, batch.tokens(), &lengths).unwrap();
                assert_eq!(found, again, "the same features have the same bits");
            }
        }
    }
}

#[test]
fn a_path_that_does_not_fit_says_what_to_do() {
    let Some(gpu) = gpu() else { return };
    let [even, _] = configs();
    let config = ModelConfig { context: 4096, blocks: 4000, dtype: Dtype::Bf16, ..even };
    let numbers = vec![0f32; parameters(&path_specs(&config))];
    let trained = Trained::all(&config);
    let path =
        PathUpload { weights: &numbers, trained: &trained, first: &numbers, second: &numbers, step: 0 };
    let options = CudaOptions { micro_batch: 1024, ..WHOLE };
    let error = CudaPath::new(&gpu, config, options, &path).unwrap_err();
    assert!(error.to_string().contains("activation_checkpointing in [train] or [seed_model]"), "{error}");
}
