//! The choice among the starts of k-means.

use super::Clustering;

/// A start whose inertia is at most this share above the lowest is as near to its points as the best one. In measured runs of
/// four paths the lowest inertia gave perplexities that differed by 15 % between seeds, and the most even such start 3.5 %
/// (`docs/results/routers.md`, "Even clusters").
const NEAR: f64 = 0.05;

/// The starts that may still be chosen: each other start had neither a lower inertia nor more even clusters than one of these.
#[derive(Debug, Default)]
pub(super) struct Starts(Vec<Clustering>);

impl Starts {
    /// Adds a start. Of equally good ones the first stays.
    pub(super) fn add(&mut self, start: Clustering) {
        let uneven = unevenness(&start);
        let covers = |known: &Clustering| known.inertia <= start.inertia && unevenness(known) <= uneven;
        if !self.0.iter().any(covers) {
            self.0.retain(|known| known.inertia < start.inertia || unevenness(known) < uneven);
            self.0.push(start);
        }
    }

    /// The most even start among those near the lowest inertia; `None` without a start.
    pub(super) fn best(self) -> Option<Clustering> {
        let lowest = self.0.iter().map(|start| start.inertia).min_by(f64::total_cmp)?;
        let near = self.0.into_iter().filter(|start| start.inertia <= lowest * (1.0 + NEAR));
        near.min_by_key(unevenness)
    }
}

/// Sum of the squared sizes of the clusters: the more even they are, the lower. Exact, so equal sizes in another order are equal.
fn unevenness(clustering: &Clustering) -> u128 {
    clustering.sizes.iter().map(|&size| u128::from(size).pow(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of the chosen start among starts of these inertias and sizes.
    fn chosen(starts: &[(f64, &[u64])]) -> Option<usize> {
        let mut all = Starts::default();
        for (place, &(inertia, sizes)) in starts.iter().enumerate() {
            let (centroids, assignments) = (Vec::new(), Vec::new());
            all.add(Clustering { centroids, assignments, sizes: sizes.to_vec(), inertia, iterations: place });
        }
        all.best().map(|best| best.iterations)
    }

    #[test]
    fn of_starts_near_the_lowest_inertia_the_most_even_one_is_chosen() {
        let (giant, middling, even): (&[u64], &[u64], &[u64]) = (&[90, 5, 5], &[50, 25, 25], &[34, 33, 33]);
        assert_eq!(
            chosen(&[(1.0, giant), (1.04, middling), (1.06, even)]),
            Some(1),
            "the even one is too far"
        );
        assert_eq!(chosen(&[(1.06, even), (1.04, middling), (1.02, giant)]), Some(0));
        assert_eq!(
            chosen(&[(1.06, even), (1.04, middling), (1.0, giant)]),
            Some(1),
            "the order does not matter"
        );
        assert_eq!(chosen(&[(1.0, even), (0.99, even)]), Some(1), "the lower inertia");
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn of_equal_starts_the_first_is_chosen() {
        assert_eq!(chosen(&[(1.0, &[2, 8]), (1.0, &[8, 2]), (1.0, &[2, 8])]), Some(0));
    }
}
