//! The kernels with dot products of 256 bits.

/// Kernels with an instruction that adds the products of four unsigned and four signed int8 to a sum.
macro_rules! kernels {
    ($name:ident, $features:literal, $dot:ident) => {
        pub(in crate::quantized) mod $name {
            use std::arch::x86_64::*;

            use crate::quantized::GROUPS;
            use crate::quantized::tile::{QuantizedTile, TileRows};
            use crate::quantized::x86::{VECTOR, VECTORS, load_256, scaled_256, scales_256, store_256};

            /// 8-bit weights.
            #[target_feature(enable = $features)]
            pub(in crate::quantized) fn q8(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
                by_rows!(q8_columns, tile, rows);
            }

            /// 4-bit weights.
            #[target_feature(enable = $features)]
            pub(in crate::quantized) fn q4(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
                by_rows!(q4_columns, tile, rows);
            }

            /// `COUNT` vectors of columns from vector `first` on.
            #[target_feature(enable = $features)]
            fn q8_columns<const ROWS: usize, const COUNT: usize>(
                tile: &QuantizedTile<'_>,
                rows: &mut TileRows,
                first: usize,
            ) {
                let sign = _mm256_set1_epi8(i8::MIN);
                let mut sums = [[_mm256_setzero_ps(); COUNT]; ROWS];
                for b in 0..tile.blocks {
                    let (scales, vectors) = tile.weights(b);
                    let (scales, vectors) = (scales.as_chunks::<16>().0, vectors.as_chunks::<VECTOR>().0);
                    // One factor must be unsigned: the weight plus 128. Its products with 128 are subtracted at the beginning.
                    let mut dots = [[_mm256_setzero_si256(); COUNT]; ROWS];
                    for (i, dots) in dots.iter_mut().enumerate() {
                        *dots = [_mm256_set1_epi32(-128 * tile.x(i, b).sum); COUNT];
                    }
                    for g in 0..GROUPS {
                        for v in 0..COUNT {
                            let weights = _mm256_xor_si256(load_256(&vectors[VECTORS * g + first + v]), sign);
                            for i in 0..ROWS {
                                let x = _mm256_set1_epi32(tile.x(i, b).group(g));
                                dots[i][v] = $dot(dots[i][v], weights, x);
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
            #[target_feature(enable = $features)]
            fn q4_columns<const ROWS: usize, const COUNT: usize>(
                tile: &QuantizedTile<'_>,
                rows: &mut TileRows,
                first: usize,
            ) {
                let low = _mm256_set1_epi8(15);
                let mut sums = [[_mm256_setzero_ps(); COUNT]; ROWS];
                for b in 0..tile.blocks {
                    let (scales, vectors) = tile.weights(b);
                    let (scales, vectors) = (scales.as_chunks::<16>().0, vectors.as_chunks::<VECTOR>().0);
                    // Four bits hold the weight plus 8.
                    let mut dots = [[_mm256_setzero_si256(); COUNT]; ROWS];
                    for (i, dots) in dots.iter_mut().enumerate() {
                        *dots = [_mm256_set1_epi32(-8 * tile.x(i, b).sum); COUNT];
                    }
                    for g in 0..GROUPS / 2 {
                        for v in 0..COUNT {
                            let both = load_256(&vectors[VECTORS * g + first + v]);
                            let lower = _mm256_and_si256(both, low);
                            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(both), low);
                            for i in 0..ROWS {
                                let x = tile.x(i, b);
                                let dot = $dot(dots[i][v], lower, _mm256_set1_epi32(x.group(g)));
                                let x = _mm256_set1_epi32(x.group(g + GROUPS / 2));
                                dots[i][v] = $dot(dot, upper, x);
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
        }
    };
}

kernels!(avx_vnni, "avx2,f16c,avxvnni", _mm256_dpbusd_avx_epi32);

// The same kernels in AVX-512's encoding of the instruction: processors without AVX-VNNI test them.
#[cfg(test)]
kernels!(evex, "avx2,f16c,avx512vl,avx512vnni", _mm256_dpbusd_epi32);
