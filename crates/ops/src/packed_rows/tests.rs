//! Products in every format: equal bits, and the rounded numbers.

use super::*;

const FORMATS: [WeightFormat; 4] =
    [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8_0, WeightFormat::Q4_0];

fn values(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * step % 101) as f32 - 50.0) / 64.0).collect()
}

fn products(packed: &PackedRows, x: &[f32], rows: usize) -> Vec<f32> {
    let mut y = vec![1.0; rows * packed.rows()];
    packed.products_by_columns(x, &mut y, Target::Add);
    y
}

/// W as it was rounded.
fn rounded(packed: &PackedRows, depth: usize) -> Vec<f32> {
    let mut weights = vec![0.0; packed.rows() * depth];
    weights.chunks_exact_mut(depth).enumerate().for_each(|(row, to)| packed.copy_row(row, to));
    weights
}

#[test]
fn the_memory_of_a_matrix_is_known_before_it_is_packed() {
    for (rows, depth) in [(1, 32), (32, 64), (150, 608)] {
        for format in FORMATS {
            let packed = PackedRows::with_format(&values(rows * depth, 37), depth, format).unwrap();
            assert_eq!(
                PackedRows::bytes_of(rows, depth, format),
                packed.bytes(),
                "{rows} x {depth}, {format}"
            );
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_in_any_block_and_with_any_threads() {
    // Several depth parts, a last panel that is not full, and more rows than a tile.
    let (depth, outputs, rows) = (608, 150, 29);
    let (weights, x) = (values(depth * outputs, 37), values(depth * rows, 23));
    for format in FORMATS {
        let packed = PackedRows::with_format(&weights, depth, format).unwrap();
        let alone: Vec<f32> = x.chunks(depth).flat_map(|x| products(&packed, x, 1)).collect();
        for block in [2, 3, 7, 12, 13, 29] {
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let together = x.chunks(block * depth).flat_map(|x| {
                    let rows = x.len() / depth;
                    pool.install(|| products(&packed, x, rows))
                });
                let together: Vec<f32> = together.collect();
                assert!(together == alone, "{format}, {block} rows, {threads} threads");
            }
        }
        // int8 rounds each number of x by at most 1/254 of the largest.
        let bound = if format.block() == 1 { 1e-4 } else { 0.05 };
        let weights = rounded(&packed, depth);
        for (row, column) in [(0, 0), (28, 149), (12, 64)] {
            let products = x[row * depth..].iter().zip(&weights[column * depth..]).take(depth);
            let exact = 1.0 + products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let found = f64::from(alone[row * outputs + column]);
            assert!((found - exact).abs() < bound, "{format}: {found} {exact}");
        }
    }
}

#[test]
fn a_product_of_no_rows_is_empty() {
    // More columns than a task computes.
    let (depth, outputs) = (32, 150);
    for format in FORMATS {
        let packed = PackedRows::with_format(&values(depth * outputs, 37), depth, format).unwrap();
        packed.products(&[], &mut []);
        for target in [Target::Replace, Target::Add] {
            packed.products_by_columns(&[], &mut [], target);
        }
        gated_products(&packed, &packed, &[], &mut []);
    }
}

#[test]
fn bf16_gives_the_bits_of_f32_with_rounded_weights() {
    for (depth, outputs, rows) in [(600, 150, 13), (7, 5, 1)] {
        let (weights, x) = (values(depth * outputs, 37), values(depth * rows, 23));
        let packed = PackedRows::with_format(&weights, depth, WeightFormat::Bf16).unwrap();
        let rounded: Vec<f32> = weights.iter().map(|&weight| bf16::from_f32(weight).to_f32()).collect();
        let wide = PackedRows::new(&rounded, depth);
        assert_eq!(products(&packed, &x, rows), products(&wide, &x, rows));
    }
}

#[test]
fn rows_come_out_of_the_packing_as_they_were_rounded() {
    let weights = values(70 * 96, 29);
    for format in FORMATS {
        let packed = PackedRows::with_format(&weights, 96, format).unwrap();
        let expected = format.quantize(&weights, &[70, 96]).unwrap();
        let expected = expected.dequantize(&candle_core::Device::Cpu).unwrap();
        let expected: Vec<f32> = expected.flatten_all().unwrap().to_vec1().unwrap();
        assert!(rounded(&packed, 96) == expected, "{format}");
    }
}

#[test]
fn formats_take_the_memory_of_their_bits() {
    let bytes =
        FORMATS.map(|format| PackedRows::with_format(&values(64 * 96, 29), 96, format).unwrap().bytes());
    assert_eq!(bytes, [32.0, 16.0, 8.5, 4.5].map(|bits: f64| (64.0 * 96.0 * bits / 8.0) as usize));
    let error = PackedRows::with_format(&values(40, 29), 40, WeightFormat::Q8_0).unwrap_err().to_string();
    assert!(error.contains("rows have 40 numbers, and q8_0 takes multiples of 32"), "{error}");
}

#[test]
fn a_gate_has_the_bits_of_two_products() {
    let (depth, outputs, rows) = (96, 70, 5);
    let (gate, up, x) = (values(depth * outputs, 37), values(depth * outputs, 41), values(depth * rows, 23));
    for format in FORMATS {
        let [gate, up] = [&gate, &up].map(|weights| PackedRows::with_format(weights, depth, format).unwrap());
        let mut together = vec![0.0; rows * outputs];
        gated_products(&gate, &up, &x, &mut together);
        let [gate, up] = [gate, up].map(|weights| {
            let mut y = vec![0.0; rows * outputs];
            weights.products_by_columns(&x, &mut y, Target::Replace);
            y
        });
        let mut alone = vec![0.0; rows * outputs];
        crate::swiglu::forward(&gate, &up, &mut alone);
        assert!(together == alone, "{format}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused() {
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        for depth in [16, 48] {
            let error = PackedRows::with_format(&values(4 * depth, 37), depth, format).unwrap_err();
            let says = format!("rows have {depth} numbers, and {format} takes multiples of 32");
            assert!(error.to_string().contains(&says), "{error}");
        }
    }
}
