//! Every operation against plain f64 arithmetic: results, and gradients by central differences.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use candle_core::{Device, Tensor, Var};
use dipaco_ops::{self as ops, IGNORE, OpsError, RopeTable};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// An operation in f64: flat arguments to flat result.
type Exact<'a> = &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>;
/// The same operation on tensors.
type Fused<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor, OpsError>;

/// Compares the result and the gradients of Σ result · random, the gradients at up to 60 elements per argument.
fn check(shapes: &[&[usize]], fused: Fused<'_>, exact: Exact<'_>) {
    let tensors: Vec<Tensor> = shapes
        .iter()
        .enumerate()
        .map(|(i, &shape)| {
            let values = numbers(i as u64, shape.iter().product());
            Var::from_vec(values, shape, &Device::Cpu).unwrap().as_tensor().clone()
        })
        .collect();
    let wide = |t: &Tensor| -> Vec<f64> {
        t.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect()
    };
    let arguments: Vec<Vec<f64>> = tensors.iter().map(wide).collect();
    let result = fused(&tensors).unwrap();
    let expected = exact(&arguments);
    for (i, (found, expected)) in wide(&result).iter().zip(&expected).enumerate() {
        assert!(
            (found - expected).abs() < 3e-6 * expected.abs().max(1.0),
            "result[{i}]: {found} is not {expected}"
        );
    }
    let weights = numbers(99, expected.len());
    let weighted: Vec<f64> = weights.iter().map(|&w| f64::from(w)).collect();
    let weights = Tensor::from_vec(weights, result.shape(), &Device::Cpu).unwrap();
    let gradients = (result * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let objective =
        |arguments: &[Vec<f64>]| -> f64 { exact(arguments).iter().zip(&weighted).map(|(y, w)| y * w).sum() };
    for (a, tensor) in tensors.iter().enumerate() {
        let gradient = wide(gradients.get(tensor).expect("every argument has a gradient"));
        for i in (0..gradient.len()).step_by(gradient.len().div_ceil(60)) {
            let moved = |by: f64| {
                let mut arguments = arguments.clone();
                arguments[a][i] += by;
                objective(&arguments)
            };
            let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let error = (gradient[i] - expected).abs();
            assert!(
                error < 2e-5 * expected.abs().max(1.0),
                "gradient {a}[{i}]: {} is not {expected}",
                gradient[i]
            );
        }
    }
}

fn matrix_product(x: &[f64], w: &[f64], inputs: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>();
    x.chunks(inputs).flat_map(|x| w.chunks(inputs).map(move |w| dot(x, w))).collect()
}

#[test]
fn linear_maps() {
    for (rows, inputs, outputs) in [(1, 7, 5), (6, 33, 17)] {
        let exact = |a: &[Vec<f64>]| matrix_product(&a[0], &a[1], inputs);
        check(&[&[2, rows, inputs], &[outputs, inputs]], &|t| ops::linear(&t[0], &t[1]), &exact);
    }
}

#[test]
fn root_mean_square_norms() {
    let exact = |a: &[Vec<f64>]| {
        let rows = a[0].chunks(19).flat_map(|x| {
            let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / 19.0 + 1e-2).sqrt();
            x.iter().zip(&a[1]).map(move |(x, w)| x * scale * w)
        });
        rows.collect()
    };
    check(&[&[2, 35, 19], &[19]], &|t| ops::rms_norm(&t[0], &t[1], 1e-2), &exact);
}

#[test]
fn rotary_positions() {
    let table = RopeTable::new(9, 6, 100.0).unwrap();
    let exact = |a: &[Vec<f64>]| {
        let mut y = a[0].clone();
        for (row, head) in y.chunks_mut(6).enumerate() {
            let position = row / 2 % 5 + 4;
            for j in 0..3 {
                let (sin, cos) = (position as f64 * 100f64.powf(-2.0 * j as f64 / 6.0)).sin_cos();
                (head[j], head[j + 3]) =
                    (head[j] * cos - head[j + 3] * sin, head[j + 3] * cos + head[j] * sin);
            }
        }
        y
    };
    check(&[&[2, 5, 2, 6]], &|t| ops::rope(&t[0], &table, 4), &exact);
    let x = Tensor::zeros((2, 6, 2, 6), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(matches!(ops::rope(&x, &table, 4), Err(OpsError::Shape { operation: "rope", .. })));
}

#[test]
fn causal_attention() {
    // One block, several blocks, and queries that are the last of more keys.
    for (queries, keys) in [(5, 5), (70, 70), (3, 9), (66, 130), (1, 4)] {
        let (batch, heads, width) = (2, 2, 4);
        let exact = |a: &[Vec<f64>]| {
            let mut y = vec![0.0; batch * queries * heads * width];
            for (b, t, h) in
                (0..batch).flat_map(|b| (0..queries).flat_map(move |t| (0..heads).map(move |h| (b, t, h))))
            {
                let q = &a[0][((b * queries + t) * heads + h) * width..][..width];
                let at = |s: usize| ((b * keys + s) * heads + h) * width;
                let seen = keys - queries + t + 1;
                let score = |s: usize| {
                    (0..width).map(|j| q[j] * a[1][at(s) + j]).sum::<f64>() / (width as f64).sqrt()
                };
                let weights: Vec<f64> = (0..seen).map(|s| score(s).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for j in 0..width {
                    let value = (0..seen).map(|s| weights[s] * a[2][at(s) + j]).sum::<f64>() / sum;
                    y[((b * queries + t) * heads + h) * width + j] = value;
                }
            }
            y
        };
        let (q, k) = ([batch, queries, heads, width], [batch, keys, heads, width]);
        check(&[&q, &k, &k], &|t| ops::attention(&t[0], &t[1], &t[2]), &exact);
    }
    let zeros = |time| Tensor::zeros((1, time, 2, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(matches!(ops::attention(&zeros(3), &zeros(2), &zeros(2)), Err(OpsError::Shape { .. })));
}

#[test]
fn gated_activations_and_sums() {
    let exact = |a: &[Vec<f64>]| a[0].iter().zip(&a[1]).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    check(&[&[3, 1500], &[3, 1500]], &|t| ops::swiglu(&t[0], &t[1]), &exact);
    let exact = |a: &[Vec<f64>]| a[0].iter().zip(&a[1]).map(|(a, b)| a + b).collect();
    check(&[&[3, 5], &[3, 5]], &|t| ops::add(&t[0], &t[1]), &exact);
}

#[test]
fn embeddings_of_repeated_tokens() {
    let tokens = [3, 0, 3, 3, 5, 0];
    let exact = |a: &[Vec<f64>]| {
        tokens.iter().flat_map(|&t| a[0][t as usize * 4..][..4].to_vec()).collect::<Vec<f64>>()
    };
    check(&[&[6, 4]], &|t| ops::embedding(&t[0], &tokens, 2), &exact);
    let weight = Tensor::zeros((6, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(matches!(ops::embedding(&weight, &[6], 1), Err(OpsError::Token { token: 6, .. })));
    assert!(ops::embedding(&weight, &[1, 2, 3], 2).is_err());
}

#[test]
fn cross_entropy_in_chunks() {
    // 520 positions are two chunks.
    for rows in [3, 520] {
        let targets: Vec<u32> =
            (0..rows).map(|i| if i % 5 == 1 { IGNORE } else { (i * 7 % 11) as u32 }).collect();
        let log_probs = |a: &[Vec<f64>]| -> Vec<f64> {
            let logits = matrix_product(&a[0], &a[1], 6);
            let rows = logits.chunks(11).zip(&targets);
            rows.map(|(row, &target)| {
                let sum = row.iter().map(|l| l.exp()).sum::<f64>().ln();
                row.get(target as usize).map_or(0.0, |logit| logit - sum)
            })
            .collect()
        };
        let counted = targets.iter().filter(|&&t| t != IGNORE).count() as f64;
        let exact = |a: &[Vec<f64>]| vec![-log_probs(a).iter().sum::<f64>() / counted];
        check(&[&[rows, 6], &[11, 6]], &|t| Ok(ops::cross_entropy(&t[0], &t[1], &targets)?.loss), &exact);

        let (x, head) = (numbers(0, rows * 6), numbers(1, 66));
        let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let expected = log_probs(&[wide(&x), wide(&head)]);
        let x = Tensor::from_vec(x, (rows, 6), &Device::Cpu).unwrap();
        let head = Tensor::from_vec(head, (11, 6), &Device::Cpu).unwrap();
        let found = ops::token_log_probs(&x, &head, &targets).unwrap();
        assert!(found.iter().zip(expected).all(|(f, e)| (f64::from(*f) - e).abs() < 2e-6));
        assert!(matches!(
            ops::cross_entropy(&x, &head, &vec![11; rows]),
            Err(OpsError::Token { token: 11, .. })
        ));
        assert!(matches!(ops::cross_entropy(&x, &head, &targets[1..]), Err(OpsError::Shape { .. })));
    }
}

#[test]
fn large_logits_stay_finite() {
    let x = Var::from_vec(vec![300f32, -300.0], (1, 2), &Device::Cpu).unwrap();
    let head = Var::from_vec(vec![1f32, 0.0, 0.0, 1.0, -1.0, 1.0], (3, 2), &Device::Cpu).unwrap();
    let loss = ops::cross_entropy(&x, &head, &[2]).unwrap().loss;
    assert_eq!(loss.to_scalar::<f32>().unwrap(), 900.0);
    let gradients = loss.backward().unwrap();
    let gradient = gradients.get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(gradient, [2.0, -1.0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(ops::linear(&zeros(&[2, 3]), &zeros(&[4, 2])).is_err());
    assert!(ops::rms_norm(&zeros(&[2, 3]), &zeros(&[2]), 1e-5).is_err());
    assert!(ops::swiglu(&zeros(&[2, 3]), &zeros(&[3, 2])).is_err());
    assert!(ops::add(&zeros(&[2]), &zeros(&[3])).is_err());
    assert!(ops::update_in_place(&zeros(&[2]), &zeros(&[3]), |_, _| ()).is_err());
    assert!(ops::with_slice(&zeros(&[2, 3]).t().unwrap(), |_| ()).is_err());
    assert!(RopeTable::new(4, 3, 1e4).is_err());
}
