//! Helpers of these tests.

use candle_core::{Device, Tensor, Var};
use dipaco_ops::{
    BlockShape, GradientSlot, Precision, Profile, RopeTable, Stack, TokenBatch, TokenRows, Workspace,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::reference::{EPSILON, Sizes, THETA};

/// Numbers in -1..1 from a seed.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Weights of a block: norms around 1, and matrices whose products have about the size of their inputs.
pub(crate) fn block_weights(seed: u64, sizes: &Sizes) -> Vec<f32> {
    let mut weights = numbers(seed, sizes.parameters());
    let mut rest = weights.as_mut_slice();
    for (name, length) in sizes.parts() {
        let (part, after) = rest.split_at_mut(length);
        let inputs = match name {
            "o" => sizes.heads * sizes.head_dim,
            "down" => sizes.ffn,
            _ => sizes.width,
        };
        let scale = (3.0 / inputs as f32).sqrt();
        let norm = name.ends_with("norm");
        part.iter_mut().for_each(|w| *w = if norm { 1.0 + 0.3 * *w } else { *w * scale });
        rest = after;
    }
    weights
}

pub(crate) fn stack(sizes: &Sizes, precision: Precision, checkpointing: bool) -> Stack {
    let shape = BlockShape {
        width: sizes.width,
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        ffn: sizes.ffn,
        epsilon: EPSILON as f32,
        rope: RopeTable::new(sizes.time, sizes.head_dim, THETA).unwrap(),
    };
    assert_eq!(shape.parameters(), sizes.parameters());
    let workspace = Workspace::default();
    Stack { shape, precision, checkpointing, workspace, profile: Profile::default() }
}

pub(crate) fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

/// A tensor for which candle records gradients.
pub(crate) fn variable(values: &[f32], shape: &[usize]) -> Tensor {
    Var::from_tensor(&tensor(values, shape)).unwrap().into_inner()
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Takes the gradient out of a slot.
pub(crate) fn gradient(slot: &GradientSlot) -> Vec<f32> {
    slot.take().expect("a backward pass has reached it").to_vec()
}

pub(crate) fn token_rows(ids: &[u32], rows: usize, vocabulary: usize) -> TokenRows {
    TokenRows::new(ids, rows, vocabulary).unwrap()
}

/// A batch of these targets, for operations that read no tokens.
pub(crate) fn targets_of(ids: &[u32], outputs: usize) -> TokenBatch {
    TokenBatch::new(token_rows(&vec![0; ids.len()], 1, 1), ids, outputs).unwrap()
}

/// Asserts that the relative distance of a result from the expected one, in the Euclidean norm, is at most `bound`.
#[track_caller]
pub(crate) fn assert_close(name: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let distance: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    let error = (distance / norm.max(1e-24)).sqrt();
    assert!(error <= bound, "{name}: relative error {error:.1e}, more than {bound:.1e}");
}

/// Runs `f` in a thread pool of its own.
pub(crate) fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}
