//! Every kernel of this processor against the reference, and the reference against f64.

use super::kernel::available;
use super::tile::{QuantizedTile, TileRows};
use super::*;
use crate::KernelSet;
use crate::test_support::numbers;

fn panels(rows: usize, depth: usize, format: WeightFormat) -> QuantizedPanels {
    QuantizedPanels::new(&numbers(1, rows * depth), depth, format).unwrap()
}

fn activations(rows: usize, depth: usize, seed: u64) -> Vec<ActivationBlock> {
    let mut blocks = vec![ActivationBlock::default(); rows * depth / BLOCK];
    quantize(&numbers(seed, rows * depth), depth, &mut blocks);
    blocks
}

#[test]
fn every_kernel_gives_the_bits_of_the_portable_one() {
    let depth = 160;
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        let panels = panels(NR, depth, format);
        for rows in 1..=TileRows::MOST {
            let x = activations(rows, depth, 7);
            let tile = QuantizedTile::new(&x, panels.blocks, panels.panel(0), panels.layout);
            let all = available(KernelSet::Avx512).into_iter().map(|kernels| {
                let kernel = if format == WeightFormat::Q8_0 { kernels.q8 } else { kernels.q4 };
                let mut sums = TileRows::default();
                // SAFETY: `available` lists kernels of this processor.
                unsafe { kernel(&tile, &mut sums) };
                sums.0.map(|row| row.map(f32::to_bits))
            });
            let all: Vec<_> = all.collect();
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{format}, {rows} rows");
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
            for kernels in available(KernelSet::Avx512) {
                let kernel = if format == WeightFormat::Q8_0 { kernels.q8 } else { kernels.q4 };
                let mut sums = TileRows::default();
                // SAFETY: `available` lists kernels of this processor.
                unsafe { kernel(&tile, &mut sums) };
                for sum in sums.0[0] {
                    // f16 rounds a scale of 1/127 by at most 2^-11 of it.
                    assert!((sum - 32.0 * weight * x).abs() < 0.02, "{format}: {sum}");
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
