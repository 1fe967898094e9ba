//! Minimising a smooth convex function: L-BFGS (Liu and Nocedal, 1989) with a backtracking line search.

use std::collections::VecDeque;

use crate::RoutingError;

/// Number of past steps that approximate the curvature.
const MEMORY: usize = 10;
/// Share of the decrease promised by the gradient that a step has to reach (Armijo's condition).
const SUFFICIENT: f64 = 1e-4;
/// Halvings of a step before the search ends: a shorter step has nothing left to gain.
const HALVINGS: usize = 30;
/// Least curvature of a remembered step, as a share of the lengths of the step and of the gradient's change.
const LEAST_CURVATURE: f64 = 1e-12;

/// Returns the value at a place and writes the gradient.
type Evaluate<'a> = dyn FnMut(&[f64], &mut [f64]) -> Result<f64, RoutingError> + 'a;

/// A place with the function's value and gradient there.
struct Point {
    place: Vec<f64>,
    value: f64,
    gradient: Vec<f64>,
}

/// A past step.
struct Step {
    /// Difference of the places.
    moved: Vec<f64>,
    /// Difference of the gradients.
    change: Vec<f64>,
    /// Product of the two.
    curvature: f64,
}

/// End of a search.
pub(super) struct Minimum {
    pub(super) place: Vec<f64>,
    pub(super) iterations: usize,
}

/// Searches from `start` until two iterations in a row lower the value by less than `tolerance` of it, at most for
/// `iterations`. `evaluate` returns the value at a place and writes the gradient.
pub(super) fn minimise(
    start: Vec<f64>,
    iterations: usize,
    tolerance: f64,
    evaluate: &mut Evaluate<'_>,
) -> Result<Minimum, RoutingError> {
    let mut gradient = vec![0.0; start.len()];
    let value = evaluate(&start, &mut gradient)?;
    let mut point = Point { place: start, value, gradient };
    let mut history: VecDeque<Step> = VecDeque::with_capacity(MEMORY);
    let mut small_gains = 0;
    for iteration in 1..=iterations {
        let mut direction = descent(&point.gradient, &history);
        let mut slope = dot(&point.gradient, &direction);
        // Rounding can spoil the approximated curvature until its direction points uphill; the gradient never does.
        if slope >= 0.0 {
            history.clear();
            direction = point.gradient.iter().map(|g| -g).collect();
            slope = -dot(&point.gradient, &point.gradient);
        }
        if slope == 0.0 {
            return Ok(Minimum { place: point.place, iterations: iteration - 1 });
        }
        // With a history the direction has the right length. Without one, the first step moves by at most 1.
        let length = if history.is_empty() { 1.0 / (-slope).sqrt().max(1.0) } else { 1.0 };
        // No step lowers the value: it is at its minimum except for rounding.
        let Some(next) = line_search(&point, &direction, slope, length, evaluate)? else {
            return Ok(Minimum { place: point.place, iterations: iteration - 1 });
        };
        let moved: Vec<f64> = next.place.iter().zip(&point.place).map(|(a, b)| a - b).collect();
        let change: Vec<f64> = next.gradient.iter().zip(&point.gradient).map(|(a, b)| a - b).collect();
        let curvature = dot(&moved, &change);
        // A step without curvature would make the approximation indefinite, so it is not remembered.
        if curvature > LEAST_CURVATURE * dot(&change, &change).sqrt() * dot(&moved, &moved).sqrt() {
            if history.len() == MEMORY {
                history.pop_front();
            }
            history.push_back(Step { moved, change, curvature });
        }
        let gain = point.value - next.value;
        point = next;
        // A single small gain may be a short step after many halvings; two in a row mean that the value has settled.
        small_gains = if gain <= tolerance * point.value.abs() { small_gains + 1 } else { 0 };
        if small_gains == 2 {
            return Ok(Minimum { place: point.place, iterations: iteration });
        }
    }
    Ok(Minimum { place: point.place, iterations })
}

/// The first point with a sufficient decrease among steps of `length`, `length` / 2 … along `direction`; none if there is
/// no such step. `slope` is the derivative along the direction.
fn line_search(
    from: &Point,
    direction: &[f64],
    slope: f64,
    mut length: f64,
    evaluate: &mut Evaluate<'_>,
) -> Result<Option<Point>, RoutingError> {
    for _ in 0..HALVINGS {
        let place: Vec<f64> = from.place.iter().zip(direction).map(|(x, d)| x + length * d).collect();
        let mut gradient = vec![0.0; place.len()];
        let value = evaluate(&place, &mut gradient)?;
        if value <= from.value + SUFFICIENT * length * slope {
            return Ok(Some(Point { place, value, gradient }));
        }
        length /= 2.0;
    }
    Ok(None)
}

/// The negative gradient times an approximation of the inverse curvature: the two-loop recursion, which needs no matrix.
fn descent(gradient: &[f64], history: &VecDeque<Step>) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut weights = Vec::with_capacity(history.len());
    for step in history.iter().rev() {
        let weight = dot(&step.moved, &direction) / step.curvature;
        add(&mut direction, -weight, &step.change);
        weights.push(weight);
    }
    // The newest step gives the scale of the directions that no remembered step covers.
    if let Some(newest) = history.back() {
        let scale = newest.curvature / dot(&newest.change, &newest.change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (step, weight) in history.iter().zip(weights.into_iter().rev()) {
        let back = dot(&step.change, &direction) / step.curvature;
        add(&mut direction, weight - back, &step.moved);
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
