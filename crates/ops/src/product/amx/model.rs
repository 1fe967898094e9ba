//! The tile instructions in plain Rust, as the processor's manual defines them (Intel SDM, volume 2, TDPBF16PS).

use super::{Block, STEP, TileUnit};

/// Rows of a tile.
const ROWS: usize = 16;

/// One tile: 16 rows of 64 bytes, as pairs of bf16 or as f32.
type TileRegister = [[u32; 16]; ROWS];

/// The eight tiles of the model.
pub(in crate::product) struct Model;

impl TileUnit for Model {
    /// The instructions of the other unit, in their order.
    unsafe fn multiply(block: &Block) {
        let Block { steps, a, a_row, b, b_step, c, c_row, accumulate } = *block;
        // SAFETY: all rows of A and C and all groups of B are there by the trait's contract.
        unsafe {
            let c = [c, c.add(16), c.add(ROWS * c_row), c.add(ROWS * c_row + 16)];
            let mut sums =
                if accumulate { c.map(|c| load(c.cast_const().cast(), c_row)) } else { [[[0; 16]; ROWS]; 4] };
            for step in 0..steps {
                let a = a.add(step * STEP);
                let b = b.add(step * STEP * b_step);
                let (upper, lower) = (load(a, a_row), load(a.add(ROWS * a_row), a_row));
                let (left, right) = (load(b, b_step), load(b.add(16), b_step));
                let [upper_left, upper_right, lower_left, lower_right] = &mut sums;
                multiply_pairs(upper_left, &upper, &left);
                multiply_pairs(upper_right, &upper, &right);
                multiply_pairs(lower_left, &lower, &left);
                multiply_pairs(lower_right, &lower, &right);
            }
            for (c, sums) in c.into_iter().zip(&sums) {
                store(c.cast(), c_row, sums);
            }
        }
    }
}

/// `tileloadd`.
///
/// # Safety
/// 16 rows of 64 bytes, `row` words apart, must be readable.
unsafe fn load(from: *const u32, row: usize) -> TileRegister {
    // SAFETY: by this function's contract.
    std::array::from_fn(|i| unsafe { from.add(i * row).cast::<[u32; 16]>().read_unaligned() })
}

/// `tilestored`.
///
/// # Safety
/// 16 rows of 64 bytes, `row` words apart, must be writable by this thread alone.
unsafe fn store(to: *mut u32, row: usize, tile: &TileRegister) {
    for (i, words) in tile.iter().enumerate() {
        // SAFETY: by this function's contract.
        unsafe { to.add(i * row).cast::<[u32; 16]>().write_unaligned(*words) };
    }
}

/// `tdpbf16ps`: the products of the lower and of the upper halves are summed apart, both sums are added, and their sum is
/// added to the tile of sums. Numbers that are too small for their exponent count as zeros.
fn multiply_pairs(sums: &mut TileRegister, a: &TileRegister, b: &TileRegister) {
    let halves = |pair: u32| [flush(f32::from_bits(pair << 16)), flush(f32::from_bits(pair & 0xffff_0000))];
    for (sums, a) in sums.iter_mut().zip(a) {
        let mut parts = [[0f32; 2]; 16];
        for (pair, b) in a.iter().zip(b) {
            let a = halves(*pair);
            for (part, b) in parts.iter_mut().zip(b) {
                let b = halves(*b);
                // The product of two bf16 is exact in f32, so one rounding is left, as in the processor.
                part[0] = flush(part[0] + a[0] * b[0]);
                part[1] = flush(part[1] + a[1] * b[1]);
            }
        }
        for (sum, [lower, upper]) in sums.iter_mut().zip(parts) {
            *sum = flush(flush(f32::from_bits(*sum)) + flush(lower + upper)).to_bits();
        }
    }
}

/// Zero in place of a subnormal number.
#[inline(always)]
fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(value) } else { value }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn pair(low: f32, high: f32) -> u32 {
        u32::from(bf16::from_f32(low).to_bits()) | u32::from(bf16::from_f32(high).to_bits()) << 16
    }

    /// Numbers worked out by hand from the manual's definition.
    #[test]
    fn a_product_of_tiles_is_that_of_the_manual() {
        let (mut a, mut b, mut sums) = ([[0; 16]; ROWS], [[0; 16]; ROWS], [[0; 16]; ROWS]);
        (a[2][0], a[2][5]) = (pair(3.0, 0.5), pair(-1.0, 2.0));
        (b[0][7], b[5][7]) = (pair(4.0, 8.0), pair(16.0, -0.25));
        sums[2][7] = 100.0f32.to_bits();
        multiply_pairs(&mut sums, &a, &b);
        // 100 + (3·4 - 1·16) + (0.5·8 - 2·0.25)
        assert_eq!(f32::from_bits(sums[2][7]), 99.5);
        assert_eq!(sums.iter().flatten().filter(|word| **word != 0).count(), 1);
    }

    #[test]
    fn halves_are_summed_apart_and_small_numbers_are_zeros() {
        let (mut a, mut b, mut sums) = ([[0; 16]; ROWS], [[0; 16]; ROWS], [[0; 16]; ROWS]);
        // 2^24 in the lower sum, 1 twice in the upper: together they survive, one after the other they would not.
        (a[0][0], a[0][1]) = (pair(4096.0, 1.0), pair(0.0, 1.0));
        (b[0][0], b[1][0]) = (pair(4096.0, 1.0), pair(0.0, 1.0));
        multiply_pairs(&mut sums, &a, &b);
        assert_eq!(f32::from_bits(sums[0][0]), 16_777_218.0);
        // A product of 2^-130 and a sum of 2^-140 are too small.
        (a[0], b[0]) = ([0; 16], [0; 16]);
        (a[0][0], b[0][0]) = (pair(2f32.powi(-65), 0.0), pair(2f32.powi(-65), 0.0));
        a[0][1] = 0;
        sums[0][0] = 2f32.powi(-140).to_bits();
        multiply_pairs(&mut sums, &a, &b);
        assert_eq!(sums[0][0], 0);
    }
}
