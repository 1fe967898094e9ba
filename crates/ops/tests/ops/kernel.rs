//! The computations on plain slices.

use dipaco_ops::kernel::{self, LinearShape, TransposedShape};
use dipaco_ops::{PackedRows, RopeTable, kernel_choice, with_vector_units};

use crate::reference::{self, EPSILON, THETA};
use crate::support::*;

/// The checks of one set after the other rely on it: functions without an error compute with the fastest set instead.
#[test]
fn the_variable_chooses_the_set() {
    let set = kernel_choice().unwrap().set;
    if let Ok(forced) = std::env::var("DIPACO_SIMD")
        && !forced.is_empty()
    {
        assert_eq!(set.name(), forced);
    }
}

#[test]
fn linear_maps() {
    // A single row, a single row with enough work for several threads, one panel, several panels.
    for (rows, inputs, outputs) in [(1, 7, 5), (1, 600, 900), (6, 33, 17), (48, 20, 47), (130, 520, 33)] {
        let (x, w) = (numbers(1, rows * inputs), numbers(2, outputs * inputs));
        let mut y = vec![f32::NAN; rows * outputs];
        kernel::linear(&x, &w, &mut y, LinearShape { rows, inputs, outputs });
        assert_close("linear", &y, &reference::linear(&wide(&x), &wide(&w), inputs), 1e-6);
    }
    for rows in [1, 2] {
        let mut y = [f32::NAN; 6];
        kernel::linear(&[], &[], &mut y[..3 * rows], LinearShape { rows, inputs: 0, outputs: 3 });
        assert_eq!(y[..3 * rows], [0.0; 6][..3 * rows], "a sum of nothing");
    }
}

#[test]
fn products_of_a_transposed_matrix() {
    for (depth, rows, columns) in [(1, 1, 1), (5, 3, 33), (300, 50, 20), (700, 13, 40)] {
        let (a, b) = (numbers(1, depth * rows), numbers(2, depth * columns));
        let mut c = vec![f32::NAN; rows * columns];
        kernel::transposed_product(&a, &b, &mut c, TransposedShape { depth, rows, columns });
        let transposed = |matrix: &[f32], width: usize| -> Vec<f64> {
            (0..width * depth).map(|i| f64::from(matrix[i % depth * width + i / depth])).collect()
        };
        let expected = reference::linear(&transposed(&a, rows), &transposed(&b, columns), depth);
        assert_close("transposed product", &c, &expected, 1e-6);
    }
    let mut c = [f32::NAN; 6];
    kernel::transposed_product(&[], &[], &mut c, TransposedShape { depth: 0, rows: 2, columns: 3 });
    assert_eq!(c, [0.0; 6], "a sum of nothing");
}

#[test]
fn packed_rows_multiply_blocks_of_any_size_with_the_same_bits() {
    for (rows, depth, outputs) in [(1, 7, 5), (60, 33, 17), (100, 256, 40), (7, 300, 32)] {
        let (x, w) = (numbers(1, rows * depth), numbers(2, outputs * depth));
        let packed = PackedRows::new(&w, depth);
        let mut y = vec![f32::NAN; rows * outputs];
        packed.products(&x, &mut y);
        assert_close("packed rows", &y, &reference::linear(&wide(&x), &wide(&w), depth), 1e-6);
        let mut alone = vec![f32::NAN; rows * outputs];
        for (x, y) in x.chunks(3 * depth).zip(alone.chunks_mut(3 * outputs)) {
            packed.products(x, y);
        }
        assert_eq!(y, alone);
    }
}

#[test]
fn loops_have_the_same_bits_for_any_vector_units() {
    let (x, y) = (numbers(1, 1000), numbers(2, 1000));
    #[inline(always)]
    fn product(x: &[f32], y: &[f32]) -> f32 {
        x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + x * y)
    }
    let fast = with_vector_units(
        #[inline(always)]
        || product(&x, &y),
    );
    assert_eq!(fast, product(&x, &y));
}

#[test]
fn norms_of_any_width() {
    for width in [1, 2, 15, 16, 17, 33, 48, 130] {
        let (x, w) = (numbers(1, 5 * width), numbers(2, width));
        let mut y = vec![f32::NAN; 5 * width];
        kernel::rms_norm(&x, &w, &mut y, EPSILON as f32);
        assert_close("rms_norm", &y, &reference::rms_norm(&wide(&x), &wide(&w)), 1e-6);
    }
    let mut y = [f32::NAN; 4];
    kernel::rms_norm(&[0.0; 4], &[1.0; 4], &mut y, EPSILON as f32);
    assert_eq!(y, [0.0; 4], "a row of zeros");
}

#[test]
fn rotations_by_position() {
    let table = RopeTable::new(9, 6, THETA).unwrap();
    let x = numbers(1, 5 * 12);
    let mut y = x.clone();
    kernel::rope(&mut y, &table, 12, 4);
    let mut expected = wide(&x);
    for (row, head) in expected.chunks_mut(6).enumerate() {
        for j in 0..3 {
            let (sin, cos) = ((row / 2 + 4) as f64 * THETA.powf(-2.0 * j as f64 / 6.0)).sin_cos();
            (head[j], head[j + 3]) = (head[j] * cos - head[j + 3] * sin, head[j + 3] * cos + head[j] * sin);
        }
    }
    assert_close("rope", &y, &expected, 1e-6);
}

#[test]
fn gated_activations_sums_and_log_sums() {
    let mut gate = numbers(1, 1000);
    gate[..4].copy_from_slice(&[-100.0, 100.0, -20.0, 0.0]);
    let up = numbers(2, 1000);
    let mut y = vec![f32::NAN; 1000];
    kernel::swiglu(&gate, &up, &mut y);
    let expected: Vec<f64> =
        wide(&gate).iter().zip(wide(&up)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    assert_close("swiglu", &y, &expected, 1e-6);
    kernel::add_assign(&mut y, &up);
    let expected: Vec<f64> = expected.iter().zip(wide(&up)).map(|(a, b)| a + b).collect();
    assert_close("sum", &y, &expected, 1e-6);

    for (row, expected) in [
        (vec![0.0; 40], 40f64.ln()),
        (vec![5.0], 5.0),
        (vec![1e4, 0.0, 1e4], 1e4 + 2f64.ln()),
        (vec![-1e4, -1e4 - 1.0], -1e4 + (1.0 + (-1f64).exp()).ln()),
    ] {
        assert_close("log of the sum", &[kernel::log_sum_exp(&row)], &[expected], 1e-6);
    }
}
