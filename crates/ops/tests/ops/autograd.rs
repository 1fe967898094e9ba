//! The fused operations against candle's stock operations, which candle differentiates.

use candle_core::{D, DType, Device, Result, Tensor};
use dipaco_ops::{self as ops, Backward, GradientSlot, HeadPlace, HeadSlots, IGNORE, Precision};

use crate::reference::{EPSILON, Sizes, THETA};
use crate::support::*;

/// `x · Wᵀ` for x (B, T, D).
fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.broadcast_matmul(&w.t()?)
}

/// A block of operations that candle differentiates; its fused norm, softmax and rotation have no backward pass.
fn stock_block(x: &Tensor, weights: &[Tensor], sizes: &Sizes) -> Result<Tensor> {
    let [norm, q, k, v, o, post, gate, up, down] = weights else { unreachable!("a block has nine parts") };
    let &Sizes { batch, time, heads, head_dim, .. } = sizes;
    let angles: Vec<f32> = (0..time)
        .flat_map(|t| (0..head_dim / 2).map(move |j| (t, j)))
        .map(|(t, j)| (t as f64 * THETA.powf(-2.0 * j as f64 / head_dim as f64)) as f32)
        .collect();
    let angles = Tensor::from_vec(angles, (time, head_dim / 2), &Device::Cpu)?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let split = |x: &Tensor| x.reshape((batch, time, heads, head_dim))?.transpose(1, 2)?.contiguous();

    let h = candle_nn::ops::rms_norm_slow(x, norm, EPSILON as f32)?;
    let rotated = |w| candle_nn::rotary_emb::rope_slow(&split(&linear(&h, w)?)?, &cos, &sin);
    let (q, k, v) = (rotated(q)?, rotated(k)?, split(&linear(&h, v)?)?);
    let mask: Vec<f32> = (0..time * time).map(|i| if i % time > i / time { -1e9 } else { 0.0 }).collect();
    let mask = Tensor::from_vec(mask, (time, time), &Device::Cpu)?;
    let scores = (q.matmul(&k.t()?)? / (head_dim as f64).sqrt())?.broadcast_add(&mask)?;
    let scores = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    let weights = scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)?;
    let y = weights.matmul(&v)?.transpose(1, 2)?.reshape((batch, time, heads * head_dim))?;
    let middle = (x + linear(&y, o)?)?;
    let h = candle_nn::ops::rms_norm_slow(&middle, post, EPSILON as f32)?;
    let (gate, up) = (linear(&h, gate)?, linear(&h, up)?);
    let gated = (&gate / (gate.neg()?.exp()? + 1.0)?)?.mul(&up)?;
    middle + linear(&gated, down)?
}

#[test]
fn a_block_has_the_gradients_of_stock_operations() {
    for sizes in [
        Sizes { batch: 2, time: 49, width: 36, heads: 3, kv_heads: 3, head_dim: 6, ffn: 47 },
        Sizes { batch: 1, time: 70, width: 20, heads: 2, kv_heads: 2, head_dim: 16, ffn: 65 },
        Sizes { batch: 3, time: 5, width: 64, heads: 1, kv_heads: 1, head_dim: 64, ffn: 128 },
    ] {
        let shape = [sizes.batch, sizes.time, sizes.width];
        let elements = sizes.rows() * sizes.width;
        let flat = block_weights(7, &sizes);
        let dy = tensor(&numbers(2, elements), &shape);
        let objective = |y: &Tensor| (y * &dy).unwrap().sum_all().unwrap().backward().unwrap();

        let x = variable(&numbers(1, elements), &shape);
        let parts: Vec<Tensor> = sizes
            .split(&flat)
            .into_iter()
            .zip(sizes.parts())
            .map(|(part, (name, length))| {
                let inputs = match name {
                    "o" => sizes.heads * sizes.head_dim,
                    "down" => sizes.ffn,
                    _ => sizes.width,
                };
                let matrix = [length / inputs, inputs];
                variable(part, if name.ends_with("norm") { &matrix[1..] } else { &matrix })
            })
            .collect();
        let theirs = stock_block(&x, &parts, &sizes).unwrap();
        let expected = objective(&theirs);

        let stack = stack(&sizes, Precision::F32, false);
        let slot = GradientSlot::new(&stack.workspace, sizes.parameters());
        let w = tensor(&flat, &[flat.len()]);
        let ours = ops::blocks(&x, &w, 0, 1, &stack, Backward::All(std::slice::from_ref(&slot))).unwrap();
        let found = objective(&ours);
        let of = |t: &Tensor| wide(&values(expected.get(t).expect("candle differentiates it")));
        assert_close("y", &values(&ours), &wide(&values(&theirs)), 1e-5);
        assert_close("dx", &values(found.get(&x).unwrap()), &of(&x), 1e-5);
        let gradients = gradient(&slot);
        let found = sizes.split(&gradients).into_iter().zip(&parts).zip(sizes.parts());
        for ((found, part), (name, _)) in found {
            assert_close(name, found, &of(part), 1e-5);
        }
    }
}

#[test]
fn a_head_has_the_gradients_of_stock_operations() {
    let (batch, time, width, vocabulary) = (2, 35, 20, 333);
    let shape = [batch, time, width];
    let norm = variable(&numbers(1, width), &[width]);
    let projection = variable(&numbers(2, vocabulary * width), &[vocabulary, width]);
    let x = variable(&numbers(3, batch * time * width), &shape);
    let counted = |i: usize| i % 5 != 1;
    let targets: Vec<u32> =
        (0..batch * time).map(|i| if counted(i) { (i * 41 % vocabulary) as u32 } else { IGNORE }).collect();
    let rows: Vec<u32> = (0..targets.len()).filter(|&i| counted(i)).map(|i| i as u32).collect();
    let kept: Vec<u32> = targets.iter().copied().filter(|&t| t != IGNORE).collect();
    let count = kept.len();

    let h = candle_nn::ops::rms_norm_slow(&x, &norm, EPSILON as f32).unwrap();
    let h = h.reshape((targets.len(), width)).unwrap();
    let h = h.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap();
    let logits = h.matmul(&projection.t().unwrap()).unwrap();
    let theirs = candle_nn::loss::cross_entropy(&logits, &Tensor::new(kept, &Device::Cpu).unwrap()).unwrap();
    let expected = theirs.backward().unwrap();

    let sizes = Sizes { batch, time, width, heads: 1, kv_heads: 1, head_dim: 2, ffn: 1 };
    let stack = stack(&sizes, Precision::F32, false);
    let w = Tensor::cat(&[&norm, &projection.flatten_all().unwrap()], 0).unwrap().detach();
    assert_eq!(w.dtype(), DType::F32);
    let slot = GradientSlot::new(&stack.workspace, width + vocabulary * width);
    let slots = HeadSlots { norm: slot.clone(), projection: slot.clone() };
    let place = HeadPlace { norm: 0, projection: width, vocabulary };
    let wanted = targets_of(&targets, vocabulary);
    let ours = ops::cross_entropy(&x, &w, &place, &stack, &wanted, count, Backward::All(&slots)).unwrap();
    let found = ours.backward().unwrap();
    let of = |t: &Tensor| wide(&values(expected.get(t).expect("candle differentiates it")));
    assert_close("loss", &values(&ours), &wide(&values(&theirs)), 1e-6);
    assert_close("dx", &values(found.get(&x).unwrap()), &of(&x), 1e-5);
    let gradients = gradient(&slot);
    assert_close("norm", &gradients[..width], &of(&norm), 1e-5);
    assert_close("projection", &gradients[width..], &of(&projection), 1e-5);
}
