//! Guard against outer gradients of extreme norm.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

use crate::FragmentId;

/// Number of norms remembered per fragment.
const REMEMBERED: usize = 16;
/// Number of norms needed before the guard refuses anything.
const NEEDED: usize = 4;

/// An outer gradient whose norm is too large.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error(
    "its norm {norm:.3e} is more than outer.guard = {factor} times the median {median:.3e} of the last ones of {fragment}: its \
     worker's machine or training is broken; look at its losses, or raise outer.guard"
)]
pub struct OutOfProportion {
    /// The fragment.
    pub fragment: FragmentId,
    /// Norm of the outer gradient.
    pub norm: f64,
    /// Median of the remembered norms.
    pub median: f64,
    /// Limit as a multiple of the median.
    pub factor: f64,
}

/// Compares the norm of each outer gradient with the last norms of its fragment.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    factor: f64,
    recent: BTreeMap<FragmentId, VecDeque<f64>>,
}

impl Guard {
    /// A guard that refuses norms above `factor` times the median; 0 refuses nothing.
    #[must_use]
    pub fn new(factor: f64) -> Self {
        Self { factor, recent: BTreeMap::new() }
    }

    /// Checks the norm of an outer gradient, and remembers it if it passes.
    ///
    /// # Errors
    /// When the norm is too large.
    pub fn look(&mut self, fragment: FragmentId, norm: f64) -> Result<(), OutOfProportion> {
        let recent = self.recent.entry(fragment).or_default();
        let mut sorted: Vec<f64> = recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let factor = self.factor;
        // A median of zero is no scale.
        if factor > 0.0 && sorted.len() >= NEEDED && median > 0.0 && norm > factor * median {
            return Err(OutOfProportion { fragment, norm, median, factor });
        }
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(norm);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::ModuleId;

    use super::*;

    #[test]
    fn a_norm_out_of_proportion_is_refused_once_there_is_something_to_compare() {
        let fragment = |index| FragmentId { module: ModuleId { level: 0, index }, index: 0 };
        let mut guard = Guard::new(10.0);
        for norm in [1000.0, 1.0, 2.0, 3.0] {
            guard.look(fragment(0), norm).unwrap();
        }
        let refused = guard.look(fragment(0), 31.0).unwrap_err();
        assert_eq!((refused.norm, refused.median), (31.0, 3.0));
        assert!(refused.to_string().contains("outer.guard = 10"), "{refused}");
        guard.look(fragment(0), 30.0).unwrap();
        // A refused norm is not remembered; other fragments, and fragments at rest, are not compared.
        guard.look(fragment(1), 1e9).unwrap();
        for _ in 0..20 {
            guard.look(fragment(0), 0.0).unwrap();
        }
        guard.look(fragment(0), 1e9).unwrap();
        let mut off = Guard::new(0.0);
        for norm in [1.0, 1.0, 1.0, 1.0, 1e30] {
            off.look(fragment(0), norm).unwrap();
        }
    }
}
