//! Refuses outer gradients that are out of all proportion.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

use crate::FragmentId;

/// Norms that are remembered for each fragment.
const REMEMBERED: usize = 16;
/// Norms without which nothing is refused.
const NEEDED: usize = 4;

/// An outer gradient that is out of all proportion.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error(
    "its norm {norm:.3e} is more than outer.guard = {factor} times the median {median:.3e} of the last ones of {fragment}: its \
     worker's machine or training is broken; look at its losses, or raise outer.guard"
)]
pub struct OutOfProportion {
    /// The fragment.
    pub fragment: FragmentId,
    /// The outer gradient's norm.
    pub norm: f64,
    /// The median of the norms that were remembered.
    pub median: f64,
    /// How many times the median is the limit.
    pub factor: f64,
}

/// Compares the norm of each outer gradient with those of the last ones of its fragment.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    factor: f64,
    recent: BTreeMap<FragmentId, VecDeque<f64>>,
}

impl Guard {
    /// Refuses norms of more than `factor` times the median of the last ones; 0 refuses nothing.
    #[must_use]
    pub fn new(factor: f64) -> Self {
        Self { factor, recent: BTreeMap::new() }
    }

    /// Looks at an outer gradient, and remembers its norm when it is not refused.
    ///
    /// # Errors
    /// When it is out of all proportion.
    pub fn look(&mut self, fragment: FragmentId, norm: f64) -> Result<(), OutOfProportion> {
        let recent = self.recent.entry(fragment).or_default();
        let mut sorted: Vec<f64> = recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let factor = self.factor;
        // Where nothing has moved yet, nothing can be compared.
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
        // What was refused is forgotten; other units and those at rest are not compared.
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
