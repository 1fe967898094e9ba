//! What is sent when.

use serde::{Deserialize, Serialize};

use crate::SimulateError;

/// The most inner steps between two synchronisations of a fragment.
const MOST_STEPS: u32 = 1 << 16;

/// A synchronisation scheme, as far as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// H, inner steps between two synchronisations of the same parameters; 1 sends gradients in every step.
    pub inner_steps: u32,
    /// Fragments of the parameters, which are sent in turn, evenly over the H steps; 1 sends all at once.
    pub fragments: u32,
    /// τ, inner steps that go on while a fragment travels; 0 waits for it at the end of its step.
    pub overlap_steps: u32,
    /// Bits of each value on the wire.
    pub value_bits: f64,
}

impl Scheme {
    /// Gradients in every step, 16 bits.
    pub const DATA_PARALLEL: Self = Self { inner_steps: 1, fragments: 1, overlap_steps: 0, value_bits: 16.0 };

    /// DiLoCo (arXiv:2311.08105): everything every `inner_steps`, 16 bits.
    #[must_use]
    pub const fn diloco(inner_steps: u32) -> Self {
        Self { inner_steps, ..Self::DATA_PARALLEL }
    }

    /// Streaming DiLoCo (arXiv:2501.18512): fragments in turn while `overlap_steps` inner steps go on.
    #[must_use]
    pub const fn streaming(inner_steps: u32, fragments: u32, overlap_steps: u32, value_bits: f64) -> Self {
        Self { inner_steps, fragments, overlap_steps, value_bits }
    }

    /// Whether a fragment is sent at the end of inner step `step`, counted from 0.
    pub(crate) fn sends(&self, step: u64) -> bool {
        let fragment = |step: u64| {
            let (h, p) = (u64::from(self.inner_steps), u64::from(self.fragments));
            (step / h, step % h * p / h)
        };
        fragment(step) != fragment(step + 1)
    }

    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        let counts = [("inner steps", self.inner_steps), ("fragments", self.fragments)];
        for (what, value) in counts {
            if value == 0 || value > MOST_STEPS {
                let problem = "must be at least 1 and at most 65536";
                return Err(SimulateError { what, value: f64::from(value), problem });
            }
        }
        if self.fragments > self.inner_steps {
            let problem = "there can't be more than inner steps, for one is sent at the end of a step";
            return Err(SimulateError { what: "fragments", value: f64::from(self.fragments), problem });
        }
        SimulateError::positive("bits of a value", self.value_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_is_sent_once_in_h_steps() {
        for (h, p) in [(1, 1), (100, 1), (100, 8), (100, 36), (24, 24), (7, 3)] {
            let scheme = Scheme::streaming(h, p, 1, 4.0);
            for cycle in 0..3 {
                let first = cycle * u64::from(h);
                let sent = (first..first + u64::from(h)).filter(|&step| scheme.sends(step)).count();
                assert_eq!(sent, p as usize, "H = {h}, P = {p}");
            }
        }
        let all_at_the_end: Vec<u64> = (0..300).filter(|&step| Scheme::diloco(100).sends(step)).collect();
        assert_eq!(all_at_the_end, [99, 199, 299]);
    }
}
