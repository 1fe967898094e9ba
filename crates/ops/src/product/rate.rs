//! Measuring how fast products are on this machine.

use rayon::prelude::*;

use super::{LeftRows, Matrix, RightOperand, Tiling, multiply, with_rows};
use crate::buffer::Workspace;
use crate::element::{Element, Precision};

/// Measures the product rate of this engine with all threads of the current pool, in FLOP/s. The rate is the best of
/// `tries` products of two 1,536 × 1,536 matrices, packing included, as a caller of a library would see it. `now` gives
/// the time in seconds.
pub fn product_rate(precision: Precision, tries: usize, now: impl Fn() -> f64) -> f64 {
    match precision {
        Precision::F32 => rate::<f32>(tries, now),
        Precision::Bf16 => rate::<half::bf16>(tries, now),
    }
}

fn rate<E: Element>(tries: usize, now: impl Fn() -> f64) -> f64 {
    const SIZE: usize = 1536;
    let values: Vec<E> = (0..SIZE * SIZE).map(|i| E::from_f32((i % 7) as f32 * 0.25 - 0.5)).collect();
    let (workspace, Tiling { panel, .. }) = (Workspace::default(), Tiling::of::<E>());
    let mut c = workspace.take(SIZE * SIZE);
    let mut best = f64::MAX;
    for _ in 0..tries.max(1) {
        let start = now();
        let rhs = RightOperand::new::<E, E>(&workspace, Matrix::columns(&values, SIZE, SIZE));
        c.par_chunks_mut(panel * SIZE).zip(values.par_chunks(panel * SIZE)).for_each(|(c, a)| {
            with_rows(LeftRows::contiguous(a, SIZE), |a| multiply(a, rhs.rhs(), 0..SIZE, c, SIZE, false));
        });
        rhs.give(&workspace);
        best = best.min(now() - start);
    }
    2.0 * (SIZE as f64).powi(3) / best
}
