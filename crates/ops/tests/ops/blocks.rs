//! Runs of transformer blocks.

use candle_core::Tensor;
use dipaco_ops::{self as ops, Backward, GradientSlot, Precision};

use crate::reference::{self, Sizes};
use crate::support::*;

/// The results of a forward and a backward pass.
#[derive(Debug, PartialEq)]
struct Results {
    y: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<Vec<f32>>,
}

/// Number of parameters before the first block, so that the blocks do not begin at 0.
const BEFORE: usize = 5;

fn weights(sizes: &Sizes, count: usize) -> Vec<f32> {
    let blocks = (0..count).map(|block| block_weights(10 + block as u64, sizes));
    numbers(9, BEFORE).into_iter().chain(blocks.flatten()).collect()
}

fn run(sizes: &Sizes, count: usize, precision: Precision, checkpointing: bool) -> Results {
    let stack = stack(sizes, precision, checkpointing);
    let shape = [sizes.batch, sizes.time, sizes.width];
    let elements = sizes.rows() * sizes.width;
    let weights = weights(sizes, count);
    let (x, w) = (variable(&numbers(1, elements), &shape), variable(&weights, &[weights.len()]));
    let slots: Vec<_> = (0..count).map(|_| GradientSlot::new(&stack.workspace, sizes.parameters())).collect();
    let y = ops::blocks(&x, &w, BEFORE, count, &stack, Backward::All(&slots)).unwrap();
    let dx = backward(&y, &tensor(&numbers(2, elements), &shape), &x);
    Results { y: values(&y), dx, dw: slots.iter().map(gradient).collect() }
}

fn backward(y: &Tensor, dy: &Tensor, x: &Tensor) -> Vec<f32> {
    let gradients = (y * dy).unwrap().sum_all().unwrap().backward().unwrap();
    values(gradients.get(x).expect("x has a gradient"))
}

fn exact(sizes: &Sizes, count: usize) -> (Vec<f64>, Vec<f64>, Vec<Vec<f64>>) {
    let elements = sizes.rows() * sizes.width;
    let weights = wide(&weights(sizes, count)[BEFORE..]);
    let mut inputs = vec![wide(&numbers(1, elements))];
    for block in 0..count {
        let own = &weights[block * sizes.parameters()..][..sizes.parameters()];
        inputs.push(reference::block(&inputs[block], own, sizes));
    }
    let mut dx = wide(&numbers(2, elements));
    let mut gradients = Vec::new();
    for block in (0..count).rev() {
        let own = &weights[block * sizes.parameters()..][..sizes.parameters()];
        let [below, dw] = reference::block_gradients(&inputs[block], own, &dx, sizes);
        dx = below;
        gradients.insert(0, dw);
    }
    (inputs.pop().unwrap(), dx, gradients)
}

/// Bounds of the relative errors. Rounding to bf16 changes a number by at most 2^-9 = 0.002, by 0.001 in the mean. The
/// passes of two blocks round about 40 times in a row; these errors add up like √40 in the mean, and sums that cancel
/// enlarge them. f32 rounds by 2^-24, in sums of up to 500 products.
const BOUNDS: [(Precision, f64); 2] = [(Precision::F32, 4e-6), (Precision::Bf16, 2.5e-2)];

fn check(sizes: Sizes) {
    for count in [1, 2] {
        let (y, dx, dw) = exact(&sizes, count);
        for (precision, bound) in BOUNDS {
            let found = run(&sizes, count, precision, false);
            let name = |part: &str| format!("{part} of {count} blocks of {sizes:?} in {precision:?}");
            assert_close(&name("y"), &found.y, &y, bound);
            assert_close(&name("dx"), &found.dx, &dx, bound);
            for (found, expected) in found.dw.iter().zip(&dw) {
                let parts = sizes.split(found).into_iter().zip(sizes.split(expected)).zip(sizes.parts());
                for ((found, expected), (part, _)) in parts {
                    if sizes.time > 1 || !matches!(part, "q" | "k") {
                        assert_close(&name(part), found, expected, bound);
                    } else {
                        // A single position sees only itself: its query and key have no gradient.
                        assert!(expected.iter().all(|g| *g == 0.0), "{}", name(part));
                        assert!(found.iter().all(|g| f64::from(g.abs()) < bound), "{}", name(part));
                    }
                }
            }
            assert!(run(&sizes, count, precision, true) == found, "checkpointing changes {sizes:?}");
        }
    }
}

macro_rules! sizes {
    ($($name:ident: ($batch:expr, $time:expr, $width:expr, $heads:expr, $kv_heads:expr, $head_dim:expr, $ffn:expr);)*) => {
        $(#[test]
        fn $name() {
            check(Sizes {
                batch: $batch,
                time: $time,
                width: $width,
                heads: $heads,
                kv_heads: $kv_heads,
                head_dim: $head_dim,
                ffn: $ffn,
            });
        })*
    };
}

sizes! {
    // Batch, positions, width, heads, heads of keys and values, head size, feed-forward width.
    a_single_position: (5, 1, 20, 3, 3, 2, 47);
    an_odd_width: (2, 5, 7, 3, 3, 4, 9);
    five_positions_of_three_sequences: (3, 5, 36, 3, 3, 16, 300);
    one_row_more_than_a_panel: (2, 49, 36, 3, 3, 6, 47);
    attention_in_two_blocks: (3, 70, 20, 2, 2, 10, 33);
    attention_in_three_blocks: (1, 130, 36, 1, 1, 16, 47);
    large_heads: (2, 130, 20, 2, 2, 64, 36);
    sums_longer_than_a_chunk: (1, 50, 520, 1, 1, 64, 530);
    three_queries_a_key: (2, 49, 36, 6, 2, 6, 47);
    all_queries_of_one_key: (3, 70, 20, 3, 1, 16, 33);
    groups_in_three_blocks: (1, 130, 36, 4, 2, 64, 47);
}

#[test]
fn gradients_of_several_backward_passes_add_up() {
    let sizes = Sizes { batch: 2, time: 49, width: 36, heads: 3, kv_heads: 3, head_dim: 6, ffn: 47 };
    let shape = [2, 49, 36];
    let weights = weights(&sizes, 1);
    let w = tensor(&weights, &[weights.len()]);
    for (precision, _) in BOUNDS {
        let stack = stack(&sizes, precision, false);
        let pass = |seed: u64, slot: &GradientSlot| {
            let x = variable(&numbers(seed, sizes.rows() * 36), &shape);
            let y =
                ops::blocks(&x, &w, BEFORE, 1, &stack, Backward::All(std::slice::from_ref(slot))).unwrap();
            backward(&y, &tensor(&numbers(seed + 1, sizes.rows() * 36), &shape), &x);
        };
        let [first, second, both] = [(); 3].map(|()| GradientSlot::new(&stack.workspace, sizes.parameters()));
        pass(20, &first);
        pass(30, &second);
        pass(20, &both);
        pass(30, &both);
        let first = gradient(&first);
        let sum: Vec<f64> = wide(&first).iter().zip(wide(&gradient(&second))).map(|(a, b)| a + b).collect();
        assert_close("the sum", &gradient(&both), &sum, 1e-6);
        assert!(both.take().is_none(), "the gradient was taken out");
        pass(20, &both);
        assert_eq!(gradient(&both), first, "an emptied slot begins anew");
    }
}

#[test]
fn results_have_the_same_bits_with_any_number_of_threads() {
    let sizes = Sizes { batch: 3, time: 70, width: 36, heads: 3, kv_heads: 3, head_dim: 10, ffn: 300 };
    for (precision, _) in BOUNDS {
        let one = in_pool(1, || run(&sizes, 2, precision, false));
        for threads in [2, 5] {
            assert!(in_pool(threads, || run(&sizes, 2, precision, false)) == one, "{threads} threads");
        }
    }
}

#[test]
fn frozen_blocks_hand_on_the_same_gradient_of_their_input() {
    let sizes = Sizes { batch: 2, time: 49, width: 36, heads: 3, kv_heads: 3, head_dim: 6, ffn: 47 };
    let shape = [2, 49, 36];
    let weights = weights(&sizes, 2);
    for (precision, _) in BOUNDS {
        for checkpointing in [false, true] {
            let stack = stack(&sizes, precision, checkpointing);
            let x = variable(&numbers(1, sizes.rows() * 36), &shape);
            let w = tensor(&weights, &[weights.len()]);
            let y = ops::blocks(&x, &w, BEFORE, 2, &stack, Backward::Input).unwrap();
            let dx = backward(&y, &tensor(&numbers(2, sizes.rows() * 36), &shape), &x);
            let all = run(&sizes, 2, precision, checkpointing);
            assert_eq!((values(&y), dx), (all.y, all.dx));
        }
    }
}

#[test]
fn blocks_without_slots_give_the_same_and_keep_nothing() {
    let sizes = Sizes { batch: 2, time: 49, width: 36, heads: 3, kv_heads: 3, head_dim: 6, ffn: 47 };
    for (precision, _) in BOUNDS {
        let stack = stack(&sizes, precision, false);
        let weights = weights(&sizes, 2);
        let x = tensor(&numbers(1, sizes.rows() * 36), &[2, 49, 36]);
        let w = tensor(&weights, &[weights.len()]);
        let y = ops::blocks(&x, &w, BEFORE, 2, &stack, Backward::Nothing).unwrap();
        assert_eq!(values(&y), run(&sizes, 2, precision, false).y);
    }
}
