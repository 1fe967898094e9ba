//! The fused operations against candle's own, gradients included where candle has them.
#![allow(clippy::unwrap_used)]

use candle_core::{Device, Tensor, Var};
use dipaco_ops as ops;

/// Largest difference of two tensors of equal shape, f32.
fn difference(a: &Tensor, b: &Tensor) -> f32 {
    (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap()
}

fn random(shape: &[usize]) -> Var {
    Var::from_tensor(&Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()).unwrap()
}

#[test]
fn rms_norm_is_candles_slow_one_with_its_gradients() {
    let (x, w) = (random(&[3, 5, 24]), random(&[24]));
    let ours = ops::rms_norm(&x, &w, 1e-5).unwrap();
    let theirs = candle_nn::ops::rms_norm_slow(&x, &w, 1e-5).unwrap();
    assert!(difference(&ours, &theirs) < 1e-5);
    let weights = Tensor::randn(0f32, 1.0, ours.shape(), &Device::Cpu).unwrap();
    let gradients = |y: &Tensor| (y * &weights).unwrap().sum_all().unwrap().backward().unwrap();
    let (ours, theirs) = (gradients(&ours), gradients(&theirs));
    for var in [&x, &w] {
        assert!(difference(ours.get(var).unwrap(), theirs.get(var).unwrap()) < 1e-4);
    }
}

#[test]
fn cross_entropy_is_candles_on_whole_logits() {
    let (x, head) = (random(&[2, 7, 16]), random(&[33, 16]));
    let targets: Vec<u32> = (0..14).map(|i| (i * 5) % 33).collect();
    let ours = ops::cross_entropy(&x, &head, &targets).unwrap();
    let logits = x.reshape((14, 16)).unwrap().matmul(&head.t().unwrap()).unwrap();
    let theirs =
        candle_nn::loss::cross_entropy(&logits, &Tensor::new(targets, &Device::Cpu).unwrap()).unwrap();
    assert!(difference(&ours.loss, &theirs) < 1e-5);
    let (ours, theirs) = (ours.loss.backward().unwrap(), theirs.backward().unwrap());
    for var in [&x, &head] {
        assert!(difference(ours.get(var).unwrap(), theirs.get(var).unwrap()) < 1e-5);
    }
}

#[test]
fn swiglu_is_silu_times_the_other_half() {
    let (gate, up) = (random(&[4, 40]), random(&[4, 40]));
    let ours = ops::swiglu(&gate, &up).unwrap();
    let theirs = (candle_nn::ops::silu(&gate).unwrap() * up.as_tensor()).unwrap();
    assert!(difference(&ours, &theirs) < 1e-5);
    let gradients = |y: &Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let (ours, theirs) = (gradients(&ours), gradients(&theirs));
    for var in [&gate, &up] {
        assert!(difference(ours.get(var).unwrap(), theirs.get(var).unwrap()) < 1e-4);
    }
}
