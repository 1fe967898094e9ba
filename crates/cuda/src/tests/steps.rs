//! Whole steps against the CPU path.

use dipaco_model::{Dtype, IGNORE, ModelConfig, TokenBatch, TokenRows};
use dipaco_optim::AdamWConfig;
use dipaco_topology::{LevelConfig, Modules, TopologyConfig};

use super::cpu_path::{CpuPath, CpuStep, batch, data};
use super::{assert_close, even, f64s, grouped, odd};
use crate::engine::Engine;
use crate::host::Host;
use crate::{CudaOptions, CudaStep, PathUpload, Trained};

/// An epsilon so large that the rounding of a gradient near 0 does not change the sign of its step.
fn adamw() -> AdamWConfig {
    AdamWConfig { epsilon: 1e-4, clip_norm: 0.5, ..AdamWConfig::default() }
}

const RATE: f64 = 1e-2;

fn engine(config: &ModelConfig, cpu: &CpuPath, options: CudaOptions) -> Engine<Host> {
    let weights = cpu.weights();
    let CpuPath { trained, first, second, .. } = cpu;
    let path = PathUpload { weights: &weights, trained, first, second, step: 0 };
    Host::engine(config, options, &path)
}

const WHOLE: CudaOptions = CudaOptions { micro_batch: 3, checkpointing: false };

/// Euclidean distance, relative to the norm of the expected numbers.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let mut difference = found.iter().zip(expected).map(|(a, b)| f64::from(a - b));
    squares(&mut difference) / squares(&mut expected.iter().map(|&x| f64::from(x)))
}

/// A step on the CPU and the same step on the host.
struct Both {
    cpu: CpuStep,
    host: CudaStep,
    /// Gradient of the host.
    gradient: Vec<f32>,
}

fn step_both(cpu: &mut CpuPath, engine: &mut Engine<Host>, config: &ModelConfig, step: u32) -> Both {
    let batch = data(config, 3, step);
    let expected = cpu.step(&batch, RATE, &adamw());
    let found = engine.step(&batch, &adamw(), RATE).unwrap();
    let targets = batch.targets();
    assert_eq!(found.loss.counted, targets.iter().filter(|&&target| target != IGNORE).count());
    let gradient = engine.read(engine.arena.gradient).unwrap();
    Both { cpu: expected, host: found, gradient }
}

#[test]
fn five_steps_in_f32_are_those_of_the_cpu() {
    for config in [odd(false), odd(true), even(), grouped(odd(false), 1), grouped(even(), 2)] {
        let mut cpu = CpuPath::new(&config, 1);
        let mut engine = engine(&config, &cpu, WHOLE);
        for step in 0..5 {
            let Both { cpu: expected, host: found, gradient } =
                step_both(&mut cpu, &mut engine, &config, step);
            let off = (found.loss.mean - expected.loss).abs();
            assert!(off < 2e-6 * expected.loss, "{found:?} {}", expected.loss);
            assert!((found.gradient_norm / expected.gradient_norm - 1.0).abs() < 1e-5);
            assert_close("gradient", &gradient, &f64s(&expected.gradient), 1e-5);
        }
        assert_eq!(engine.steps(), 5);
        let read = |engine: &mut Engine<Host>, at| engine.read(at).unwrap();
        let (weights, first, second) = (engine.arena.weights, engine.arena.first, engine.arena.second);
        assert_close("weights", &read(&mut engine, weights), &f64s(&cpu.weights()), 1e-5);
        assert_close("first moments", &read(&mut engine, first), &f64s(&cpu.first), 1e-5);
        assert_close("second moments", &read(&mut engine, second), &f64s(&cpu.second), 1e-5);
    }
}

/// The levels of a path of two blocks: embedding, block 0, block 1 and head, with those of `trains` in the level that
/// trains.
fn frozen(trains: [bool; 4]) -> TopologyConfig {
    let level = |own: bool| LevelConfig {
        modules: Modules::Count(1),
        blocks: (0..2).filter(|i| trains[i + 1] == own).map(|i| i.to_string()).collect::<Vec<_>>().join(", "),
        embedding: trains[0] == own,
        head: trains[3] == own,
        frozen: !own,
    };
    TopologyConfig::grid(1, vec![level(false), level(true)])
}

/// The numbers of the trained parameters among those of all.
fn of_trained(values: &[f32], trained: &Trained) -> Vec<f32> {
    trained.runs().flat_map(|(run, _)| &values[run]).copied().collect()
}

#[test]
fn steps_of_a_path_with_frozen_parts_are_those_of_the_cpu_and_leave_them_as_they_are() {
    let (t, f) = (true, false);
    let cases = [
        (odd(false), [f, f, t, t]),
        (odd(false), [t, t, f, f]),
        (odd(false), [f, t, f, f]),
        (odd(false), [f, f, f, t]),
        (even(), [t, f, t, f]),
        (odd(true), [f, f, t, f]),
        (odd(true), [t, f, f, t]),
    ];
    for (config, trains) in cases {
        for options in [WHOLE, CudaOptions { micro_batch: 2, checkpointing: true }] {
            let mut cpu = CpuPath::with_levels(&config, &frozen(trains), 1);
            let before = cpu.weights();
            let mut engine = engine(&config, &cpu, options);
            for step in 0..3 {
                let Both { cpu: expected, host: found, gradient } =
                    step_both(&mut cpu, &mut engine, &config, step);
                assert!((found.loss.mean / expected.loss - 1.0).abs() < 2e-6, "{trains:?}: {found:?}");
                assert!((found.gradient_norm / expected.gradient_norm - 1.0).abs() < 1e-5, "{trains:?}");
                let gradient = of_trained(&gradient, &cpu.trained);
                assert_close("gradient", &gradient, &f64s(&expected.gradient), 1e-5);
            }
            let weights = engine.read(engine.arena.weights).unwrap();
            assert_close("weights", &weights, &f64s(&cpu.weights()), 1e-5);
            let mut trained = vec![false; weights.len()];
            cpu.trained.runs().for_each(|(run, _)| trained[run].fill(true));
            for (i, trains) in trained.into_iter().enumerate() {
                assert!(trains || weights[i].to_bits() == before[i].to_bits(), "{i} is frozen");
            }
            let mut moments = [vec![0.0; cpu.first.len()], vec![0.0; cpu.first.len()]];
            let places = [engine.arena.first, engine.arena.second];
            for (moments, place) in moments.iter_mut().zip(places) {
                engine.read_trained("moments", place, moments).unwrap();
            }
            assert_close("first moments", &moments[0], &f64s(&cpu.first), 1e-5);
            assert_close("second moments", &moments[1], &f64s(&cpu.second), 1e-5);
            let error = engine.read_trained("moments", places[0], &mut moments[0][1..]).unwrap_err();
            assert!(error.to_string().contains("parameters"), "{error}");
        }
    }
}

#[test]
fn a_step_in_bf16_stays_near_the_one_in_f32() {
    for config in [odd(true), even(), grouped(even(), 2)] {
        let mut cpu = CpuPath::new(&config, 1);
        let bf16 = ModelConfig { dtype: Dtype::Bf16, ..config.clone() };
        let mut engine = engine(&bf16, &cpu, WHOLE);
        for step in 0..3 {
            let Both { cpu: expected, host: found, gradient } =
                step_both(&mut cpu, &mut engine, &config, step);
            let off = (found.loss.mean - expected.loss).abs();
            assert!(off < 2e-3 * expected.loss, "{found:?} {}", expected.loss);
            let distance = distance(&gradient, &expected.gradient);
            assert!(distance < 0.03, "the gradient is off by {distance}");
        }
    }
}

#[test]
fn micro_batches_and_checkpointing_change_memory_and_not_the_step() {
    let config = odd(true);
    let cpu = CpuPath::new(&config, 1);
    let batch = data(&config, 3, 1);
    let step = |options| {
        let mut engine = engine(&config, &cpu, options);
        let found = engine.step(&batch, &adamw(), RATE).unwrap();
        (found, engine.read(engine.arena.gradient).unwrap())
    };
    let whole = step(WHOLE);
    assert_eq!(whole, step(CudaOptions { checkpointing: true, ..WHOLE }));
    for micro_batch in [1, 2] {
        let (found, gradient) = step(CudaOptions { micro_batch, ..WHOLE });
        assert!((found.loss.mean - whole.0.loss.mean).abs() < 1e-6 * found.loss.mean);
        assert_close("gradient", &gradient, &f64s(&whole.1), 2e-6);
    }
}

#[test]
fn the_head_takes_rows_in_chunks() {
    let config = odd(false);
    let cpu = CpuPath::new(&config, 1);
    let batch = data(&config, 3, 1);
    let step = |head_rows| {
        let mut engine = engine(&config, &cpu, WHOLE);
        engine.arena.head_rows = head_rows;
        let found = engine.step(&batch, &adamw(), RATE).unwrap();
        (found.loss.mean, engine.read(engine.arena.gradient).unwrap())
    };
    let (loss, gradient) = step(36);
    let (in_chunks, gradient_in_chunks) = step(7);
    assert!((in_chunks - loss).abs() < 1e-6 * loss);
    assert_close("gradient", &gradient_in_chunks, &f64s(&gradient), 2e-6);
}

#[test]
fn the_order_of_threads_does_not_show_in_a_step() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let config = ModelConfig { dtype, ..even() };
        let cpu = CpuPath::new(&config, 1);
        let batch = data(&config, 2, 1);
        let step = |backwards| {
            let mut engine = engine(&config, &cpu, WHOLE);
            engine.device.backwards = backwards;
            let found = engine.step(&batch, &adamw(), RATE).unwrap();
            (found, engine.read(engine.arena.weights).unwrap())
        };
        assert_eq!(step(false), step(true));
    }
}

#[test]
fn losses_are_those_of_the_cpu() {
    let config = odd(false);
    let cpu = CpuPath::new(&config, 4);
    let mut engine = engine(&config, &cpu, CudaOptions { micro_batch: 2, ..WHOLE });
    let batch = data(&config, 3, 1);
    let expected = cpu.path.token_log_probs(&batch).unwrap();
    let (losses, counted) = engine.losses(&batch).unwrap();
    let log_probs: Vec<f32> = losses.iter().map(|loss| -loss).collect();
    assert_close("log probabilities", &log_probs, &f64s(&expected), 1e-6);
    assert_eq!(counted, batch.targets().iter().filter(|&&target| target != IGNORE).count());
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let config = odd(false);
    let cpu = CpuPath::new(&config, 1);
    let mut weights = cpu.weights();
    weights[3] = f32::INFINITY;
    let CpuPath { trained, first, second, .. } = &cpu;
    let path = PathUpload { weights: &weights, trained, first, second, step: 2 };
    let mut engine = Host::engine(&config, WHOLE, &path);
    let drawn = data(&config, 3, 1);
    let mut tokens = drawn.tokens().ids().to_vec();
    tokens[0] = 0;
    let batch = batch(tokens, drawn.targets().to_vec(), 3, 50);
    let found = engine.step(&batch, &adamw(), RATE).unwrap();
    assert!(!found.loss.mean.is_finite() || !found.gradient_norm.is_finite());
    assert_eq!(engine.read(engine.arena.weights).unwrap(), weights);
    assert_eq!(engine.read(engine.arena.first).unwrap(), cpu.first);
    assert_eq!(engine.steps(), 2);
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let config = odd(false);
    let cpu = CpuPath::new(&config, 1);
    let mut engine = engine(&config, &cpu, WHOLE);
    let mut step = |length, vocabulary| {
        let batch = batch(vec![1; length], vec![1; length], 1, vocabulary);
        engine.step(&batch, &adamw(), RATE).unwrap_err().to_string()
    };
    assert!(step(13, 50).contains("longer than the context of 12"));
    assert!(step(1, 51).contains("of a vocabulary of 51 entries, and the path has 50"));
    let tokens = TokenRows::new(vec![1], 1, 50).unwrap();
    let batch = TokenBatch::new(tokens, vec![1], 51).unwrap();
    assert!(engine.losses(&batch).unwrap_err().to_string().contains("targets"));
}

#[test]
fn a_path_takes_over_the_memory_of_the_path_before_and_changes_no_bit() {
    let levels = [[true, true, true, true], [false, true, false, true], [true, true, true, true]];
    let paths = (2..).zip(levels).map(|(seed, trains)| CpuPath::with_levels(&even(), &frozen(trains), seed));
    let run = |engine: &mut Engine<Host>| {
        // Two lengths of rows: two passes. Each begins twice.
        let steps: Vec<CudaStep> = [(0, 3), (1, 2), (2, 3), (3, 2)]
            .map(|(step, rows)| engine.step(&data(&even(), rows, step), &adamw(), RATE).unwrap())
            .to_vec();
        let (weights, first) = (engine.arena.weights, engine.arena.first);
        (steps, engine.read(weights).unwrap(), engine.read(first).unwrap())
    };
    let config = ModelConfig { dtype: Dtype::Bf16, ..even() };
    let mut kept = engine(&config, &CpuPath::new(&config, 1), WHOLE);
    run(&mut kept);
    for cpu in paths {
        let weights = cpu.weights();
        let CpuPath { trained, first, second, .. } = &cpu;
        kept.reload(&PathUpload { weights: &weights, trained, first, second, step: 0 }).unwrap();
        let (steps, weights, moments) = run(&mut kept);
        let (expected_steps, expected_weights, expected_moments) = run(&mut engine(&config, &cpu, WHOLE));
        assert_eq!(steps, expected_steps);
        assert_eq!(weights, expected_weights);
        // The moments of a frozen tensor have a place that nothing reads.
        assert_eq!(of_trained(&moments, trained), of_trained(&expected_moments, trained));
    }
}

#[test]
fn a_pass_whose_recording_is_spoilt_runs_all_the_same() {
    let cpu = CpuPath::new(&odd(false), 1);
    let run = |spoils: bool| {
        let mut engine = engine(&odd(false), &cpu, CudaOptions { micro_batch: 2, checkpointing: false });
        let step = |step| {
            engine.device.spoils = spoils;
            engine.step(&data(&odd(false), 3, step), &adamw(), RATE).unwrap()
        };
        let steps: Vec<CudaStep> = (0..3).map(step).collect();
        engine.device.spoils = spoils;
        let scores = engine.token_log_probs(&data(&odd(false), 3, 7)).unwrap();
        (steps, scores, engine.read(engine.arena.weights).unwrap())
    };
    assert!(run(true) == run(false));
}
