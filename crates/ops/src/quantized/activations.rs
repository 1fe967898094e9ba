//! The left operand of a product in blocks of int8.

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::{BLOCK, GROUP};
use crate::vector;

/// 32 neighbouring numbers of a row: `scale * quants`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Zeroable, Pod)]
#[repr(C)]
pub(crate) struct ActivationBlock {
    /// f32, so that no activation is too large or too small. llama.cpp rounds it to f16.
    pub(crate) scale: f32,
    /// Sum of the int8. Kernels that add a constant to the weights subtract its products.
    pub(crate) sum: i32,
    /// -127 to 127.
    pub(crate) quants: [[i8; GROUP]; BLOCK / GROUP],
}

impl ActivationBlock {
    /// f32 that take the same memory.
    pub(crate) const F32: usize = size_of::<Self>() / size_of::<f32>();

    /// Group g, in 32 bits.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    pub(super) fn group(&self, g: usize) -> i32 {
        i32::from_ne_bytes(bytemuck::cast(self.quants[g]))
    }
}

/// Quantises rows (M, K) for K = `depth`, a multiple of 32, with all threads of the current pool. A block with an infinite or
/// undefined number gets an infinite or undefined scale, so that the fault reaches the result.
pub(crate) fn quantize(x: &[f32], depth: usize, blocks: &mut [ActivationBlock]) {
    x.par_chunks(depth).zip(blocks.par_chunks_mut(depth / BLOCK)).for_each(|(x, blocks)| {
        vector::dispatch(
            #[inline(always)]
            || {
                for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
                    *block = quantized(x);
                }
            },
        );
    });
}

#[inline(always)]
fn quantized(x: &[f32; BLOCK]) -> ActivationBlock {
    // Bits of numbers without sign have the order of the numbers, with NaN above infinity.
    let largest = x.iter().fold(0, |largest: u32, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let scale = f32::from_bits(largest) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    // Adding this number leaves the nearest whole number, ties to even, in the lowest bits.
    const WHOLE: f32 = 12_582_912.0;
    let mut quants = [0i8; BLOCK];
    let mut sum = 0;
    for (to, x) in quants.iter_mut().zip(x) {
        let quant = (x * inverse + WHOLE).to_bits() as i8;
        *to = quant;
        sum += i32::from(quant);
    }
    ActivationBlock { scale, sum, quants: bytemuck::cast(quants) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(x: [f32; BLOCK]) -> ActivationBlock {
        let mut blocks = [ActivationBlock::default()];
        quantize(&x, BLOCK, &mut blocks);
        blocks[0]
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_of_255_steps() {
        let x: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 - 15.5) * 0.37);
        let block = of(x);
        let quants: [i8; BLOCK] = bytemuck::cast(block.quants);
        assert_eq!((quants[0], quants[31]), (-127, 127));
        assert_eq!(block.sum, quants.iter().map(|&quant| i32::from(quant)).sum::<i32>());
        for (quant, x) in quants.iter().zip(x) {
            assert!((f32::from(*quant) * block.scale - x).abs() <= block.scale * 0.5001, "{quant} {x}");
        }
        assert_eq!(of([0.0; BLOCK]), ActivationBlock::default());
    }

    #[test]
    fn no_finite_number_is_too_large_or_small_and_no_fault_is_lost() {
        for size in [f32::MAX, 1e-30, 1e9] {
            let block = of(std::array::from_fn(|i| if i == 3 { -size } else { size / 2.0 }));
            let first: [i8; BLOCK] = bytemuck::cast(block.quants);
            assert!(block.scale.is_finite() && block.scale > 0.0 && first[3] == -127, "{block:?}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let scale = of(std::array::from_fn(|i| if i == 7 { bad } else { 1.0 })).scale;
            assert!(!scale.is_finite(), "{scale}");
        }
    }
}
