//! Token embeddings, and the whole path with a tied head.

use dipaco_ops::{self as ops, Backward, EmbeddingPlace, GradientSlot, HeadPlace, HeadSlots, Precision};

use crate::reference::{self, Sizes};
use crate::support::*;

#[test]
fn gradients_of_repeated_tokens_add_up() {
    let (before, vocabulary, width) = (3, 6, 4);
    let tokens = [3, 0, 3, 3, 5, 0];
    let all = numbers(1, before + vocabulary * width);
    let place = EmbeddingPlace { at: before, vocabulary, width };
    let workspace = ops::Workspace::default();
    let weights = variable(&all, &[all.len()]);
    let rows = token_rows(&tokens, 2, vocabulary);
    let y = ops::embedding(&weights, place, &rows, None).unwrap();
    assert_eq!(y.dims(), [2, 3, width]);
    let expected = tokens.iter().flat_map(|&t| &all[before + t as usize * width..][..width]);
    assert_eq!(values(&y), expected.copied().collect::<Vec<_>>());

    let dy = numbers(2, tokens.len() * width);
    for passes in 1..=2 {
        let slot = GradientSlot::new(&workspace, vocabulary * width);
        for _ in 0..passes {
            let y = ops::embedding(&weights, place, &rows, Some(&slot)).unwrap();
            (y * tensor(&dy, &[2, 3, width])).unwrap().sum_all().unwrap().backward().unwrap();
        }
        let mut expected = vec![0.0; vocabulary * width];
        for (dy, &token) in dy.chunks(width).zip(&tokens) {
            for (sum, dy) in expected[token as usize * width..].iter_mut().zip(dy) {
                *sum += f64::from(*dy) * f64::from(passes);
            }
        }
        assert_close("the gradient", &gradient(&slot), &expected, 1e-6);
    }
}

#[test]
fn a_whole_path_with_a_tied_head() {
    // The embedding (V, D), two blocks, the final norm: one flat group; the projection is the embedding.
    let sizes = Sizes { batch: 2, time: 50, width: 20, heads: 2, kv_heads: 2, head_dim: 6, ffn: 33 };
    let (d, vocabulary, parameters) = (20, 77, sizes.parameters());
    let mut all = numbers(1, vocabulary * d);
    all.extend([block_weights(2, &sizes), block_weights(3, &sizes)].concat());
    all.extend(numbers(4, d).iter().map(|w| 1.0 + 0.3 * w));
    let tokens: Vec<u32> = (0..100).map(|i| i * 31 % vocabulary as u32).collect();
    let targets: Vec<u32> = tokens.iter().map(|t| if t % 7 == 0 { ops::IGNORE } else { 76 - t }).collect();
    let counted = targets.iter().filter(|&&t| t != ops::IGNORE).count();

    let exact = wide(&all);
    let (table, rest) = exact.split_at(vocabulary * d);
    let (first, rest) = rest.split_at(parameters);
    let (second, norm) = rest.split_at(parameters);
    let x: Vec<f64> = tokens.iter().flat_map(|&t| table[t as usize * d..][..d].to_vec()).collect();
    let middle = reference::block(&x, first, &sizes);
    let y = reference::block(&middle, second, &sizes);
    let loss = -reference::log_probs(&y, norm, table, &targets).iter().sum::<f64>() / counted as f64;
    let [dy, d_norm, mut d_table] =
        reference::head_gradients(&y, norm, table, &targets, 1.0 / counted as f64);
    let [d_middle, d_second] = reference::block_gradients(&middle, second, &dy, &sizes);
    let [dx, d_first] = reference::block_gradients(&x, first, &d_middle, &sizes);
    for (dx, &token) in dx.chunks(d).zip(&tokens) {
        d_table[token as usize * d..][..d].iter_mut().zip(dx).for_each(|(sum, dx)| *sum += dx);
    }

    for (precision, bound) in [(Precision::F32, 3e-6), (Precision::Bf16, 2e-2)] {
        let stack = stack(&sizes, precision, false);
        let slot = |length| GradientSlot::new(&stack.workspace, length);
        let (embedding, blocks, norm) = (slot(vocabulary * d), [slot(parameters), slot(parameters)], slot(d));
        let w = variable(&all, &[all.len()]);
        let place = HeadPlace { norm: all.len() - d, projection: 0, vocabulary };
        let slots = HeadSlots { norm: norm.clone(), projection: embedding.clone() };
        let table = EmbeddingPlace { at: 0, vocabulary, width: d };
        let rows = token_rows(&tokens, 2, vocabulary);
        let x = ops::embedding(&w, table, &rows, Some(&embedding)).unwrap();
        let x = ops::blocks(&x, &w, vocabulary * d, 2, &stack, Backward::All(&blocks)).unwrap();
        let wanted = targets_of(&targets, vocabulary);
        let found =
            ops::cross_entropy(&x, &w, &place, &stack, &wanted, counted, Backward::All(&slots)).unwrap();
        found.backward().unwrap();
        assert_close("loss", &[found.to_scalar().unwrap()], &[loss], bound);
        assert_close("embedding", &gradient(&embedding), &d_table, bound);
        assert_close("first block", &gradient(&blocks[0]), &d_first, bound);
        assert_close("second block", &gradient(&blocks[1]), &d_second, bound);
        assert_close("norm", &gradient(&norm), &d_norm, bound);
    }
}
