//! Matrix products on slices.

use gemm::Parallelism;

/// A matrix in a slice: element `(i, j)` is at `i * row + j * column`.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl Strided {
    /// Row-major with `columns` elements from one row to the next.
    pub(crate) fn rows(columns: usize) -> Self {
        Self { row: columns, column: 1 }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self { row: self.column, column: self.row }
    }

    /// How many elements a matrix of this many rows and columns spans.
    fn span(self, rows: usize, columns: usize) -> usize {
        if rows == 0 || columns == 0 { 0 } else { (rows - 1) * self.row + (columns - 1) * self.column + 1 }
    }
}

/// Whether a product may use rayon's threads. The bits of the result are the same either way.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    One,
    All,
}

/// Below this many multiplications, waking a thread costs more than it saves.
const PARALLEL_WORK: usize = 1 << 18;

/// `c = alpha * a · b` (`c += …` with `accumulate`), where `a` is `m × k`, `b` is `k × n` and `c` is `m × n`.
///
/// # Panics
/// When a slice is shorter than its matrix: callers check shapes first, so this guards the unsafe call below.
#[expect(clippy::too_many_arguments, reason = "three matrices, their layouts and their sizes")]
pub(crate) fn matmul(
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    a_layout: Strided,
    b: &[f32],
    b_layout: Strided,
    c: &mut [f32],
    c_layout: Strided,
    alpha: f32,
    accumulate: bool,
    threads: Threads,
) {
    assert!(a.len() >= a_layout.span(m, k), "the left matrix is too short");
    assert!(b.len() >= b_layout.span(k, n), "the right matrix is too short");
    assert!(c.len() >= c_layout.span(m, n), "the result is too short");
    let parallelism = match threads {
        Threads::All if m * n * k >= PARALLEL_WORK => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    // SAFETY: the assertions above say that every element that the strides reach lies within its slice, and the
    // exclusive borrow of `c` says that the result overlaps neither input.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            c_layout.column as isize,
            c_layout.row as isize,
            accumulate,
            a.as_ptr(),
            a_layout.column as isize,
            a_layout.row as isize,
            b.as_ptr(),
            b_layout.column as isize,
            b_layout.row as isize,
            1.0,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{in_pool, numbers};

    #[test]
    fn products_have_the_same_bits_for_any_number_of_threads() {
        let shapes = [
            (1, 512, 256), (2, 300, 256), (7, 129, 65), (64, 64, 64), (65, 64, 640), (128, 256, 512), (33, 1000, 96),
            (512, 176, 1030), (1000, 17, 300), (256, 4096, 64), (4096, 64, 256), (17, 2000, 2100),
        ];
        for (m, n, k) in shapes {
            let (a, b) = (numbers(1, m * k), numbers(2, k * n));
            for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false)] {
                let la = if transpose_a { Strided::rows(m).t() } else { Strided::rows(k) };
                let lb = if transpose_b { Strided::rows(k).t() } else { Strided::rows(n) };
                let run = |threads| {
                    in_pool(threads, || {
                        let mut c = vec![0.5; m * n];
                        matmul((m, n, k), &a, la, &b, lb, &mut c, Strided::rows(n), 1.0, true, Threads::All);
                        c
                    })
                };
                let one = run(1);
                for threads in [2, 3, 5] {
                    let same = one.iter().zip(run(threads)).all(|(x, y)| x.to_bits() == y.to_bits());
                    assert!(same, "({m}, {n}, {k}) differs with {threads} threads");
                }
                let (i, j) = (m / 2, n / 3);
                let exact: f64 = (0..k).map(|l| {
                    f64::from(a[i * la.row + l * la.column]) * f64::from(b[l * lb.row + j * lb.column])
                }).sum();
                assert!((f64::from(one[i * n + j]) - 0.5 - exact).abs() < 2e-4, "({m}, {n}, {k})");
            }
        }
    }
}
