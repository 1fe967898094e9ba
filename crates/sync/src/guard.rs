//! Guard against outer gradients of extreme norm.

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

/// Compares the norm of an outer gradient with other norms of its fragment. The caller keeps the norms, so that a
/// restart forgets none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    factor: f64,
}

impl Guard {
    /// A guard that allows norms up to `factor` times the median; 0 allows all.
    #[must_use]
    pub fn new(factor: f64) -> Self {
        Self { factor }
    }

    /// Checks the norm of an outer gradient against `counted`, the last norms of the fragment that count.
    ///
    /// # Errors
    /// When the norm is too large.
    pub fn check(&self, fragment: FragmentId, counted: &[f64], norm: f64) -> Result<(), OutOfProportion> {
        match self.limit(counted) {
            Some(Limit { median, largest }) if counted.len() >= NEEDED && norm > largest => {
                Err(OutOfProportion { fragment, norm, median, factor: self.factor })
            }
            _ => Ok(()),
        }
    }

    /// Adds a norm that counts to the remembered norms of its fragment.
    pub fn remember(counted: &mut Vec<f64>, norm: f64) {
        counted.push(norm);
        counted.drain(..counted.len().saturating_sub(REMEMBERED));
    }

    /// The factors that reduce the contributions to one outer step to the largest norm in proportion, at most 1 each.
    /// The contributions are compared with each other, so this works from the first outer step on.
    #[must_use]
    pub fn reductions(&self, norms: &[f64]) -> Vec<f32> {
        let limit = self.limit(norms);
        let factor = |&norm: &f64| match limit {
            Some(Limit { largest, .. }) if norm > largest => (largest / norm) as f32,
            _ => 1.0,
        };
        norms.iter().map(factor).collect()
    }

    /// The limit that follows from some norms; `None` if they have no scale. Of two norms in the middle the smaller one
    /// is the median: one of two paths may lie.
    fn limit(&self, norms: &[f64]) -> Option<Limit> {
        let mut sorted = norms.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
        (self.factor > 0.0 && median > 0.0).then_some(Limit { median, largest: self.factor * median })
    }
}

/// Largest norm in proportion, and the median from which it follows.
#[derive(Clone, Copy)]
struct Limit {
    median: f64,
    largest: f64,
}

#[cfg(test)]
mod tests {
    use dipaco_topology::ModuleId;

    use super::*;

    #[test]
    fn a_norm_out_of_proportion_is_refused_once_there_is_something_to_compare() {
        let fragment = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };
        let guard = Guard::new(10.0);
        let counted = [1000.0, 1.0, 2.0, 3.0];
        guard.check(fragment, &counted[..3], 1e9).unwrap();
        let refused = guard.check(fragment, &counted, 21.0).unwrap_err();
        assert_eq!((refused.norm, refused.median), (21.0, 2.0));
        assert!(refused.to_string().contains("outer.guard = 10"), "{refused}");
        guard.check(fragment, &counted, 20.0).unwrap();
        // Fragments at rest are not compared, and a factor of 0 allows all.
        guard.check(fragment, &[0.0; 16], 1e9).unwrap();
        Guard::new(0.0).check(fragment, &counted, 1e30).unwrap();
    }

    #[test]
    fn the_newest_norms_are_remembered() {
        let mut counted = Vec::new();
        (0..40).for_each(|norm| Guard::remember(&mut counted, f64::from(norm)));
        assert_eq!(counted, (24..40).map(f64::from).collect::<Vec<_>>());
    }

    #[test]
    fn the_contributions_to_a_step_are_compared_with_each_other() {
        let guard = Guard::new(10.0);
        assert_eq!(guard.reductions(&[1.0, 2.0, 3.0, 2e9]), [1.0, 1.0, 1.0, 1e-8]);
        assert_eq!(guard.reductions(&[4e9, 2.0]), [5e-9, 1.0], "one of two paths");
        assert_eq!(guard.reductions(&[1.0, 9.9]), [1.0, 1.0]);
        assert_eq!(guard.reductions(&[5.0]), [1.0]);
        assert_eq!(guard.reductions(&[0.0, 0.0, 1.0]), [1.0, 1.0, 1.0]);
        assert_eq!(Guard::new(0.0).reductions(&[1.0, 1e30]), [1.0, 1.0]);
    }
}
