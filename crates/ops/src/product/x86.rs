//! The kernels for x86-64. With AVX-512, a 12 × 32 tile takes 24 of the 32 registers; with AVX2, it is computed in
//! quarters.

use std::arch::x86_64::*;

use super::{NR, Tile};

/// Calls the kernel for the tile's number of rows. Each number has a kernel of its own, so that all sums stay in registers.
macro_rules! by_rows {
    ($kernel:ident, $tile:expr) => {
        match $tile.rows {
            12 => $kernel::<12>($tile),
            11 => $kernel::<11>($tile),
            10 => $kernel::<10>($tile),
            9 => $kernel::<9>($tile),
            8 => $kernel::<8>($tile),
            7 => $kernel::<7>($tile),
            6 => $kernel::<6>($tile),
            5 => $kernel::<5>($tile),
            4 => $kernel::<4>($tile),
            3 => $kernel::<3>($tile),
            2 => $kernel::<2>($tile),
            _ => $kernel::<1>($tile),
        }
    };
}

/// f32 with AVX-512.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX-512 F.
pub(super) unsafe fn avx512(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { if tile.columns <= HALF { by_rows!(single_half, tile) } else { by_rows!(single, tile) } }
}

/// Columns in one register.
const HALF: usize = 16;

/// f32 and bf16 with AVX-512.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX-512 F.
pub(super) unsafe fn avx512_halves(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { by_rows!(halves, tile) }
}

/// bf16 pairs with AVX-512.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX-512 F and BF16.
pub(super) unsafe fn avx512_bf16(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { by_rows!(pair, tile) }
}

/// Repeats the body for each row of a tile, with the row as a constant: with a variable index, the sums would live in
/// memory instead of registers.
macro_rules! unrolled {
    ($rows:ident, $i:ident => $body:block) => {
        unrolled!(@ $rows, $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    (@ $rows:ident, $i:ident, $body:block, $($row:literal)*) => {
        $(if $row < $rows {
            #[allow(clippy::identity_op, clippy::erasing_op)]
            let $i = $row;
            $body
        })*
    };
}

/// Number of groups that the kernels prefetch ahead. The processor itself does not prefetch groups that lie a page apart.
const AHEAD: usize = 24;

macro_rules! avx512_kernel {
    ($name:ident, $features:literal, $load:expr, $multiply:expr) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize>(tile: &Tile) {
            let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
            let (row, step) = (tile.a_row, tile.a_step);
            // Pointers wrap because some past the last group or row are computed but never read.
            // Three rows share a pointer because an address can scale an index by 1, 2, 4 or 8 and 12 pointers would not fit
            // the registers.
            let group = |i: usize| tile.a.wrapping_add(3 * i * row);
            let (mut a, mut b) = ([group(0), group(1), group(2), group(3)], tile.b);
            for _ in 0..tile.groups {
                // SAFETY: the groups of A and B are readable by the kernel's contract.
                unsafe {
                    let ahead = b.wrapping_add(AHEAD * tile.b_step);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(16).cast());
                    if step != 1 {
                        _mm_prefetch::<_MM_HINT_T0>(a[0].wrapping_add(AHEAD * step).cast());
                    }
                    let [low, high] = $load(b);
                    unrolled!(ROWS, i => {
                        let value = _mm512_set1_ps(f32::from_bits(*a[i / 3].add(i % 3 * row)));
                        sums[i][0] = $multiply(sums[i][0], value, low);
                        sums[i][1] = $multiply(sums[i][1], value, high);
                    });
                    let next = |a: *const u32| a.wrapping_add(step);
                    a = [next(a[0]), next(a[1]), next(a[2]), next(a[3])];
                    b = b.wrapping_add(tile.b_step);
                }
            }
            unrolled!(ROWS, i => {
                // SAFETY: the rows of C are ours by the kernel's contract.
                unsafe {
                    let c = tile.c.add(i * tile.c_row);
                    let [mut low, mut high] = sums[i];
                    if tile.accumulate {
                        low = _mm512_add_ps(low, _mm512_loadu_ps(c));
                        high = _mm512_add_ps(high, _mm512_loadu_ps(c.add(16)));
                    }
                    _mm512_storeu_ps(c, low);
                    _mm512_storeu_ps(c.add(16), high);
                }
            });
        }
    };
}

/// f32 with AVX-512 for the left half of a tile: half the loads and products when at most 16 columns are valid.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn single_half<const ROWS: usize>(tile: &Tile) {
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let (row, step) = (tile.a_row, tile.a_step);
    let group = |i: usize| tile.a.wrapping_add(3 * i * row);
    let (mut a, mut b) = ([group(0), group(1), group(2), group(3)], tile.b);
    for _ in 0..tile.groups {
        // SAFETY: the groups of A and B are readable by the kernel's contract.
        unsafe {
            let half = _mm512_loadu_ps(b.cast());
            unrolled!(ROWS, i => {
                let value = _mm512_set1_ps(f32::from_bits(*a[i / 3].add(i % 3 * row)));
                sums[i] = _mm512_fmadd_ps(value, half, sums[i]);
            });
            let next = |a: *const u32| a.wrapping_add(step);
            a = [next(a[0]), next(a[1]), next(a[2]), next(a[3])];
            b = b.wrapping_add(tile.b_step);
        }
    }
    unrolled!(ROWS, i => {
        // SAFETY: the rows of C are ours by the kernel's contract.
        unsafe {
            let c = tile.c.add(i * tile.c_row);
            let sum = if tile.accumulate { _mm512_add_ps(sums[i], _mm512_loadu_ps(c)) } else { sums[i] };
            _mm512_storeu_ps(c, sum);
        }
    });
}

/// The groups of a row of a panel.
///
/// # Safety
/// `b` must point to [`NR`] groups. Needs AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn whole_groups(b: *const u32) -> [__m512; 2] {
    // SAFETY: by this function's contract.
    unsafe { [_mm512_loadu_ps(b.cast()), _mm512_loadu_ps(b.add(16).cast())] }
}

/// The bf16 of a row of a panel, widened.
///
/// # Safety
/// `b` must point to [`NR`] bf16. Needs AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn widened_512(b: *const u32) -> [__m512; 2] {
    // SAFETY: by this function's contract.
    let halves = unsafe { [_mm256_loadu_si256(b.cast()), _mm256_loadu_si256(b.add(8).cast())] };
    halves.map(|halves| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))))
}

avx512_kernel!(single, "avx512f", whole_groups, |sum, a, b| _mm512_fmadd_ps(a, b, sum));
avx512_kernel!(halves, "avx512f", widened_512, |sum, a, b| _mm512_fmadd_ps(a, b, sum));
avx512_kernel!(pair, "avx512f,avx512bf16", whole_groups, |sum, a, b| {
    _mm512_dpbf16_ps(
        sum,
        std::mem::transmute::<__m512, __m512bh>(a),
        std::mem::transmute::<__m512, __m512bh>(b),
    )
});

/// f32 with AVX2 and FMA: 16 registers hold 6 × 16 sums, or 2 × 32.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX2 and FMA.
pub(super) unsafe fn avx2(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { in_parts::<false>(tile) }
}

/// f32 and bf16 with AVX2 and FMA.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX2 and FMA.
pub(super) unsafe fn avx2_halves(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { in_parts::<true>(tile) }
}

/// 8 columns of a group, from column `column` on. With `HALVES` they are bf16 and are widened.
///
/// # Safety
/// `b` must point to the group of all columns of a panel. Needs AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns_256<const HALVES: bool>(b: *const u32, column: usize) -> __m256 {
    // SAFETY: by this function's contract.
    unsafe {
        if HALVES {
            let halves = _mm_loadu_si128(b.cast::<u16>().add(column).cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        } else {
            _mm256_loadu_ps(b.add(column).cast())
        }
    }
}

/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX2 and FMA.
unsafe fn in_parts<const HALVES: bool>(tile: &Tile) {
    for first in (0..tile.rows).step_by(6) {
        // One or two rows wait for memory more than for arithmetic: they read each line of B once.
        match tile.rows - first {
            // SAFETY: a part of the tile, so the kernel's contract covers it.
            1 => unsafe { whole_width::<1, HALVES>(tile, first) },
            // SAFETY: as above.
            2 => unsafe { whole_width::<2, HALVES>(tile, first) },
            _ => {}
        }
        if tile.rows - first <= 2 {
            continue;
        }
        for column in (0..NR).step_by(16) {
            // SAFETY: a part of the tile, so the kernel's contract covers it.
            unsafe {
                match tile.rows - first {
                    3 => quarter::<3, HALVES>(tile, first, column),
                    4 => quarter::<4, HALVES>(tile, first, column),
                    5 => quarter::<5, HALVES>(tile, first, column),
                    _ => quarter::<6, HALVES>(tile, first, column),
                }
            }
        }
    }
}

/// Rows from `first` and all columns of a tile.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn whole_width<const ROWS: usize, const HALVES: bool>(tile: &Tile, first: usize) {
    let mut sums = [[_mm256_setzero_ps(); 4]; ROWS];
    // SAFETY: the groups of A and B are readable and the rows of C are ours by the kernel's contract.
    unsafe {
        let (mut a, mut b) = (tile.a.add(first * tile.a_row), tile.b);
        for _ in 0..tile.groups {
            let ahead = b.wrapping_add(AHEAD * tile.b_step);
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(16).cast());
            let columns: [__m256; 4] = std::array::from_fn(|j| columns_256::<HALVES>(b, 8 * j));
            for (i, sums) in sums.iter_mut().enumerate() {
                let value = _mm256_set1_ps(f32::from_bits(*a.add(i * tile.a_row)));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm256_fmadd_ps(value, column, *sum);
                }
            }
            a = a.wrapping_add(tile.a_step);
            b = b.wrapping_add(tile.b_step);
        }
        for (i, sums) in sums.into_iter().enumerate() {
            let c = tile.c.add((first + i) * tile.c_row);
            for (j, sum) in sums.into_iter().enumerate() {
                let c = c.add(8 * j);
                let sum = if tile.accumulate { _mm256_add_ps(sum, _mm256_loadu_ps(c)) } else { sum };
                _mm256_storeu_ps(c, sum);
            }
        }
    }
}

/// Rows from `first` and 16 columns from `column` of a tile.
///
/// # Safety
/// See [`super::kernel::Kernel`]; needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn quarter<const ROWS: usize, const HALVES: bool>(tile: &Tile, first: usize, column: usize) {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    // SAFETY: the groups of A and B are readable and the rows of C are ours by the kernel's contract.
    unsafe {
        let (mut a, mut b) = (tile.a.add(first * tile.a_row), tile.b);
        for _ in 0..tile.groups {
            // A group of bf16 is one line, so both quarters read the same.
            let line = if HALVES { 0 } else { column };
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * tile.b_step + line).cast());
            if tile.a_step != 1 {
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * tile.a_step).cast());
            }
            let (low, high) = (columns_256::<HALVES>(b, column), columns_256::<HALVES>(b, column + 8));
            unrolled!(ROWS, i => {
                let value = _mm256_set1_ps(f32::from_bits(*a.add(i * tile.a_row)));
                sums[i][0] = _mm256_fmadd_ps(value, low, sums[i][0]);
                sums[i][1] = _mm256_fmadd_ps(value, high, sums[i][1]);
            });
            a = a.wrapping_add(tile.a_step);
            b = b.wrapping_add(tile.b_step);
        }
        for (i, sums) in sums.iter().enumerate() {
            let c = tile.c.add((first + i) * tile.c_row + column);
            let (mut low, mut high) = (sums[0], sums[1]);
            if tile.accumulate {
                low = _mm256_add_ps(low, _mm256_loadu_ps(c));
                high = _mm256_add_ps(high, _mm256_loadu_ps(c.add(8)));
            }
            _mm256_storeu_ps(c, low);
            _mm256_storeu_ps(c.add(8), high);
        }
    }
}

/// Transposes 16 × 16 groups with AVX-512.
///
/// # Safety
/// Needs AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose_512(block: &mut [[u32; 16]; 16]) {
    let mut rows = [_mm512_setzero_si512(); 16];
    for (register, row) in rows.iter_mut().zip(&*block) {
        // SAFETY: a row is 16 groups.
        *register = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
    }
    // First pairs of rows are interleaved, then fours: each quarter of a register then holds a column of four rows.
    let mut pairs = [_mm512_setzero_si512(); 16];
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut fours = [_mm512_setzero_si512(); 16];
    for i in 0..4 {
        for half in 0..2 {
            let (a, b) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
            fours[4 * i + 2 * half] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    // The same quarter of four registers is collected in one: 16 groups of a column.
    for column in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|first| fours[first + column]);
        let (ab_low, ab_high) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (cd_low, cd_high) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        let columns = [
            _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
        ];
        for (quarter, register) in columns.into_iter().enumerate() {
            // SAFETY: a row is 16 groups.
            unsafe { _mm512_storeu_si512(block[4 * quarter + column].as_mut_ptr().cast(), register) };
        }
    }
}

/// Transposes 16 × 16 groups with AVX2, a quarter of 8 × 8 at a time.
///
/// # Safety
/// Needs AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn transpose_256(block: &mut [[u32; 16]; 16]) {
    let from = *block;
    for row in [0, 8] {
        for column in [0, 8] {
            // SAFETY: each row of the quarter is 8 groups.
            let rows: [__m256; 8] = std::array::from_fn(|i| unsafe {
                _mm256_loadu_ps(from[row + i].as_ptr().add(column).cast())
            });
            // First pairs of rows are interleaved, then fours: each half of a register then holds a column of four rows.
            let pairs: [__m256; 8] = std::array::from_fn(|i| {
                let (a, b) = (rows[i / 2 * 2], rows[i / 2 * 2 + 1]);
                if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
            });
            let fours: [__m256; 8] = std::array::from_fn(|i| {
                let (a, b) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + 2 + i % 4 / 2]);
                if i % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
            });
            for i in 0..4 {
                let low = _mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]);
                let high = _mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]);
                // SAFETY: each row of the quarter is 8 groups.
                unsafe {
                    _mm256_storeu_ps(block[column + i].as_mut_ptr().add(row).cast(), low);
                    _mm256_storeu_ps(block[column + 4 + i].as_mut_ptr().add(row).cast(), high);
                }
            }
        }
    }
}
