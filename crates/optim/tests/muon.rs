//! Muon against the numbers of PyTorch.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use dipaco_optim::*;
use serde_json::Value;

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/muon.json")).unwrap()
}

/// The rows of a matrix one after the other, and their number.
fn matrix(value: &Value) -> (Vec<f32>, usize) {
    let rows = value.as_array().unwrap();
    let all = rows.iter().flat_map(|row| row.as_array().unwrap());
    (all.map(|x| x.as_f64().unwrap() as f32).collect(), rows.len())
}

/// Products by definition.
struct Plain;

impl Products for Plain {
    fn by_transposed(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape) {
        let ProductShape { rows, depth, columns } = shape;
        assert_eq!((a.len(), b.len(), c.len()), (rows * depth, columns * depth, rows * columns));
        for (i, c) in c.iter_mut().enumerate() {
            let (row, column) = (&a[i / columns * depth..][..depth], &b[i % columns * depth..][..depth]);
            *c = row.iter().zip(column).map(|(a, b)| a * b).sum();
        }
    }

    fn transposed_by(&self, a: &[f32], b: &[f32], c: &mut [f32], shape: ProductShape) {
        let ProductShape { rows, depth, columns } = shape;
        assert_eq!((a.len(), b.len(), c.len()), (rows * depth, columns * depth, rows * columns));
        for (i, c) in c.iter_mut().enumerate() {
            *c = (0..depth).map(|k| a[k * rows + i / columns] * b[k * columns + i % columns]).sum();
        }
    }
}

/// Takes the fixture's steps, and returns the largest difference of an element.
fn difference(name: &str, weight_decay: f64, scratch: &mut MuonScratch) -> f32 {
    let fixture = fixture();
    let case = &fixture[name];
    let (mut params, rows) = matrix(&case["start"]);
    let columns = params.len() / rows;
    let learning_rate = fixture["learning_rate"].as_f64().unwrap();
    let mut momentum = vec![0.0; params.len()];
    let mut largest = 0f32;
    let traces = case["trace"].as_array().unwrap();
    for (gradient, expected) in case["gradients"].as_array().unwrap().iter().zip(traces) {
        let gradient: Vec<f32> = matrix(gradient).0.iter().map(|g| 4.0 * g).collect();
        let step = MuonStep { rows, columns, learning_rate, gradient_scale: 0.25, weight_decay };
        muon_step(&mut params, &gradient, &mut momentum, &step, &Plain, scratch);
        for (found, expected) in params.iter().zip(matrix(expected).0) {
            largest = largest.max((found - expected).abs());
        }
    }
    largest
}

/// A step changes an element by up to 0.01 · 0.2 · √7. The five iterations multiply rounding by up to 3.4 each.
#[test]
fn muon_is_pytorchs() {
    // One scratch for all shapes: what an earlier matrix left in it changes nothing.
    let mut scratch = MuonScratch::default();
    for (name, decay) in [("wide", 0.1), ("tall", 0.1), ("square", 0.1), ("row", 0.1), ("no_decay", 0.0)] {
        let found = difference(name, decay, &mut scratch);
        assert!(found < 2e-6, "{name}: {found}");
    }
    // The tolerance sees a missing decay.
    assert!(difference("wide", 0.0, &mut scratch) > 1e-4);
}

#[test]
fn a_gradient_of_zeros_only_decays() {
    let (mut params, mut momentum) = (vec![2.0; 6], vec![0.0; 6]);
    let step = MuonStep { rows: 2, columns: 3, learning_rate: 0.1, gradient_scale: 1.0, weight_decay: 0.5 };
    muon_step(&mut params, &[0.0; 6], &mut momentum, &step, &Plain, &mut MuonScratch::default());
    assert_eq!((params, momentum), (vec![1.9; 6], vec![0.0; 6]));
}
