//! The forward passes of a path that is only read, against the CPU path.

use dipaco_model::{Dtype, ModelConfig, TokenRows};

use super::cpu_path::{CpuPath, data};
use super::{assert_close, even, f64s, grouped, odd};
use crate::arena::{Arena, Purpose};
use crate::device::Address;
use crate::host::Host;

/// Rows of a batch; no multiple of the sequences of a pass.
const ROWS: usize = 7;
const SEQUENCES: usize = 3;

/// A length for each row, from 1 to the context.
fn lengths(config: &ModelConfig) -> Vec<usize> {
    (0..ROWS).map(|row| 1 + row * 5 % config.context).collect()
}

fn configs() -> [ModelConfig; 5] {
    [odd(false), odd(true), even(), grouped(odd(false), 1), grouped(even(), 2)]
}

/// Points (N, D) with each component divided by its standard deviation, as `routing.standardise` does.
fn standardised(points: &[f32], width: usize) -> Vec<f32> {
    let rows = (points.len() / width) as f64;
    let scaled = |at: usize| {
        let component = || points.iter().skip(at % width).step_by(width).map(|&value| f64::from(value));
        let mean = component().sum::<f64>() / rows;
        let deviation = (component().map(|value| (value - mean).powi(2)).sum::<f64>() / rows).sqrt();
        (f64::from(points[at]) / deviation) as f32
    };
    (0..points.len()).map(scaled).collect()
}

#[test]
fn features_after_each_number_of_blocks_are_those_of_the_cpu() {
    for config in configs() {
        let config = ModelConfig { blocks: 3, ..config };
        let cpu = CpuPath::new(&config, 4);
        let mut reader = Host::reader(&config, SEQUENCES, &cpu.weights());
        let (batch, lengths) = (data(&config, ROWS, 1), lengths(&config));
        for blocks in 0..=config.blocks {
            let expected = cpu.path.early_features(blocks, batch.tokens(), &lengths).unwrap();
            let found = reader.features(blocks, batch.tokens(), &lengths).unwrap();
            assert_close(&format!("features of {blocks} blocks"), &found, &f64s(&expected), 1e-5);
            let width = config.hidden_size;
            let expected = standardised(&expected, width);
            let found = standardised(&found, width);
            assert_close(&format!("standardised, {blocks} blocks"), &found, &f64s(&expected), 1e-5);
        }
    }
}

#[test]
fn features_in_bf16_stay_near_those_in_f32() {
    for config in [odd(true), grouped(even(), 2)] {
        let cpu = CpuPath::new(&config, 4);
        let bf16 = ModelConfig { dtype: Dtype::Bf16, ..config.clone() };
        let mut reader = Host::reader(&bf16, SEQUENCES, &cpu.weights());
        let (batch, lengths) = (data(&config, ROWS, 1), lengths(&config));
        for blocks in 0..=config.blocks {
            let expected = cpu.path.early_features(blocks, batch.tokens(), &lengths).unwrap();
            let found = reader.features(blocks, batch.tokens(), &lengths).unwrap();
            assert_close(&format!("features of {blocks} blocks"), &found, &f64s(&expected), 1e-2);
        }
    }
}

#[test]
fn padding_and_the_other_rows_of_a_pass_change_no_feature() {
    let config = odd(false);
    let cpu = CpuPath::new(&config, 4);
    let mut reader = Host::reader(&config, SEQUENCES, &cpu.weights());
    let (batch, lengths) = (data(&config, ROWS, 1), lengths(&config));
    let together = reader.features(1, batch.tokens(), &lengths).unwrap();
    let (ids, time) = (batch.tokens().ids(), batch.time());
    for (row, &length) in lengths.iter().enumerate() {
        let alone = TokenRows::new(ids[row * time..][..length].to_vec(), 1, config.vocab_size).unwrap();
        let found = reader.features(1, &alone, &[length]).unwrap();
        let width = config.hidden_size;
        assert_close("a row alone", &found, &f64s(&together[row * width..][..width]), 1e-6);
    }
}

#[test]
fn log_probabilities_of_a_reader_are_those_of_the_cpu() {
    for config in configs() {
        let cpu = CpuPath::new(&config, 4);
        let mut reader = Host::reader(&config, SEQUENCES, &cpu.weights());
        let batch = data(&config, ROWS, 1);
        // Features before and after: a pass leaves nothing behind that the next one reads.
        let before = reader.features(1, batch.tokens(), &lengths(&config)).unwrap();
        let expected = cpu.path.token_log_probs(&batch).unwrap();
        let found = reader.token_log_probs(&batch).unwrap();
        assert_close("log probabilities", &found, &f64s(&expected), 1e-6);
        assert_eq!(reader.features(1, batch.tokens(), &lengths(&config)).unwrap(), before);
    }
}

#[test]
fn a_reader_takes_less_than_half_of_the_memory_of_training() {
    let config = ModelConfig { blocks: 12, ..even() };
    let bytes = |purpose| Arena::new(&config, SEQUENCES, purpose, Address::NULL).bytes;
    let training = bytes(Purpose::Training { checkpointing: false });
    assert!(2 * bytes(Purpose::Reading) < bytes(Purpose::Training { checkpointing: true }));
    assert!(4 * bytes(Purpose::Reading) < training, "{} of {training}", bytes(Purpose::Reading));
}

#[test]
fn arguments_of_features_that_do_not_fit_are_refused() {
    let config = odd(false);
    let cpu = CpuPath::new(&config, 1);
    let mut reader = Host::reader(&config, SEQUENCES, &cpu.weights());
    let mut features = |blocks, tokens, vocabulary, lengths: &[usize]| {
        let tokens = TokenRows::new(vec![1; tokens], 1, vocabulary).unwrap();
        reader.features(blocks, &tokens, lengths).unwrap_err().to_string()
    };
    assert!(features(3, 2, 50, &[2]).contains("3 is over 2"));
    assert!(features(2, 2, 50, &[3]).contains("not from 1 to 2"));
    assert!(features(2, 2, 50, &[0]).contains("not from 1 to 2"));
    assert!(features(2, 2, 50, &[1, 1]).contains("2 lengths"));
    assert!(features(2, 13, 50, &[13]).contains("longer than the context of 12"));
    assert!(features(2, 2, 51, &[1]).contains("the path has 50"));
}
