//! Times the products of linear maps in this engine and, in f32, in the `gemm` crate.
//!
//! ```text
//! cargo run --release -p dipaco-ops --example product_rates -- f32 7 2048,256,704 2048,704,256
//! ```
//!
//! The arguments are the dtype, the number of tries, and the rows, inputs and outputs of each map `y = x · Wᵀ`. Prints one
//! line of JSON for each library, map and product, with the seconds of each try. `scripts/bench-products.py` calls it.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::sync::OnceLock;
use std::time::Instant;

use dipaco_ops::kernel::LinearShape;
use dipaco_ops::{LinearProduct, Precision, product_seconds};

const PRODUCTS: [(&str, LinearProduct); 3] = [
    ("output", LinearProduct::Output),
    ("input gradient", LinearProduct::InputGradient),
    ("weight gradient", LinearProduct::WeightGradient),
];

fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

fn shape(text: &str) -> Result<LinearShape, Box<dyn Error>> {
    let sizes = text.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    match *sizes {
        [rows, inputs, outputs] => Ok(LinearShape { rows, inputs, outputs }),
        _ => Err(format!("`{text}` is not ROWS,INPUTS,OUTPUTS").into()),
    }
}

/// A matrix (rows, columns): the distances from one row and from one column to the next.
type Strides = (isize, isize);

/// The seconds of each try of the `gemm` crate, f32.
fn gemm_seconds(product: LinearProduct, shape: LinearShape, tries: usize) -> Vec<f64> {
    let LinearShape { rows, inputs, outputs } = shape;
    let values = |count| -> Vec<f32> { (0..count).map(|i| (i % 7) as f32 * 0.25 - 0.5).collect() };
    let (x, dy, weight) = (values(rows * inputs), values(rows * outputs), values(outputs * inputs));
    let row_major = |columns: usize| -> Strides { (columns as isize, 1) };
    let transposed = |columns: usize| -> Strides { (1, columns as isize) };
    // C (m, n) = A (m, k) · B (k, n).
    let (m, n, k, a, a_strides, b, b_strides) = match product {
        LinearProduct::Output => (rows, outputs, inputs, &x, row_major(inputs), &weight, transposed(inputs)),
        LinearProduct::InputGradient => {
            (rows, inputs, outputs, &dy, row_major(outputs), &weight, row_major(inputs))
        }
        LinearProduct::WeightGradient => {
            (outputs, inputs, rows, &dy, transposed(outputs), &x, row_major(inputs))
        }
    };
    let mut c = vec![0.0f32; m * n];
    let threads = gemm::Parallelism::Rayon(rayon::current_num_threads());
    let timed = |_| {
        let start = now();
        // SAFETY: the three matrices have the sizes and strides that are given, and C is borrowed exclusively.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                a_strides.1,
                a_strides.0,
                b.as_ptr(),
                b_strides.1,
                b_strides.0,
                0.0f32,
                1.0f32,
                false,
                false,
                false,
                threads,
            );
        }
        now() - start
    };
    (0..tries).map(timed).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dtype, tries, shapes @ ..] = arguments.as_slice() else {
        return Err("the arguments are: f32 or bf16, a number of tries, and maps ROWS,INPUTS,OUTPUTS".into());
    };
    let precision = match dtype.as_str() {
        "f32" => Precision::F32,
        "bf16" => Precision::Bf16,
        other => return Err(format!("`{other}` is neither f32 nor bf16").into()),
    };
    let tries: usize = tries.parse()?;
    let set = dipaco_ops::kernel_choice()?.set;
    for text in shapes {
        let shape = shape(text)?;
        for (name, product) in PRODUCTS {
            let line = |library: &str, seconds: Vec<f64>| {
                println!(
                    r#"{{"library": "{library}", "dtype": "{dtype}", "map": "{text}", "product": "{name}", "seconds": {seconds:?}}}"#
                );
            };
            line(&format!("dipaco ({set})"), product_seconds(product, shape, precision, tries, now));
            if precision == Precision::F32 {
                line("gemm", gemm_seconds(product, shape, tries));
            }
        }
    }
    Ok(())
}
