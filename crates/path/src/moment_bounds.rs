//! Bounds that the moments of every trained path keep, and that make the moments of a liar harmless.
//!
//! AdamW starts with `m = v = 0` and takes `m ← β₁ m + (1 - β₁) g`, `v ← β₂ v + (1 - β₂) g²`. After t steps
//!
//! ```text
//! m = (1 - β₁) Σ β₁ʲ gⱼ,   v = (1 - β₂) Σ β₂ʲ gⱼ²,   j = 0 … t - 1 steps ago
//! ```
//!
//! - **The pair.** By Cauchy–Schwarz `m² ≤ (1 - β₁)² Σ (β₁² / β₂)ʲ · Σ β₂ʲ gⱼ² = c² v`, with
//!   `c² = (1 - β₁)² / (1 - β₂) · Σ (β₁² / β₂)ʲ` over t steps. So the next step moves no weight by much more than its
//!   learning rate, also with `v = 0`. If `β₁² ≥ β₂` the sum grows with t, because in honest training v then fades before
//!   m: after some steps only the norm bounds m.
//! - **The norm.** Clipping bounds the norm of each gradient over all tensors of the path, so the norm of all m of a state
//!   is at most `(1 - β₁) Σ β₁ʲ` times `clip_norm`, and the sum of all v at most `(1 - β₂) Σ β₂ʲ` times its square. A
//!   liar can therefore slow down a path of N weights no more than N honest gradients of the largest norm do.
//!   Muon's momentum is a mean of gradients as well.
//!
//! Frozen levels and synchronous training have no moments.
//!
//! In f32 each step multiplies the old moment by `1 ± ROUNDING`. The sums above have their β enlarged by that, so they
//! hold for any number of steps. What is too small for f32 is lost: at most `UNDERFLOW` of v a step.
//!
//! With `train.state_dtype = "bf16"` each lease ends with a rounding that multiplies a moment by `1 ± u`, `u = 2⁻⁸`. A lease
//! has at least n steps, so the gradient of j steps ago has seen at most `1 + j / n` of these roundings. Its factor in m or v is
//! at most `(1 + u)(1 + u)^(j / n)` times as large: a factor `1 + u` of the sum, and a β that is enlarged by
//! `(1 + u)^(1 / n)`. The pair has the largest m beside the smallest v: each rounding counts `(1 + u)² / (1 - u)` in c².
//! The configuration sees to it that `βⁿ (1 + u) < 1`, so the bounds stay finite. With the default βs they are
//! at most 1.3 % wider than those of f32 with n = 30, and 18 % with n = 1.

use dipaco_optim::{AdamWConfig, MUON_MOMENTUM};
use dipaco_protocol::WorkerPlan;

/// Relative error of an old moment in a step, at most: the roundings of β, of its product and of the sum, of half an ulp
/// each, and one to spare.
const ROUNDING: f64 = 2.0 * f32::EPSILON as f64;
/// What a step loses of a second moment below the normal numbers of f32, at most: two products and a sum, on a device that
/// takes such numbers for 0, and the rounding to bf16, which has the same normal numbers.
const UNDERFLOW: f64 = 4.0 * f32::MIN_POSITIVE as f64;
/// Room for the roundings that do not add up over the steps, and for the norm of a gradient that a GPU sums up in f32.
const SLACK: f64 = 1.001;
/// Largest sum of squares that is no violation without any gradient: numbers that are too small to fade in f32.
const SMALLEST: f64 = 1e-30;
/// Largest magnitude of a gradient's element without clipping, or with a larger `clip_norm`. Nothing bounds such gradients,
/// but their squares must fit into f32. In training that does not diverge they are below 1,000.
const LARGEST_GRADIENT: f64 = 1e6;

/// The rounding of moments at the ends of leases.
#[derive(Clone, Copy, Debug)]
struct LeaseRounding {
    /// u, the largest relative error of one.
    error: f64,
    /// n, the fewest steps of a lease.
    steps: u64,
}

impl LeaseRounding {
    /// The rounding of the leases of a plan.
    fn of_plan(plan: &WorkerPlan) -> Self {
        let steps = plan.sync.shortest_lease(plan.train.inner_steps);
        Self { error: plan.train.state_dtype.rounding(), steps }
    }

    /// The share of a step in the factor of each rounding.
    fn of_step(self, factor: f64) -> f64 {
        factor.powf(1.0 / self.steps.max(1) as f64)
    }
}

/// The kinds of moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MomentKind {
    /// AdamW's first moment.
    First,
    /// AdamW's second moment.
    Second,
    /// Muon's momentum.
    Momentum,
}

/// Bounds of one kind of moments.
#[derive(Clone, Copy, Debug)]
struct KindBounds {
    /// Largest magnitude of an element.
    element: f32,
    /// Largest sum over a state: of the squares of first moments, and of second moments, which are squares.
    sum: f64,
}

/// The bounds after a number of inner steps.
#[derive(Clone, Debug)]
pub(crate) struct MomentBounds {
    first: KindBounds,
    second: KindBounds,
    momentum: KindBounds,
    /// c.
    ratio: f32,
    /// Added to the root of a second moment: AdamW's own epsilon, as in its steps, but at least what v has lost.
    floor: f32,
}

impl MomentBounds {
    /// The bounds of moments of a plan that have seen at most so many steps.
    pub(crate) fn of_plan(plan: &WorkerPlan, steps: u64) -> Self {
        Self::new(&plan.train.adamw, LeaseRounding::of_plan(plan), steps)
    }

    fn new(adamw: &AdamWConfig, rounding: LeaseRounding, steps: u64) -> Self {
        let &AdamWConfig { beta1, beta2, epsilon, clip_norm, .. } = adamw;
        let steps = steps.max(1) as f64;
        let clip = if clip_norm > 0.0 { clip_norm } else { f64::INFINITY };
        let element = clip.min(LARGEST_GRADIENT);
        let (up, down) = (1.0 + rounding.error, 1.0 - rounding.error);
        // A running mean of values of at most 1.
        let mean = |beta: f64, steps: f64| {
            (1.0 - beta) * powers(beta * (1.0 + ROUNDING) * rounding.of_step(up), steps) * up * SLACK
        };
        // Below the normal numbers a rounding is no relative error.
        let bounds = |element: f64, sum: f64| KindBounds {
            element: element as f32 + f32::MIN_POSITIVE,
            sum: sum + SMALLEST,
        };
        let of_mean = |mean: f64| bounds(mean * element, (mean * clip).powi(2));
        let second = mean(beta2, steps) * SLACK;
        let apart = up * up / down;
        let fading = if beta1 > 0.0 {
            beta1 * beta1 / beta2 * (1.0 + 4.0 * ROUNDING) * rounding.of_step(apart)
        } else {
            0.0
        };
        let ratio = (1.0 - beta1) * (powers(fading, steps) / (1.0 - beta2) * apart).sqrt() * SLACK;
        let lost = (UNDERFLOW / (1.0 - beta2)).sqrt();
        Self {
            first: of_mean(mean(beta1, steps)),
            second: bounds(second * element * element, second * clip * clip),
            // Of any number of steps: its decay is fixed and far from 1.
            momentum: of_mean(mean(MUON_MOMENTUM.into(), f64::INFINITY)),
            ratio: ratio as f32,
            floor: epsilon.max(lost) as f32,
        }
    }

    /// The bounds of a kind.
    fn of(&self, kind: MomentKind) -> KindBounds {
        match kind {
            MomentKind::First => self.first,
            MomentKind::Second => self.second,
            MomentKind::Momentum => self.momentum,
        }
    }

    /// Largest magnitude of the first moment beside this second moment.
    fn largest_first(&self, second: f32) -> f32 {
        self.ratio * (second.sqrt() + self.floor)
    }
}

/// `1 + base + base² + …`, so many terms; infinite if that is too large.
fn powers(base: f64, terms: f64) -> f64 {
    if (base - 1.0).abs() < f64::EPSILON {
        return terms;
    }
    let sum = (terms * base.ln()).exp_m1() / (base - 1.0);
    if sum.is_nan() { f64::INFINITY } else { sum }
}

/// The comparison of a state's moments with their bounds. Tensors may come in any order, and in parts.
#[derive(Debug)]
pub(crate) struct MomentCheck {
    bounds: MomentBounds,
    /// The sums so far, as in [`KindBounds::sum`].
    first: f64,
    second: f64,
    momentum: f64,
}

impl MomentCheck {
    /// Begins a state.
    pub(crate) fn new(bounds: MomentBounds) -> Self {
        Self { bounds, first: 0.0, second: 0.0, momentum: 0.0 }
    }

    /// Adds moments of a tensor from its element `begin` on. Returns the first violation of an element's bounds.
    pub(crate) fn add(
        &mut self,
        kind: MomentKind,
        tensor: &str,
        begin: usize,
        values: &[f32],
    ) -> Option<String> {
        let most = self.bounds.of(kind).element;
        if kind == MomentKind::Second
            && !all(values, |moment| moment >= 0.0)
            && let Some(at) = values.iter().position(|moment| *moment < 0.0)
        {
            return Some(format!("second moment {} of {tensor} is negative", begin + at));
        }
        if let Some((at, moment)) = first_beyond(values, most) {
            let name = name_of(kind);
            return Some(format!(
                "{name} {} of {tensor} is {moment:e}, at most {most:e} is possible",
                begin + at
            ));
        }
        match kind {
            MomentKind::First => self.first += sum(values, |moment| moment * moment),
            MomentKind::Momentum => self.momentum += sum(values, |moment| moment * moment),
            MomentKind::Second => self.second += sum(values, |moment| moment),
        }
        None
    }

    /// The first violation among pairs of AdamW's moments, of a tensor from its element `begin` on.
    pub(crate) fn pairs(&self, tensor: &str, begin: usize, first: &[f32], second: &[f32]) -> Option<String> {
        let all = dipaco_ops::with_vector_units(
            #[inline(always)]
            || {
                let possible =
                    |(&moment, &second): (&f32, &f32)| within(moment, self.bounds.largest_first(second));
                first.iter().zip(second).fold(true, |all, pair| all & possible(pair))
            },
        );
        if all {
            return None;
        }
        let mut pairs = first.iter().zip(second).enumerate();
        let (at, (moment, second)) =
            pairs.find(|(_, (moment, second))| !within(**moment, self.bounds.largest_first(**second)))?;
        let most = self.bounds.largest_first(*second);
        Some(format!(
            "first moment {} of {tensor} is {moment:e}, with a second moment of {second:e} at most {most:e} is possible",
            begin + at
        ))
    }

    /// Adds the moments of another check with the same bounds.
    pub(crate) fn join(&mut self, other: &Self) {
        self.first += other.first;
        self.second += other.second;
        self.momentum += other.momentum;
    }

    /// Ends the state. Returns the violation of a bound of all its moments together.
    pub(crate) fn end(self) -> Option<String> {
        let sums = [
            (MomentKind::First, self.first, "squares of first moments"),
            (MomentKind::Second, self.second, "second moments"),
            (MomentKind::Momentum, self.momentum, "squares of the momentum"),
        ];
        sums.into_iter().find_map(|(kind, sum, name)| {
            let most = self.bounds.of(kind).sum;
            (sum > most).then(|| format!("the sum of its {name} is {sum:e}, at most {most:e} is possible"))
        })
    }
}

/// True if the magnitude of a value is at most `most`. Neither NaN nor infinity is.
pub(crate) fn within(value: f32, most: f32) -> bool {
    value.abs() <= most.min(f32::MAX)
}

/// The first value whose magnitude is more than `most` or not finite, with its place.
pub(crate) fn first_beyond(values: &[f32], most: f32) -> Option<(usize, f32)> {
    if all(values, |value| within(value, most)) {
        return None;
    }
    values.iter().copied().enumerate().find(|&(_, value)| !within(value, most))
}

/// True if all values pass a check. It looks at all of them, without a branch, so that vector units can.
fn all(values: &[f32], passes: impl Fn(f32) -> bool) -> bool {
    dipaco_ops::with_vector_units(
        #[inline(always)]
        || values.iter().fold(true, |all, &value| all & passes(value)),
    )
}

/// The sum of a function of all values. Its order is that of the values, whatever the machine.
fn sum(values: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    // One sum would wait for itself at each value.
    let mut sums = [0.0; 16];
    let (whole, rest) = values.as_chunks::<16>();
    dipaco_ops::with_vector_units(
        #[inline(always)]
        || {
            for values in whole {
                for (sum, &value) in sums.iter_mut().zip(values) {
                    *sum += of(f64::from(value));
                }
            }
        },
    );
    sums.into_iter().sum::<f64>() + rest.iter().map(|&value| of(f64::from(value))).sum::<f64>()
}

/// The name of a kind in a message.
fn name_of(kind: MomentKind) -> &'static str {
    match kind {
        MomentKind::First => "first moment",
        MomentKind::Second => "second moment",
        MomentKind::Momentum => "momentum",
    }
}

#[cfg(test)]
mod tests;
