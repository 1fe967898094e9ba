//! Measuring how fast products are on this machine.

use rayon::prelude::*;

use super::{
    LeftRows, Matrix, OuterProduct, RightOperand, RowSplitter, outer_products, part, rounded_product,
    row_tasks,
};
use crate::buffer::Workspace;
use crate::element::{Element, Precision};
use crate::linear::LinearShape;

/// A product of a linear map `y = x · Wᵀ` in a training step: x (rows, inputs), W (outputs, inputs), y (rows, outputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearProduct {
    /// `y = x · Wᵀ`.
    Output,
    /// The gradient of x: `dx = dy · W`.
    InputGradient,
    /// The gradient of W: `dW = dyᵀ · x`.
    WeightGradient,
}

/// Measures the product rate of this engine with all threads of the current pool, in FLOP/s. The rate is the best of
/// `tries` products of two 1,536 × 1,536 matrices, packing included, as a caller of a library would see it. `now` gives
/// the time in seconds.
pub fn product_rate(precision: Precision, tries: usize, now: impl Fn() -> f64) -> f64 {
    const SIZE: usize = 1536;
    let shape = LinearShape { rows: SIZE, inputs: SIZE, outputs: SIZE };
    let seconds = product_seconds(LinearProduct::Output, shape, precision, tries.max(1), now);
    2.0 * (SIZE as f64).powi(3) / seconds.into_iter().fold(f64::MAX, f64::min)
}

/// The seconds of each of `tries` products with all threads of the current pool, packing included. Operands and the results of
/// outputs and input gradients have `precision`, weight gradients are f32. `now` gives the time in seconds.
pub fn product_seconds(
    product: LinearProduct,
    shape: LinearShape,
    precision: Precision,
    tries: usize,
    now: impl Fn() -> f64,
) -> Vec<f64> {
    match precision {
        Precision::F32 => seconds::<f32>(product, shape, tries, now),
        Precision::Bf16 => seconds::<half::bf16>(product, shape, tries, now),
    }
}

fn seconds<E: Element>(
    product: LinearProduct,
    shape: LinearShape,
    tries: usize,
    now: impl Fn() -> f64,
) -> Vec<f64> {
    let LinearShape { rows, inputs, outputs } = shape;
    let values = |count| -> Vec<E> { (0..count).map(|i| E::from_f32((i % 7) as f32 * 0.25 - 0.5)).collect() };
    let (x, dy, weight) = (values(rows * inputs), values(rows * outputs), values(outputs * inputs));
    let (mut results, mut gradient) = match product {
        LinearProduct::Output => (values(rows * outputs), Vec::new()),
        LinearProduct::InputGradient => (values(rows * inputs), Vec::new()),
        LinearProduct::WeightGradient => (Vec::new(), vec![0.0; outputs * inputs]),
    };
    let workspace = Workspace::default();
    let mut compute = || match product {
        LinearProduct::Output => {
            of_rows(&workspace, &x, Matrix::columns(&weight, inputs, outputs), &mut results);
        }
        LinearProduct::InputGradient => {
            of_rows(&workspace, &dy, Matrix::rows(&weight, outputs, inputs), &mut results);
        }
        LinearProduct::WeightGradient => {
            let right = RightOperand::new::<E, E>(&workspace, Matrix::rows(&x, rows, inputs));
            let product =
                OuterProduct { a: &dy, stride: outputs, rows: outputs, rhs: right.rhs(), c: &mut gradient };
            outer_products(&mut [product], rows, false);
            right.give(&workspace);
        }
    };
    let timed = |_| {
        let start = now();
        compute();
        now() - start
    };
    (0..tries).map(timed).collect()
}

/// `c = a · B`: a (rows, depth), B (depth, lanes), c (rows, lanes).
fn of_rows<E: Element>(workspace: &Workspace, a: &[E], b: Matrix<'_, E>, c: &mut [E]) {
    let Matrix { depth, lanes, .. } = b;
    let right = RightOperand::new::<E, E>(workspace, b);
    let mut c = RowSplitter::new(c, lanes);
    let task = |rows: std::ops::Range<usize>| (part(a, depth, &rows), c.next(rows.len()));
    let tasks: Vec<_> = row_tasks::<E>(a.len() / depth).into_iter().map(task).collect();
    tasks
        .into_par_iter()
        .with_max_len(1)
        .for_each(|(a, c)| rounded_product(LeftRows::contiguous(a, depth), right.rhs(), c));
    right.give(workspace);
}
