//! The head with cross entropy.

use dipaco_ops::{self as ops, Backward, GradientSlot, HeadPlace, HeadSlots, IGNORE, Precision, Stack};

use crate::reference::{self, Sizes};
use crate::support::*;

fn head_stack(width: usize, precision: Precision) -> Stack {
    stack(&Sizes { batch: 1, time: 1, width, heads: 1, kv_heads: 1, head_dim: 2, ffn: 1 }, precision, false)
}

/// 3 other parameters, then the norm, then the projection.
fn weights(vocabulary: usize, width: usize) -> Vec<f32> {
    let norm = numbers(4, width).into_iter().map(|w| 1.0 + 0.3 * w);
    numbers(3, 3).into_iter().chain(norm).chain(numbers(5, vocabulary * width)).collect()
}

struct Case {
    batch: usize,
    time: usize,
    width: usize,
    vocabulary: usize,
}

impl Case {
    fn targets(&self) -> Vec<u32> {
        let target = |i: usize| (i * 7919 % self.vocabulary) as u32;
        (0..self.batch * self.time).map(|i| if i % 5 == 1 { IGNORE } else { target(i) }).collect()
    }

    fn place(&self) -> HeadPlace {
        HeadPlace { norm: 3, projection: 3 + self.width, vocabulary: self.vocabulary }
    }

    /// The loss, the gradient of x, and the gradient of norm and projection.
    fn run(&self, precision: Precision, passes: usize) -> (f32, Vec<f32>, Vec<f32>) {
        let Self { batch, time, width, vocabulary } = *self;
        let stack = head_stack(width, precision);
        let (targets, all) = (self.targets(), weights(vocabulary, width));
        let counted = targets.iter().filter(|&&t| t != IGNORE).count();
        let slot = GradientSlot::new(&stack.workspace, width + vocabulary * width);
        let slots = HeadSlots { norm: slot.clone(), projection: slot.clone() };
        let x = variable(&numbers(1, batch * time * width), &[batch, time, width]);
        let w = tensor(&all, &[all.len()]);
        let wanted = targets_of(&targets, vocabulary);
        let mut result = (0.0, Vec::new());
        for _ in 0..passes {
            let loss =
                ops::cross_entropy(&x, &w, &self.place(), &stack, &wanted, counted, Backward::All(&slots))
                    .unwrap();
            let dx = values(loss.backward().unwrap().get(&x).unwrap());
            result = (loss.to_scalar().unwrap(), dx);
        }
        (result.0, result.1, gradient(&slot))
    }

    fn check(&self) {
        let Self { batch, time, width, vocabulary } = *self;
        let (targets, all) = (self.targets(), weights(vocabulary, width));
        let counted = targets.iter().filter(|&&t| t != IGNORE).count();
        let (x, exact) = (numbers(1, batch * time * width), wide(&all[3..]));
        let (norm, projection) = exact.split_at(width);
        let log_probs = reference::log_probs(&wide(&x), norm, projection, &targets);
        let loss = -log_probs.iter().sum::<f64>() / counted as f64;
        let [dx, dn, dp] =
            reference::head_gradients(&wide(&x), norm, projection, &targets, 1.0 / counted as f64);
        for (precision, bound) in [(Precision::F32, 2e-6), (Precision::Bf16, 1e-2)] {
            let found = self.run(precision, 1);
            let all_gradients = found.clone();
            let (found_norm, found_projection) = found.2.split_at(width);
            assert_close("loss", &[found.0], &[loss], bound);
            assert_close("dx", &found.1, &dx, bound);
            assert_close("norm", found_norm, &dn, bound);
            assert_close("projection", found_projection, &dp, bound);

            let stack = head_stack(width, precision);
            let x_values = &x;
            let (x, w) = (tensor(x_values, &[batch, time, width]), tensor(&all, &[all.len()]));
            let wanted = targets_of(&targets, vocabulary);
            let found = ops::token_log_probs(&x, &w, &self.place(), &stack, &wanted).unwrap();
            assert_close("log-probabilities", &found, &log_probs, bound);
            assert!(found.iter().zip(&targets).all(|(f, t)| *t != IGNORE || *f == 0.0));
            let plain =
                ops::cross_entropy(&x, &w, &self.place(), &stack, &wanted, counted, Backward::Nothing)
                    .unwrap();
            let variable = variable(x_values, &[batch, time, width]);
            let frozen =
                ops::cross_entropy(&variable, &w, &self.place(), &stack, &wanted, counted, Backward::Input)
                    .unwrap();
            let dx = values(frozen.backward().unwrap().get(&variable).unwrap());
            assert_eq!((frozen.to_scalar().unwrap(), dx), (all_gradients.0, all_gradients.1));
            assert_close("loss without gradients", &[plain.to_scalar().unwrap()], &[loss], bound);
        }
    }
}

#[test]
fn a_small_head() {
    Case { batch: 1, time: 3, width: 6, vocabulary: 11 }.check();
    Case { batch: 2, time: 1, width: 7, vocabulary: 1 }.check();
}

#[test]
fn more_rows_and_entries_than_one_chunk() {
    Case { batch: 3, time: 175, width: 20, vocabulary: 2101 }.check();
    Case { batch: 2, time: 49, width: 33, vocabulary: 4100 }.check();
}

#[test]
fn gradients_of_several_backward_passes_add_up() {
    let case = Case { batch: 3, time: 175, width: 20, vocabulary: 2101 };
    for precision in [Precision::F32, Precision::Bf16] {
        let (one, two) = (case.run(precision, 1).2, case.run(precision, 2).2);
        let twice: Vec<f64> = one.iter().map(|g| 2.0 * f64::from(*g)).collect();
        assert_close("two passes", &two, &twice, 1e-6);
    }
}

#[test]
fn results_have_the_same_bits_with_any_number_of_threads() {
    let case = Case { batch: 3, time: 175, width: 20, vocabulary: 2101 };
    for precision in [Precision::F32, Precision::Bf16] {
        assert!(in_pool(1, || case.run(precision, 1)) == in_pool(3, || case.run(precision, 1)));
    }
}

#[test]
fn large_logits_stay_finite() {
    // The norm scales x to (1, -1); its weight makes the logits 300, -300 and -600.
    let all = [300f32, 300.0, 1.0, 0.0, 0.0, 1.0, -1.0, 1.0];
    let stack = head_stack(2, Precision::F32);
    let place = HeadPlace { norm: 0, projection: 2, vocabulary: 3 };
    let slot = GradientSlot::new(&stack.workspace, 8);
    let slots = HeadSlots { norm: slot.clone(), projection: slot.clone() };
    let x = variable(&[1e4, -1e4], &[1, 1, 2]);
    let targets = targets_of(&[2], 3);
    let loss =
        ops::cross_entropy(&x, &tensor(&all, &[8]), &place, &stack, &targets, 1, Backward::All(&slots))
            .unwrap();
    assert_eq!(loss.to_scalar::<f32>().unwrap(), 900.0);
    assert!(values(loss.backward().unwrap().get(&x).unwrap()).iter().all(|g| g.is_finite()));
    let expected = [2.0, 1.0, 300.0, -300.0, 0.0, 0.0, -300.0, 300.0];
    let found = gradient(&slot);
    assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-30), "{found:?}");
}

#[test]
fn a_batch_without_counted_targets_has_no_loss_and_no_gradient() {
    let stack = head_stack(6, Precision::F32);
    let all = weights(11, 6);
    let slot = GradientSlot::new(&stack.workspace, 6 + 66);
    let slots = HeadSlots { norm: slot.clone(), projection: slot.clone() };
    let place = HeadPlace { norm: 3, projection: 9, vocabulary: 11 };
    let x = variable(&numbers(1, 12), &[1, 2, 6]);
    let w = tensor(&all, &[all.len()]);
    let targets = targets_of(&[IGNORE; 2], place.vocabulary);
    let loss = ops::cross_entropy(&x, &w, &place, &stack, &targets, 0, Backward::All(&slots)).unwrap();
    assert_eq!(loss.to_scalar::<f32>().unwrap(), 0.0);
    assert!(values(loss.backward().unwrap().get(&x).unwrap()).iter().all(|g| *g == 0.0));
    assert!(gradient(&slot).iter().all(|g| *g == 0.0));
}
