//! The time of a training step, divided among its computations.

use serde::Serialize;

/// Seconds of each kind of computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTimes {
    /// Matrix products of the blocks.
    pub products: f64,
    /// Attention.
    pub attention: f64,
    /// The output projection and the loss.
    pub head: f64,
    /// Clipping and AdamW.
    pub optimizer: f64,
    /// Norms, rotary positions, the embedding, and the time between the parts.
    pub rest: f64,
}

impl PhaseTimes {
    /// The mean phases of a step, from the sums over `steps` steps. `rest` is the remainder of `seconds`, the duration of a
    /// step.
    pub fn per_step(sums: dipaco_model::Phases, steps: usize, seconds: f64) -> Self {
        let each = |sum: f64| sum / steps.max(1) as f64;
        let counted = Self {
            products: each(sums.products),
            attention: each(sums.attention),
            head: each(sums.head),
            optimizer: each(sums.optimizer),
            rest: 0.0,
        };
        let sum = counted.products + counted.attention + counted.head + counted.optimizer;
        Self { rest: (seconds - sum).max(0.0), ..counted }
    }

    /// The phases by name.
    pub fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("products", self.products),
            ("attention", self.attention),
            ("head", self.head),
            ("optimizer", self.optimizer),
            ("rest", self.rest),
        ]
    }

    /// The phases in milliseconds.
    pub fn in_milliseconds(self) -> Self {
        Self {
            products: self.products * 1e3,
            attention: self.attention * 1e3,
            head: self.head * 1e3,
            optimizer: self.optimizer * 1e3,
            rest: self.rest * 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_step() {
        let sums = dipaco_model::Phases { products: 4.0, attention: 1.0, head: 0.5, optimizer: 0.5 };
        let phases = PhaseTimes::per_step(sums, 2, 4.0);
        let expected = PhaseTimes { products: 2.0, attention: 0.5, head: 0.25, optimizer: 0.25, rest: 1.0 };
        assert_eq!(phases, expected);
        assert_eq!(phases.named().iter().map(|(_, seconds)| seconds).sum::<f64>(), 4.0);
    }
}
