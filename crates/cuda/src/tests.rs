//! The kernels and whole steps on the host, compared with f64 and with the CPU path.

mod attention;
#[path = "../tests/reference/cpu_path.rs"]
mod cpu_path;
mod operations;
mod reader;
mod steps;

use dipaco_model::{Dtype, ModelConfig};

use crate::Trained;
use crate::device::{Address, Argument, Grid, KernelDevice as _, Launch};
use crate::engine::to_bf16;
use crate::host::{Host, address};

/// A configuration for the test of one kernel.
fn config(dtype: Dtype, hidden_size: usize, heads: usize, head_dim: usize) -> ModelConfig {
    ModelConfig {
        hidden_size,
        blocks: 2,
        heads,
        head_dim,
        ffn_size: 2 * hidden_size,
        vocab_size: 3 * hidden_size,
        context: 64,
        dtype,
        ..ModelConfig::default()
    }
}

/// Sizes that fit no tile and no vector.
fn odd(tie_embeddings: bool) -> ModelConfig {
    ModelConfig {
        hidden_size: 20,
        blocks: 2,
        heads: 3,
        head_dim: 6,
        ffn_size: 28,
        vocab_size: 50,
        context: 12,
        tie_embeddings,
        ..ModelConfig::default()
    }
}

/// Sizes that fit the tensor cores and 16-byte accesses.
fn even() -> ModelConfig {
    ModelConfig {
        hidden_size: 32,
        blocks: 2,
        heads: 2,
        head_dim: 16,
        ffn_size: 48,
        vocab_size: 56,
        context: 24,
        ..ModelConfig::default()
    }
}

/// The same with twice as many heads, and this number of heads of keys and values.
fn grouped(config: ModelConfig, kv_heads: usize) -> ModelConfig {
    ModelConfig { heads: 2 * config.heads, kv_heads: Some(kv_heads), ..config }
}

/// Reproducible numbers from -1 to 1.
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Numbers as kernels read them: f32, or bf16 in the same memory, from an address that is a multiple of 32.
struct Buffer {
    dtype: Dtype,
    memory: Vec<[f32; 8]>,
    skip: usize,
    count: usize,
}

impl Buffer {
    fn new(dtype: Dtype, values: &[f32]) -> Self {
        let memory = vec![[0.0; 8]; values.len() / 8 + 2];
        let skip = (32 - memory.as_ptr() as usize % 32) % 32;
        let mut buffer = Self { dtype, memory, skip, count: values.len() };
        let bits: Vec<u16> = values.iter().map(|&value| to_bf16(value)).collect();
        let bytes: &[u8] = match dtype {
            Dtype::F32 => bytemuck::cast_slice(values),
            Dtype::Bf16 => bytemuck::cast_slice(&bits),
        };
        let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer.memory);
        memory[skip..skip + bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn f32(values: &[f32]) -> Self {
        Self::new(Dtype::F32, values)
    }

    fn zeros(dtype: Dtype, count: usize) -> Self {
        Self::new(dtype, &vec![0.0; count])
    }

    fn argument(&mut self) -> Argument {
        self.address().into()
    }

    fn address(&mut self) -> Address {
        address(&mut self.memory).plus(self.skip)
    }

    fn values(&self) -> Vec<f32> {
        let memory: &[u8] = bytemuck::cast_slice(&self.memory);
        match self.dtype {
            Dtype::F32 => bytemuck::cast_slice(&memory[self.skip..][..4 * self.count]).to_vec(),
            Dtype::Bf16 => {
                let bits: &[u16] = bytemuck::cast_slice(&memory[self.skip..][..2 * self.count]);
                bits.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
            }
        }
    }

    fn f64(&self) -> Vec<f64> {
        self.values().into_iter().map(f64::from).collect()
    }
}

fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn run(host: &mut Host, kernel: &'static str, grid: Grid, threads: usize, arguments: &[Argument]) {
    host.launch(Launch { kernel, grid, threads }, arguments).unwrap();
}

/// Asserts that every difference is at most `tolerance` times the largest expected magnitude.
#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-30f64, |most, value| most.max(value.abs()));
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs() / largest;
        assert!(
            error <= tolerance,
            "{what}[{i}]: {found} is not {expected}, off by {error:e} of the largest"
        );
    }
}

/// Tolerance for the rounding of f32 results with some sums, or of bf16 results.
fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2e-6,
        Dtype::Bf16 => 4e-3,
    }
}
