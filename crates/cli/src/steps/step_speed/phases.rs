//! Where the time of a training step goes.

use dipaco_train::Trainer;
use serde::Serialize;

/// Seconds, by what was computed in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Phases {
    /// Matrix products of the blocks.
    pub(crate) products: f64,
    /// Attention.
    pub(crate) attention: f64,
    /// The output projection and the loss.
    pub(crate) head: f64,
    /// Clipping and AdamW.
    pub(crate) optimizer: f64,
    /// Norms, rotary positions, the embedding, and what is between the parts.
    pub(crate) rest: f64,
}

impl Phases {
    /// What a trainer has counted so far.
    //
    // PLUG IN: the trainer's own counts; until then everything is rest.
    pub(crate) fn of(_trainer: &Trainer) -> Self {
        Self::default()
    }

    /// The phases of one step: what was counted since `before`, divided by the steps; the rest is what is left of
    /// `seconds`, the duration of a step.
    pub(crate) fn per_step(self, before: Self, steps: usize, seconds: f64) -> Self {
        let each = |now: f64, before: f64| (now - before) / steps.max(1) as f64;
        let counted = Self {
            products: each(self.products, before.products),
            attention: each(self.attention, before.attention),
            head: each(self.head, before.head),
            optimizer: each(self.optimizer, before.optimizer),
            rest: 0.0,
        };
        let sum = counted.products + counted.attention + counted.head + counted.optimizer;
        Self { rest: (seconds - sum).max(0.0), ..counted }
    }

    /// The phases with their names.
    pub(crate) fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("products", self.products),
            ("attention", self.attention),
            ("head", self.head),
            ("optimizer", self.optimizer),
            ("rest", self.rest),
        ]
    }

    /// The same in milliseconds.
    pub(crate) fn in_milliseconds(self) -> Self {
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
        let before = Phases { products: 1.0, ..Phases::default() };
        let after = Phases { products: 5.0, attention: 1.0, head: 0.5, optimizer: 0.5, rest: 7.0 };
        let phases = after.per_step(before, 2, 4.0);
        let expected = Phases { products: 2.0, attention: 0.5, head: 0.25, optimizer: 0.25, rest: 1.0 };
        assert_eq!(phases, expected);
        assert_eq!(phases.named().iter().map(|(_, seconds)| seconds).sum::<f64>(), 4.0);
    }
}
