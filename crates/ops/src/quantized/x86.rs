//! The kernels for x86-64.

#![expect(clippy::needless_range_loop, reason = "a row and a vector of several arrays have one index")]

use std::arch::x86_64::*;

use super::tile::{QuantizedTile, TileRows};
use super::{ActivationBlock, GROUP, GROUPS};
use crate::product::NR;

/// Bytes of a register: a group of each of 8 columns.
const VECTOR: usize = 32;
/// Registers that hold a group of all columns of a panel.
const VECTORS: usize = NR * GROUP / VECTOR;

/// Calls the kernel for the tile's number of rows. Each number has a kernel of its own, so that sums stay in registers.
/// One or two rows wait for memory more than for arithmetic: they read each line of the panel once.
macro_rules! by_rows {
    ($kernel:ident, $tile:expr, $rows:expr) => {
        match $tile.rows() {
            1 => $kernel::<1, 4>($tile, $rows, 0),
            2 => $kernel::<2, 4>($tile, $rows, 0),
            3 => {
                $kernel::<3, 2>($tile, $rows, 0);
                $kernel::<3, 2>($tile, $rows, 2);
            }
            _ => {
                $kernel::<4, 2>($tile, $rows, 0);
                $kernel::<4, 2>($tile, $rows, 2);
            }
        }
    };
}

/// The same for kernels that read whole panels: their registers hold the sums of all columns.
macro_rules! by_rows_512 {
    ($kernel:ident, $tile:expr, $rows:expr) => {
        match $tile.rows() {
            1 => $kernel::<1>($tile, $rows),
            2 => $kernel::<2>($tile, $rows),
            3 => $kernel::<3>($tile, $rows),
            _ => $kernel::<4>($tile, $rows),
        }
    };
}

mod dot_256;

pub(super) use dot_256::avx_vnni;
#[cfg(test)]
pub(super) use dot_256::evex;

/// 8-bit weights with AVX2.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q8_avx2(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    by_rows!(q8_256, tile, rows);
}

/// 4-bit weights with AVX2.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_avx2(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    by_rows!(q4_256, tile, rows);
}

/// 8-bit weights with AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn q8_vnni(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    by_rows_512!(q8_512, tile, rows);
}

/// 4-bit weights with AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn q4_vnni(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    by_rows_512!(q4_512, tile, rows);
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_256(bytes: &[u8; VECTOR]) -> __m256i {
    // SAFETY: the array has 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The scales of 8 columns.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn scales_256(bytes: &[u8; 16]) -> __m256 {
    // SAFETY: the array has 16 bytes.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Adds `dots * scales * x.scale` to sums, rounded as in the portable kernel.
#[inline]
#[target_feature(enable = "avx2")]
fn scaled_256(sums: __m256, dots: __m256i, scales: __m256, x: &ActivationBlock) -> __m256 {
    let factor = _mm256_mul_ps(scales, _mm256_set1_ps(x.scale));
    _mm256_add_ps(sums, _mm256_mul_ps(_mm256_cvtepi32_ps(dots), factor))
}

/// Stores the sums of the columns from vector `first` on.
#[inline]
#[target_feature(enable = "avx2")]
fn store_256<const ROWS: usize, const COUNT: usize>(
    sums: [[__m256; COUNT]; ROWS],
    rows: &mut TileRows,
    first: usize,
) {
    for (row, sums) in rows.0.iter_mut().zip(sums) {
        for (to, sums) in row.as_chunks_mut::<8>().0[first..].iter_mut().zip(sums) {
            // SAFETY: the array has 8 numbers.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), sums) };
        }
    }
}

/// `COUNT` vectors of columns from vector `first` on.
#[target_feature(enable = "avx2,f16c")]
fn q8_256<const ROWS: usize, const COUNT: usize>(
    tile: &QuantizedTile<'_>,
    rows: &mut TileRows,
    first: usize,
) {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); COUNT]; ROWS];
    for b in 0..tile.blocks {
        let (scales, vectors) = tile.weights(b);
        let (scales, vectors) = (scales.as_chunks::<16>().0, vectors.as_chunks::<VECTOR>().0);
        let mut dots = [[_mm256_setzero_si256(); COUNT]; ROWS];
        for g in 0..GROUPS {
            let mut x = [_mm256_setzero_si256(); ROWS];
            for (i, x) in x.iter_mut().enumerate() {
                *x = _mm256_set1_epi32(tile.x(i, b).group(g));
            }
            for v in 0..COUNT {
                let weights = load_256(&vectors[VECTORS * g + first + v]);
                // One factor must be unsigned: the sign of the weight moves to x. Two products of at most 127 · 127 fit
                // 16 bits.
                let sizes = _mm256_abs_epi8(weights);
                for i in 0..ROWS {
                    let pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(x[i], weights));
                    dots[i][v] = _mm256_add_epi32(dots[i][v], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        for v in 0..COUNT {
            let scales = scales_256(&scales[first + v]);
            for i in 0..ROWS {
                sums[i][v] = scaled_256(sums[i][v], dots[i][v], scales, tile.x(i, b));
            }
        }
    }
    store_256(sums, rows, first);
}

/// `COUNT` vectors of columns from vector `first` on.
#[target_feature(enable = "avx2,f16c")]
fn q4_256<const ROWS: usize, const COUNT: usize>(
    tile: &QuantizedTile<'_>,
    rows: &mut TileRows,
    first: usize,
) {
    let (ones, low) = (_mm256_set1_epi16(1), _mm256_set1_epi8(15));
    let mut sums = [[_mm256_setzero_ps(); COUNT]; ROWS];
    for b in 0..tile.blocks {
        let (scales, vectors) = tile.weights(b);
        let (scales, vectors) = (scales.as_chunks::<16>().0, vectors.as_chunks::<VECTOR>().0);
        // A block's products fit 16 bits: 16 of at most 15 · 127.
        let mut pairs = [[_mm256_setzero_si256(); COUNT]; ROWS];
        for g in 0..GROUPS / 2 {
            for v in 0..COUNT {
                let both = load_256(&vectors[VECTORS * g + first + v]);
                let lower = _mm256_and_si256(both, low);
                let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(both), low);
                for i in 0..ROWS {
                    let x = tile.x(i, b);
                    let lower = _mm256_maddubs_epi16(lower, _mm256_set1_epi32(x.group(g)));
                    let upper = _mm256_maddubs_epi16(upper, _mm256_set1_epi32(x.group(g + GROUPS / 2)));
                    pairs[i][v] = _mm256_add_epi16(pairs[i][v], _mm256_add_epi16(lower, upper));
                }
            }
        }
        for v in 0..COUNT {
            let scales = scales_256(&scales[first + v]);
            for i in 0..ROWS {
                let x = tile.x(i, b);
                let dots = _mm256_madd_epi16(pairs[i][v], ones);
                let dots = _mm256_add_epi32(dots, _mm256_set1_epi32(-8 * x.sum));
                sums[i][v] = scaled_256(sums[i][v], dots, scales, x);
            }
        }
    }
    store_256(sums, rows, first);
}

/// Columns of a register of 512 bits, in halves of a panel.
const HALVES: usize = 2;

#[inline]
#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[u8; 2 * VECTOR]) -> __m512i {
    // SAFETY: the array has 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Adds the scaled dots of a block to the sums of a row.
#[inline]
#[target_feature(enable = "avx512f")]
fn scaled_512(sums: &mut [__m512; HALVES], dots: [__m512i; HALVES], scales: &[u8], x: &ActivationBlock) {
    for ((sum, dots), scales) in sums.iter_mut().zip(dots).zip(scales.as_chunks::<VECTOR>().0) {
        // SAFETY: the array has 32 bytes.
        let scales = _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) });
        let factor = _mm512_mul_ps(scales, _mm512_set1_ps(x.scale));
        *sum = _mm512_add_ps(*sum, _mm512_mul_ps(_mm512_cvtepi32_ps(dots), factor));
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_512(row: &mut [f32; NR], sums: [__m512; HALVES]) {
    for (to, sums) in row.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        // SAFETY: the array has 16 numbers.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), sums) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn q8_512<const ROWS: usize>(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    let sign = _mm512_set1_epi8(i8::MIN);
    let mut sums = [[_mm512_setzero_ps(); HALVES]; ROWS];
    for b in 0..tile.blocks {
        let (scales, vectors) = tile.weights(b);
        let vectors = vectors.as_chunks::<{ 2 * VECTOR }>().0;
        // One factor must be unsigned: the weight plus 128. Its products with 128 are subtracted at the beginning.
        let mut dots = [[_mm512_setzero_si512(); HALVES]; ROWS];
        for (i, dots) in dots.iter_mut().enumerate() {
            *dots = [_mm512_set1_epi32(-128 * tile.x(i, b).sum); HALVES];
        }
        for g in 0..GROUPS {
            for half in 0..HALVES {
                let weights = _mm512_xor_si512(load_512(&vectors[HALVES * g + half]), sign);
                for i in 0..ROWS {
                    let x = _mm512_set1_epi32(tile.x(i, b).group(g));
                    dots[i][half] = _mm512_dpbusd_epi32(dots[i][half], weights, x);
                }
            }
        }
        for i in 0..ROWS {
            scaled_512(&mut sums[i], dots[i], scales, tile.x(i, b));
        }
    }
    for (row, sums) in rows.0.iter_mut().zip(sums) {
        store_512(row, sums);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn q4_512<const ROWS: usize>(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    let low = _mm512_set1_epi8(15);
    let mut sums = [[_mm512_setzero_ps(); HALVES]; ROWS];
    for b in 0..tile.blocks {
        let (scales, vectors) = tile.weights(b);
        let vectors = vectors.as_chunks::<{ 2 * VECTOR }>().0;
        // Four bits hold the weight plus 8.
        let mut dots = [[_mm512_setzero_si512(); HALVES]; ROWS];
        for (i, dots) in dots.iter_mut().enumerate() {
            *dots = [_mm512_set1_epi32(-8 * tile.x(i, b).sum); HALVES];
        }
        for g in 0..GROUPS / 2 {
            for half in 0..HALVES {
                let both = load_512(&vectors[HALVES * g + half]);
                let lower = _mm512_and_si512(both, low);
                let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
                for i in 0..ROWS {
                    let x = tile.x(i, b);
                    let dot = _mm512_dpbusd_epi32(dots[i][half], lower, _mm512_set1_epi32(x.group(g)));
                    let x = _mm512_set1_epi32(x.group(g + GROUPS / 2));
                    dots[i][half] = _mm512_dpbusd_epi32(dot, upper, x);
                }
            }
        }
        for i in 0..ROWS {
            scaled_512(&mut sums[i], dots[i], scales, tile.x(i, b));
        }
    }
    for (row, sums) in rows.0.iter_mut().zip(sums) {
        store_512(row, sums);
    }
}
