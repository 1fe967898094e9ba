//! Every kernel of this processor against the reference, and the reference against f64.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::kernel::Kernels;
use super::tile::{QuantizedTile, TileRows};
use super::*;
use crate::kernel_set::Int8Kernels;
use crate::test_support::numbers;

fn panels(rows: usize, depth: usize, format: WeightFormat) -> QuantizedPanels {
    QuantizedPanels::new(&numbers(1, rows * depth), depth, format).unwrap()
}

fn activations(rows: usize, depth: usize, seed: u64) -> Vec<ActivationBlock> {
    let mut blocks = vec![ActivationBlock::default(); rows * depth / BLOCK];
    quantize(&numbers(seed, rows * depth), depth, &mut blocks);
    blocks
}

/// Every kernel of this processor, with its name; the portable one is the last.
fn kernels() -> Vec<(String, Kernels)> {
    let mut all = Vec::new();
    // The kernels of AVX-VNNI, with the same instruction in AVX-512's encoding.
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && Int8Kernels::Avx2.are_there()
    {
        use super::x86::evex;
        all.push(("dot products of 256 bits".to_owned(), Kernels { q8: evex::q8, q4: evex::q4 }));
    }
    let own = Int8Kernels::ALL.into_iter().filter(|int8| int8.are_there());
    all.extend(own.map(|int8| (int8.to_string(), Kernels::of(int8))));
    all
}

fn results(kernels: Kernels, tile: &QuantizedTile<'_>, layout: Layout) -> TileRows {
    let mut sums = TileRows::default();
    // SAFETY: these are kernels of this processor.
    unsafe { kernels.layout(layout)(tile, &mut sums) };
    sums
}

/// Compares the bits of every kernel with those of the portable one.
fn compare(tile: &QuantizedTile<'_>, layout: Layout, case: &str) {
    let bits = |kernels| results(kernels, tile, layout).0.map(|row| row.map(f32::to_bits));
    let expected = bits(Kernels::of(Int8Kernels::Portable));
    for (name, kernels) in kernels() {
        assert!(bits(kernels) == expected, "{name}, {layout:?}, {case}");
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_portable_one() {
    let depth = 160;
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        let panels = panels(NR, depth, format);
        for rows in 1..=TileRows::MOST {
            let x = activations(rows, depth, 7);
            let tile = QuantizedTile::new(&x, panels.blocks, panels.panel(0), panels.layout);
            compare(&tile, panels.layout, &format!("{rows} rows"));
        }
    }
}

/// Weights of any bits, with scales that differ, and activations at the ends of their range.
#[test]
fn every_kernel_gives_the_bits_of_the_portable_one_for_any_weights() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for layout in [Layout::Q8, Layout::Q4] {
        let blocks = 9;
        let mut panel: Vec<u8> = (0..blocks * layout.block()).map(|_| random.random()).collect();
        for block in panel.chunks_exact_mut(layout.block()) {
            for scale in block[..SCALES].as_chunks_mut::<2>().0 {
                *scale = f16::from_f32(random.random_range(-2.0..2.0)).to_le_bytes();
            }
        }
        let x: Vec<ActivationBlock> = (0..TileRows::MOST * blocks)
            .map(|_| {
                let quants: [i8; BLOCK] = std::array::from_fn(|i| match i % 3 {
                    0 => 127,
                    1 => -127,
                    _ => random.random_range(-127..=127),
                });
                let sum = quants.iter().map(|&quant| i32::from(quant)).sum();
                ActivationBlock { scale: random.random_range(0.0..1.0), sum, quants: bytemuck::cast(quants) }
            })
            .collect();
        for rows in 1..=TileRows::MOST {
            let tile = QuantizedTile::new(&x[..rows * blocks], blocks, &panel, layout);
            compare(&tile, layout, &format!("{rows} rows"));
        }
    }
}

/// Numbers at the ends of their ranges, where 16 bits could overflow.
#[test]
fn the_largest_sums_are_exact() {
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        for (weight, x) in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)] {
            let panels = QuantizedPanels::new(&[weight; NR * BLOCK], BLOCK, format).unwrap();
            let mut blocks = [ActivationBlock::default()];
            quantize(&[x; BLOCK], BLOCK, &mut blocks);
            let tile = QuantizedTile::new(&blocks, 1, panels.panel(0), panels.layout);
            for (name, kernels) in kernels() {
                for sum in results(kernels, &tile, panels.layout).0[0] {
                    // f16 rounds a scale of 1/127 by at most 2^-11 of it.
                    assert!((sum - 32.0 * weight * x).abs() < 0.02, "{name}, {format}: {sum}");
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_the_rounded_numbers() {
    let (rows, depth, outputs) = (9, 96, 70);
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        let panels = panels(outputs, depth, format);
        let x = activations(rows, depth, 5);
        let mut y = vec![0.5; rows * outputs];
        // SAFETY: y is borrowed exclusively.
        unsafe { panels.columns(&x, 0..outputs, &Shared::new(&mut y), 0, outputs, true) };
        for (i, y) in y.chunks_exact(outputs).enumerate() {
            for (j, y) in y.iter().enumerate() {
                let mut weights = vec![0.0; depth];
                panels.copy_row(j, &mut weights);
                let own = x[i * depth / BLOCK..].iter().flat_map(|block| {
                    let quants: [i8; BLOCK] = bytemuck::cast(block.quants);
                    quants.map(|quant| f64::from(quant) * f64::from(block.scale))
                });
                let exact: f64 = own.zip(&weights).map(|(x, w)| x * f64::from(*w)).sum();
                assert!((f64::from(*y) - 0.5 - exact).abs() < 1e-5, "{format}, {i}, {j}: {y} {exact}");
            }
        }
    }
}
