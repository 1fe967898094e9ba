//! Minimising a smooth convex function: L-BFGS (Liu and Nocedal, 1989) with a backtracking line search.

use std::collections::VecDeque;

use crate::RoutingError;

/// Steps and changes of the gradient that approximate the curvature.
const MEMORY: usize = 10;
/// The share of the decrease promised by the gradient that a step has to keep (Armijo's condition).
const SUFFICIENT: f64 = 1e-4;
/// Times that a step is halved before there is nothing left to gain.
const HALVINGS: usize = 30;

/// Gives the value at a place and writes the gradient.
type Evaluate<'a> = dyn FnMut(&[f64], &mut [f64]) -> Result<f64, RoutingError> + 'a;

/// A step, how it changed the gradient, and the product of the two.
type Pair = (Vec<f64>, Vec<f64>, f64);

/// Where the search ended.
pub(super) struct Minimum {
    pub(super) place: Vec<f64>,
    pub(super) iterations: usize,
}

/// Searches from `place` until two iterations in a row lower the value by less than `tolerance` of it, or for
/// `iterations`. `evaluate` gives the value at a place and writes the gradient.
pub(super) fn minimise(
    mut place: Vec<f64>,
    iterations: usize,
    tolerance: f64,
    evaluate: &mut Evaluate<'_>,
) -> Result<Minimum, RoutingError> {
    let mut gradient = vec![0.0; place.len()];
    let mut value = evaluate(&place, &mut gradient)?;
    let mut history: VecDeque<Pair> = VecDeque::with_capacity(MEMORY);
    let mut small_gains = 0;
    for iteration in 1..=iterations {
        let mut direction = descent(&gradient, &history);
        let mut slope = dot(&gradient, &direction);
        if slope >= 0.0 {
            history.clear();
            direction = gradient.iter().map(|g| -g).collect();
            slope = -dot(&gradient, &gradient);
        }
        if slope == 0.0 {
            return Ok(Minimum { place, iterations: iteration - 1 });
        }
        let mut step = if history.is_empty() { 1.0 / (-slope).sqrt().max(1.0) } else { 1.0 };
        let mut taken = None;
        for _ in 0..HALVINGS {
            let next: Vec<f64> = place.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
            let mut next_gradient = vec![0.0; place.len()];
            let next_value = evaluate(&next, &mut next_gradient)?;
            if next_value <= value + SUFFICIENT * step * slope {
                taken = Some((next, next_gradient, next_value));
                break;
            }
            step /= 2.0;
        }
        // No step lowers the value: it is at its minimum but for rounding.
        let Some((next, next_gradient, next_value)) = taken else {
            return Ok(Minimum { place, iterations: iteration - 1 });
        };
        let moved: Vec<f64> = next.iter().zip(&place).map(|(a, b)| a - b).collect();
        let change: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let curvature = dot(&moved, &change);
        if curvature > 1e-12 * dot(&change, &change).sqrt() * dot(&moved, &moved).sqrt() {
            if history.len() == MEMORY {
                history.pop_front();
            }
            history.push_back((moved, change, curvature));
        }
        let gain = value - next_value;
        (place, gradient, value) = (next, next_gradient, next_value);
        small_gains = if gain <= tolerance * value.abs() { small_gains + 1 } else { 0 };
        if small_gains == 2 {
            return Ok(Minimum { place, iterations: iteration });
        }
    }
    Ok(Minimum { place, iterations })
}

/// The negative gradient times an approximation of the inverse curvature.
fn descent(gradient: &[f64], history: &VecDeque<Pair>) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut weights = Vec::with_capacity(history.len());
    for (moved, change, curvature) in history.iter().rev() {
        let weight = dot(moved, &direction) / curvature;
        add(&mut direction, -weight, change);
        weights.push(weight);
    }
    if let Some((_, change, curvature)) = history.back() {
        let scale = curvature / dot(change, change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for ((moved, change, curvature), weight) in history.iter().zip(weights.into_iter().rev()) {
        let back = dot(change, &direction) / curvature;
        add(&mut direction, weight - back, moved);
    }
    direction
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], factor: f64, other: &[f64]) {
    sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += factor * other);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_minimum_of_a_stretched_bowl() {
        // Σ s (x - c)² / 2 with s from 1 to 1000, minimal at c.
        let centre: Vec<f64> = (0..20).map(|i| f64::from(i) - 7.5).collect();
        let found = minimise(vec![0.0; 20], 200, 0.0, &mut |x, gradient| {
            let mut value = 0.0;
            for (i, gradient) in gradient.iter_mut().enumerate() {
                let stiffness = 1000f64.powf(i as f64 / 19.0);
                *gradient = stiffness * (x[i] - centre[i]);
                value += 0.5 * stiffness * (x[i] - centre[i]).powi(2);
            }
            Ok(value)
        })
        .unwrap();
        for (x, c) in found.place.iter().zip(&centre) {
            assert!((x - c).abs() < 1e-6, "{x} for {c} after {} iterations", found.iterations);
        }
    }

    #[test]
    fn a_minimum_is_left_alone_and_errors_come_through() {
        let mut flat = |_: &[f64], _: &mut [f64]| Ok(3.0);
        let found = minimise(vec![1.0, 2.0], 9, 0.0, &mut flat).unwrap();
        assert_eq!((found.place, found.iterations), (vec![1.0, 2.0], 0));
        assert!(minimise(vec![1.0], 9, 0.0, &mut |_, _| Err(RoutingError::Cancelled)).is_err());
    }
}
