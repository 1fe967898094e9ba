//! Guard against outer gradients of extreme norm.

use std::collections::BTreeMap;

use dipaco_topology::PathId;
use thiserror::Error;

use crate::FragmentId;
use crate::median::lower_median;

/// Number of norms remembered per fragment. Each path has the same share of them, at least one.
const REMEMBERED: usize = 16;
/// Largest number of norms remembered per fragment: with so many paths, those of the last ones.
const MOST: usize = 64;
/// Number of norms needed before the guard refuses anything.
const NEEDED: usize = 4;

/// An outer gradient whose norm is too large.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error(
    "its norm {norm:.3e} is more than outer.guard = {factor} times the median {median:.3e} of the last ones of \
     the paths of {fragment}: its worker's machine or training is broken; look at its losses, or raise outer.guard"
)]
pub struct OutOfProportion {
    /// The fragment.
    pub fragment: FragmentId,
    /// Norm of the outer gradient.
    pub norm: f64,
    /// Median over the paths of their remembered norms.
    pub median: f64,
    /// Limit as a multiple of the median.
    pub factor: f64,
}

/// The last norms of a fragment's outer gradients that count, by path, the newest last. A path that contributes more often
/// than the others has no more of them, so one worker can't move the median.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountedNorms(Vec<(PathId, f64)>);

impl CountedNorms {
    /// Adds the norm of a path's outer gradient.
    pub fn remember(&mut self, path: PathId, norm: f64) {
        self.0.push((path, norm));
        let of_paths = self.of_paths();
        let share = REMEMBERED.div_ceil(of_paths.len());
        // More than one is too many when paths have come since: each has a smaller share then.
        let mut excess = of_paths.get(&path).map_or(0, Vec::len).saturating_sub(share);
        self.0.retain(|&(of, _)| {
            let dropped = of == path && excess > 0;
            excess -= usize::from(dropped);
            !dropped
        });
        self.0.drain(..self.0.len().saturating_sub(MOST));
    }

    /// The norms with their paths, the newest last.
    pub fn iter(&self) -> impl Iterator<Item = (PathId, f64)> + '_ {
        self.0.iter().copied()
    }

    fn of_paths(&self) -> BTreeMap<PathId, Vec<f64>> {
        let mut of_paths = BTreeMap::<_, Vec<_>>::new();
        self.iter().for_each(|(path, norm)| of_paths.entry(path).or_default().push(norm));
        of_paths
    }

    /// The median over the paths of the median of each. Of two paths the larger norm counts: a liar's small gradients
    /// must not make those of an honest path too large. `None` without norms.
    fn median(&self) -> Option<f64> {
        let mut of_paths: Vec<f64> =
            self.of_paths().values().filter_map(|norms| lower_median(norms)).collect();
        of_paths.sort_by(f64::total_cmp);
        of_paths.get(of_paths.len() / 2).copied()
    }
}

impl FromIterator<(PathId, f64)> for CountedNorms {
    fn from_iter<I: IntoIterator<Item = (PathId, f64)>>(norms: I) -> Self {
        Self(norms.into_iter().collect())
    }
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
    pub fn check(
        &self,
        fragment: FragmentId,
        counted: &CountedNorms,
        norm: f64,
    ) -> Result<(), OutOfProportion> {
        match counted.median().and_then(|median| self.limit(median)) {
            Some(Limit { median, largest }) if counted.0.len() >= NEEDED && norm > largest => {
                Err(OutOfProportion { fragment, norm, median, factor: self.factor })
            }
            _ => Ok(()),
        }
    }

    /// The factors that reduce the contributions to one outer step to the largest norm in proportion, at most 1 each.
    /// The contributions are compared with each other, so this works from the first outer step on. Of two norms in the
    /// middle the smaller one is the median: a contribution that is reduced wrongly costs a step of its module, and one that
    /// is too large may cost the module.
    #[must_use]
    pub fn reductions(&self, norms: &[f64]) -> Vec<f32> {
        let limit = lower_median(norms).and_then(|median| self.limit(median));
        let factor = |&norm: &f64| match limit {
            Some(Limit { largest, .. }) if norm > largest => (largest / norm) as f32,
            _ => 1.0,
        };
        norms.iter().map(factor).collect()
    }

    /// The limit that follows from a median; `None` if the norms have no scale.
    fn limit(&self, median: f64) -> Option<Limit> {
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

    const FRAGMENT: FragmentId = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };

    /// These norms, of these paths.
    fn counted<const N: usize>(norms: [(u32, f64); N]) -> CountedNorms {
        let mut counted = CountedNorms::default();
        norms.into_iter().for_each(|(path, norm)| counted.remember(PathId(path), norm));
        counted
    }

    #[test]
    fn a_norm_out_of_proportion_is_refused_once_there_is_something_to_compare() {
        let guard = Guard::new(10.0);
        let three = [(0, 1000.0), (1, 1.0), (2, 2.0)];
        guard.check(FRAGMENT, &counted(three), 1e9).unwrap();
        let four = counted([three[0], three[1], three[2], (2, 2.0)]);
        let refused = guard.check(FRAGMENT, &four, 21.0).unwrap_err();
        assert_eq!((refused.norm, refused.median), (21.0, 2.0));
        assert!(refused.to_string().contains("outer.guard = 10"), "{refused}");
        guard.check(FRAGMENT, &four, 20.0).unwrap();
        // Fragments at rest are not compared, and a factor of 0 allows all.
        guard.check(FRAGMENT, &counted([(0, 0.0); 16]), 1e9).unwrap();
        Guard::new(0.0).check(FRAGMENT, &four, 1e30).unwrap();
    }

    #[test]
    fn a_path_alone_is_compared_with_itself() {
        let alone = counted([(0, 1.0), (0, 2.0), (0, 3.0), (0, 2.0)]);
        Guard::new(10.0).check(FRAGMENT, &alone, 21.0).unwrap_err();
        Guard::new(10.0).check(FRAGMENT, &alone, 20.0).unwrap();
    }

    #[test]
    fn tiny_gradients_of_one_path_make_no_other_path_too_large() {
        let guard = Guard::new(100.0);
        let two = counted([(0, 1.0), (1, 1e-3), (0, 1.0), (1, 1e-3), (1, 1e-3), (1, 1e-3)]);
        guard.check(FRAGMENT, &two, 1.0).unwrap();
        guard.check(FRAGMENT, &two, 101.0).unwrap_err();
        let three = counted([(0, 1.0), (1, 1e-3), (2, 1.0), (1, 1e-3), (1, 1e-3), (1, 1e-3)]);
        guard.check(FRAGMENT, &three, 100.0).unwrap();
    }

    #[test]
    fn a_path_that_contributes_more_often_moves_the_median_no_further() {
        let guard = Guard::new(100.0);
        let mut norms = counted([(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)]);
        for norm in [99.0; 32] {
            norms.remember(PathId(3), norm);
        }
        guard.check(FRAGMENT, &norms, 100.1).unwrap_err();
        assert_eq!(norms.iter().filter(|&(path, _)| path == PathId(3)).count(), 4);
    }

    #[test]
    fn a_path_keeps_its_smaller_share_when_others_have_come() {
        let mut norms = counted([(0, 1.0); 16]);
        (1..4).for_each(|path| norms.remember(PathId(path), 1.0));
        norms.remember(PathId(0), 2.0);
        let own: Vec<_> = norms.iter().filter(|&(path, _)| path == PathId(0)).collect();
        assert_eq!(own, [1.0, 1.0, 1.0, 2.0].map(|norm| (PathId(0), norm)));
    }

    #[test]
    fn the_newest_norms_are_remembered_also_after_a_restart() {
        let mut counted = CountedNorms::default();
        (0..40).for_each(|norm| counted.remember(PathId(5), f64::from(norm)));
        let newest: Vec<_> = (24..40).map(|norm| (PathId(5), f64::from(norm))).collect();
        assert_eq!(counted.iter().collect::<Vec<_>>(), newest);
        assert_eq!(newest.into_iter().collect::<CountedNorms>(), counted);
        (0..200).for_each(|path| counted.remember(PathId(path), 1.0));
        assert_eq!(
            counted.iter().map(|(path, _)| path.0).collect::<Vec<_>>(),
            (136..200).collect::<Vec<_>>()
        );
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
