//! The choice of a set, and the results of every set that this processor has.

use candle_core::{Device, Tensor, Var};

use super::*;
use crate::test_support::{in_pool, numbers};
use crate::{
    Backward, BlockShape, GradientSlot, HeadPlace, HeadSlots, IGNORE, Precision, Profile, RopeTable, Stack,
    TokenBatch, TokenRows, Workspace, blocks, cross_entropy,
};

fn processor(sets: &[KernelSet], pair_cost: f64, tile_problem: Option<&str>) -> Processor {
    Processor::for_test(sets, pair_cost, tile_problem)
}

const ALL_BUT_TILES: [KernelSet; 4] =
    [KernelSet::Avx512Bf16, KernelSet::Avx512, KernelSet::Avx2, KernelSet::Portable];

#[test]
fn without_a_variable_the_fastest_set_runs() {
    let of = |sets: &[KernelSet], cost| choose("", &processor(sets, cost, None)).unwrap().set;
    let with_tiles: Vec<_> = [KernelSet::Amx].into_iter().chain(ALL_BUT_TILES).collect();
    assert_eq!(of(&with_tiles, 4.0), KernelSet::Amx);
    assert_eq!(of(&ALL_BUT_TILES, 1.0), KernelSet::Avx512Bf16);
    assert_eq!(of(&ALL_BUT_TILES, 2.0), KernelSet::Avx512Bf16);
    assert_eq!(of(&ALL_BUT_TILES, 3.9), KernelSet::Avx512);
    assert_eq!(of(&ALL_BUT_TILES[1..], 1.0), KernelSet::Avx512);
    assert_eq!(of(&ALL_BUT_TILES[2..], 1.0), KernelSet::Avx2);
    assert_eq!(of(&ALL_BUT_TILES[3..], 1.0), KernelSet::Portable);
    let of_arm = [KernelSet::NeonBf16, KernelSet::Neon, KernelSet::Portable];
    assert_eq!(of(&of_arm, 1.3), KernelSet::NeonBf16);
    assert_eq!(of(&of_arm, 2.6), KernelSet::Neon);
    assert_eq!(of(&of_arm[1..], 1.0), KernelSet::Neon);
}

#[test]
fn a_set_has_the_fastest_int8_kernels_that_need_no_wider_registers() {
    let of = |set: KernelSet| choose(set.name(), &processor(&KernelSet::ALL, 1.0, None)).unwrap().int8;
    for set in [KernelSet::Amx, KernelSet::Avx512Bf16, KernelSet::Avx512] {
        assert_eq!(of(set), Int8Kernels::Avx512Vnni);
    }
    assert_eq!(of(KernelSet::Avx2), Int8Kernels::AvxVnni);
    assert_eq!([of(KernelSet::NeonBf16), of(KernelSet::Neon)], [Int8Kernels::NeonDot; 2]);
    assert_eq!(of(KernelSet::Portable), Int8Kernels::Portable);
    assert_eq!(of(KernelSet::AmxModel), Int8Kernels::Portable);
    // Products of this process run only what the processor has.
    let own = Processor::of_machine();
    assert!(available().into_iter().all(|set| own.int8(set).are_there() && own.int8(set).belong_to(set)));
}

#[test]
fn a_refused_permission_falls_back_and_says_so() {
    let refused = "the system refuses AMX tiles to this process (Operation not permitted)";
    let choice = choose("", &processor(&ALL_BUT_TILES, 3.9, Some(refused))).unwrap();
    assert!(choice.set == KernelSet::Avx512 && choice.has_problem);
    assert!(choice.reason.starts_with(refused) && choice.reason.contains("3.9"), "{}", choice.reason);
}

#[test]
fn a_name_forces_its_set_and_others_are_errors_that_list_the_names() {
    let processor = processor(&ALL_BUT_TILES, 1.0, None);
    for set in ALL_BUT_TILES {
        assert_eq!(choose(set.name(), &processor).unwrap().set, set);
    }
    let names = "give avx512-bf16, avx512, avx2 or portable, or leave it out";
    let unknown = choose("sse9", &processor).unwrap_err().to_string();
    assert!(unknown.contains("DIPACO_SIMD is \"sse9\", which names no kernels") && unknown.contains(names));
    let missing = choose("amx", &processor).unwrap_err().to_string();
    assert!(missing.contains("DIPACO_SIMD is \"amx\", but a test leaves it out"), "{missing}");
    assert!(missing.contains(names), "{missing}");
}

/// The sizes of a path. Heads, rows and depths are whole tiles in one case and leave edges everywhere in the other.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    time: usize,
    width: usize,
    heads: usize,
    head_dim: usize,
    ffn: usize,
    vocabulary: usize,
}

const SIZES: [Sizes; 2] = [
    Sizes { batch: 2, time: 128, width: 64, heads: 2, head_dim: 32, ffn: 96, vocabulary: 128 },
    Sizes { batch: 3, time: 71, width: 37, heads: 3, head_dim: 14, ffn: 53, vocabulary: 101 },
];

impl Sizes {
    /// A training step of a block and a head: the block's result, the loss, and the gradients of the input, the block and the
    /// head.
    fn step(self, precision: Precision) -> Vec<Vec<f32>> {
        let Self { batch, time, width, heads, head_dim, ffn, vocabulary } = self;
        let rope = RopeTable::new(time, head_dim, 100.0).unwrap();
        let shape = BlockShape { width, heads, kv_heads: 1, ffn, epsilon: 1e-3, rope };
        let parameters = shape.parameters();
        let (workspace, profile) = (Workspace::default(), Profile::default());
        let stack = Stack { shape, precision, checkpointing: false, workspace, profile };
        let weights = |seed, count| {
            let values = numbers(seed, count).into_iter().map(|value| 0.2 * value + 0.05).collect::<Vec<_>>();
            Tensor::from_vec(values, count, &Device::Cpu).unwrap()
        };
        let x = Var::from_vec(numbers(1, batch * time * width), (batch, time, width), &Device::Cpu).unwrap();
        let slot = GradientSlot::new(&stack.workspace, parameters);
        let own = std::slice::from_ref(&slot);
        let y = blocks(&x, &weights(2, parameters), 0, 1, &stack, Backward::All(own)).unwrap();
        let projection = width + vocabulary * width;
        let head_slot = GradientSlot::new(&stack.workspace, projection);
        let slots = HeadSlots { norm: head_slot.clone(), projection: head_slot.clone() };
        let place = HeadPlace { norm: 0, projection: width, vocabulary };
        let target = |i: usize| if i % 7 == 3 { IGNORE } else { (i * 31 % vocabulary) as u32 };
        let targets: Vec<u32> = (0..batch * time).map(target).collect();
        let tokens = TokenRows::new(vec![0; batch * time], batch, 1).unwrap();
        let targets = TokenBatch::new(tokens, targets, vocabulary).unwrap();
        let all = Backward::All(&slots);
        let loss = cross_entropy(&y, &weights(3, projection), &place, &stack, &targets, 100, all).unwrap();
        let gradients = loss.backward().unwrap();
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        vec![
            values(&y),
            values(&loss),
            values(gradients.get(&x).unwrap()),
            slot.take().unwrap().to_vec(),
            head_slot.take().unwrap().to_vec(),
        ]
    }
}

/// The distance of a result from another, in the Euclidean norm.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let differences = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - f64::from(*e)).powi(2));
    let norm: f64 = expected.iter().map(|e| f64::from(*e).powi(2)).sum();
    (differences.sum::<f64>() / norm).sqrt()
}

#[test]
fn every_set_keeps_its_tolerance_and_its_bits_with_any_number_of_threads() {
    let sets = available();
    assert!(sets.contains(&KernelSet::Portable) && sets.contains(&KernelSet::AmxModel), "{sets:?}");
    for (number, sizes) in SIZES.into_iter().enumerate() {
        for (precision, tolerance) in [(Precision::F32, F32_TOLERANCE), (Precision::Bf16, BF16_TOLERANCE)] {
            let run = |set, threads| with_set(Some(set), || in_pool(threads, || sizes.step(precision)));
            let expected = run(KernelSet::Portable, 1);
            for &set in &sets {
                let one = run(set, 1);
                for (part, (found, expected)) in one.iter().zip(&expected).enumerate() {
                    let distance = distance(found, expected);
                    let case = format!("{set}, {precision:?}, sizes {number}, part {part}: {distance:.1e}");
                    assert!(distance < tolerance, "{case}");
                }
                for threads in [2, 4] {
                    assert!(
                        one == run(set, threads),
                        "{set}, {precision:?}, sizes {number}: {threads} threads"
                    );
                }
            }
        }
    }
}
