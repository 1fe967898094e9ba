//! Products of every layout and size against f64.

use half::bf16;
use rayon::prelude::*;

use super::portable::{halves_portable, pairs_portable, portable, transpose_portable};
use super::*;
use crate::KernelSet;
use crate::kernel_set::with_set;
use crate::test_support::{in_pool, numbers};

/// Rows of a task.
const PANEL: usize = 4 * MR;

/// The sizes of a product of A (m × k) and B (k × n).
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// A · B with the elements of A and B given by functions, in f64.
fn exact(
    Sizes { m, k, n }: Sizes,
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let element = |i: usize, j: usize| (0..k).map(|l| a(i, l) * b(l, j)).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}

/// Multiplies with both orders of both operands and compares. Every operand has gaps between its rows.
fn check<E: Element>(sizes: Sizes) {
    let Sizes { m, k, n } = sizes;
    let elements = |seed, count| -> Vec<E> { numbers(seed, count).into_iter().map(E::from_f32).collect() };
    let group = Group::of::<E>();
    for (a_order, b_order) in
        [(Order::Columns, Order::Columns), (Order::Columns, Order::Rows), (Order::Rows, Order::Rows)]
    {
        let stride = |order, lanes| if order == Order::Rows { lanes + 2 } else { k + k % 2 + 4 };
        let (a_stride, b_stride) = (stride(a_order, m), stride(b_order, n));
        let count = |order, stride, lanes| if order == Order::Rows { k * stride } else { lanes * stride };
        let (a, b) = (elements(1, count(a_order, a_stride, m)), elements(2, count(b_order, b_stride, n)));
        let at =
            |order, stride, l, lane| if order == Order::Rows { l * stride + lane } else { lane * stride + l };
        let expected = exact(
            sizes,
            |i, l| f64::from(a[at(a_order, a_stride, l, i)].to_f32()),
            |l, j| f64::from(b[at(b_order, b_stride, l, j)].to_f32()),
        );
        let right = Matrix { data: &b[..], order: b_order, stride: b_stride, depth: k, lanes: n };
        let mut memory = vec![0.0; packed_len(group, k, n, NR)];
        let packed = Rhs::pack(group, right, &mut memory);
        let direct = Rhs::direct(group, right);
        let run = |threads, rhs| {
            in_pool(threads, || {
                let mut c = vec![0.5; m * n];
                if a_order == Order::Rows {
                    let product = OuterProduct { a: &a, stride: a_stride, rows: m, rhs, c: &mut c };
                    outer_products(&mut [product], k, true);
                } else {
                    c.par_chunks_mut(PANEL * n.max(1)).enumerate().for_each(|(p, c)| {
                        let rows = PANEL.min(m - p * PANEL);
                        let data = &a[p * PANEL * a_stride..];
                        let rows = LeftRows { data, count: rows, depth: k, stride: a_stride };
                        with_rows(rows, |lhs| multiply(lhs, rhs, 0..n, c, n, true));
                    });
                }
                c
            })
        };
        let found = run(1, packed);
        assert_eq!(found, run(3, packed), "{m} × {k} × {n}: threads change the result");
        if let Some(direct) = direct {
            assert_eq!(found, run(2, direct), "{m} × {k} × {n}: reading in place changes the result");
        }
        let same = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-6 * (4.0 + k as f64);
        for (f, e) in found.iter().zip(&expected) {
            assert!(
                same(*f, e + 0.5),
                "{:?} {m} × {k} × {n} {a_order:?} {b_order:?}: {f} is not {e}",
                E::PRECISION
            );
        }
        if a_order == Order::Columns && m * k > 0 {
            let mut c = vec![f32::NAN; m * n];
            let rows = LeftRows { data: &a[..], count: m, depth: k, stride: a_stride };
            with_rows(rows, |lhs| multiply(lhs, packed, 0..n, &mut c, n, false));
            assert!(
                c.iter().zip(&expected).all(|(f, e)| same(*f, *e)),
                "rows read in place: {m} × {k} × {n}"
            );
        }
    }
}

#[test]
fn products_of_all_shapes() {
    for set in crate::kernel_set::available() {
        with_set(Some(set), all_shapes);
    }
}

fn all_shapes() {
    let all = [
        (1, 1, 1),
        (5, 3, 7),
        (13, 33, 31),
        (3, 0, 4),
        (0, 4, 3),
        (12, 32, 32),
        (47, 64, 65),
        (50, 257, 33),
        (100, 600, 70),
        (49, 512, 600),
    ];
    // Miri interprets each instruction, so it gets the smallest sizes only.
    for (m, k, n) in all.into_iter().take(if cfg!(miri) { 5 } else { all.len() }) {
        let sizes = Sizes { m, k, n };
        check::<f32>(sizes);
        check::<bf16>(sizes);
    }
}

#[test]
#[should_panic(expected = "the rows of the result overlap")]
fn rows_of_a_result_that_overlap_are_refused() {
    let (a, b) = ([1.0f32; 2], [1.0f32; 40]);
    let mut memory = vec![0.0; packed_len(Group::Single, 1, b.len(), NR)];
    let rhs = Rhs::pack(Group::Single, Matrix::rows(&b, 1, b.len()), &mut memory);
    let mut c = [0.0; 2 * 40];
    with_rows(LeftRows::contiguous(&a, 1), |lhs| multiply(lhs, rhs, 0..b.len(), &mut c, b.len() - 1, false));
}

#[test]
fn every_kernel_computes_the_same_tile() {
    let _session = kernel::session(Group::Pair);
    // Operands with few bits, so that sums are exact in any order.
    let values: Vec<u32> = (0..4096u32).map(|i| bf16::pair(small(i), small(i / 3 + 1))).collect();
    let singles: Vec<u32> = (0..4096u32).map(|i| f32::from(small(i)).to_bits()).collect();
    // Miri interprets each instruction, so it gets fewer.
    const GROUPS: usize = if cfg!(miri) { 3 } else { 70 };
    for rows in 1..=MR {
        let run_with =
            |kernel: kernel::Kernel, data: &[u32], b: &[u32], b_step: usize, packed: bool, columns: usize| {
                let mut c = vec![1.0; MR * 40];
                let (a_row, a_step) = if packed { (1, MR) } else { (77, 1) };
                let (a, b) = (data.as_ptr(), b.as_ptr());
                let tile = Tile {
                    groups: GROUPS,
                    rows,
                    columns,
                    a,
                    a_row,
                    a_step,
                    b,
                    b_step,
                    c: c.as_mut_ptr(),
                    c_row: 40,
                    accumulate: true,
                };
                // SAFETY: the data has room for the groups of 12 rows and 32 columns, C for 12 rows of 40.
                unsafe { kernel(&tile) };
                c
            };
        let run_columns = |kernel, data: &[u32], packed, columns| {
            run_with(kernel, data, &data[1000..], NR, packed, columns)
        };
        let run = |kernel, data: &[u32], packed| run_columns(kernel, data, packed, NR);
        // The same B in bf16.
        let halves: Vec<u32> =
            singles[1000..].as_chunks().0.iter().map(|[low, high]| low >> 16 | high & 0xffff_0000).collect();
        let run_halves = |kernel, packed| run_with(kernel, &singles, &halves, NR / 2, packed, NR);
        for packed in [false, true] {
            let reference = run(portable, &singles, packed);
            for columns in [1, 16] {
                let half = run_columns(kernel::kernel(Group::Single, false), &singles, packed, columns);
                for (half, reference) in half.chunks(40).zip(reference.chunks(40)) {
                    assert_eq!(half[..16], reference[..16]);
                }
            }
            assert_eq!(run(kernel::kernel(Group::Single, false), &singles, packed), reference);
            assert_eq!(run_halves(halves_portable, packed), reference);
            assert_eq!(run_halves(kernel::kernel(Group::Single, true), packed), reference);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                assert_eq!(run(x86::avx2, &singles, packed), reference);
                assert_eq!(run_halves(x86::avx2_halves, packed), reference);
            }
            let pairs = run(pairs_portable, &values, packed);
            assert_eq!(run(kernel::kernel(Group::Pair, false), &values, packed), pairs);
            #[cfg(target_arch = "aarch64")]
            if std::arch::is_aarch64_feature_detected!("bf16") {
                assert_eq!(run(neon::neon_bf16, &values, packed), pairs);
            }
        }
    }
}

fn small(i: u32) -> bf16 {
    bf16::from_f32(((i * 37 % 17) as f32 - 8.0) / 8.0)
}

#[test]
fn no_pass_of_a_limited_depth_is_longer_than_the_longest() {
    for set in KernelSet::ALL {
        // Depths only, so also those of sets that this processor lacks.
        let depths = with_set(Some(set), || {
            [Group::Single, Group::Pair].map(|group| (group, Tiling::of_group(group).depth))
        });
        for (group, depth) in depths.into_iter().filter(|(_, depth)| *depth < usize::MAX) {
            assert!(depth * group.elements() <= LONGEST_PASS, "{set}, {group:?}: {depth}");
        }
    }
}

#[test]
fn blocks_are_transposed() {
    let block: [[u32; 16]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| (16 * i + j) as u32));
    let expected: [[u32; 16]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| (16 * j + i) as u32));
    for set in crate::kernel_set::available() {
        let mut found = block;
        with_set(Some(set), || kernel::transpose(&mut found));
        assert_eq!(found, expected, "{set}");
    }
    let mut found = block;
    transpose_portable(&mut found);
    assert_eq!(found, expected);
}
