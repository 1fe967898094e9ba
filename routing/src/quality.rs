//! Agreement of paths with labels that the router never saw.

use serde::{Deserialize, Serialize};

use crate::RoutingError;

/// Number of documents of each path and label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contingency {
    paths: usize,
    labels: usize,
    /// Documents (P, L), row-major.
    counts: Vec<u64>,
}

impl Contingency {
    /// A table without documents.
    #[must_use]
    pub fn new(paths: usize, labels: usize) -> Self {
        Self { paths, labels, counts: vec![0; paths.saturating_mul(labels)] }
    }

    /// Counts a document.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if there is no such path or label.
    pub fn add(&mut self, path: usize, label: usize) -> Result<(), RoutingError> {
        for (what, number, count) in
            [("the path of a document", path, self.paths), ("the label of a document", label, self.labels)]
        {
            if number >= count {
                return Err(RoutingError::Mismatch {
                    what,
                    expected: format!("a number below {count}"),
                    actual: number.to_string(),
                    remedy: "take the router and the labels of one run",
                });
            }
        }
        self.counts[path * self.labels + label] += 1;
        Ok(())
    }

    /// Documents of a path by label (L).
    #[must_use]
    pub fn row(&self, path: usize) -> &[u64] {
        self.counts.get(path * self.labels..(path + 1) * self.labels).unwrap_or_default()
    }

    /// Number of all documents.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Share of the documents with the most frequent label of their path: 1 if every path has one label. The number of
    /// paths alone raises it, so it compares only routers with equally many paths. 0 without documents.
    #[must_use]
    pub fn purity(&self) -> f64 {
        let most: u64 = (0..self.paths).map(|path| self.row(path).iter().copied().max().unwrap_or(0)).sum();
        if most == 0 { 0.0 } else { most as f64 / self.documents() as f64 }
    }

    /// Mutual information of paths and labels, divided by the mean of the two entropies: 1 if each determines the other, 0
    /// if they are independent. 1 for a single path and label, 0 without documents.
    #[must_use]
    pub fn nmi(&self) -> f64 {
        let total = self.documents() as f64;
        if total == 0.0 {
            return 0.0;
        }
        let by_path: Vec<u64> = (0..self.paths).map(|path| self.row(path).iter().sum()).collect();
        let mut by_label = vec![0u64; self.labels];
        for path in 0..self.paths {
            by_label.iter_mut().zip(self.row(path)).for_each(|(sum, count)| *sum += count);
        }
        let entropy = |counts: &[u64]| -> f64 {
            let shares = counts.iter().filter(|&&count| count > 0).map(|&count| count as f64 / total);
            shares.map(|share| -share * share.ln()).sum()
        };
        let mean = (entropy(&by_path) + entropy(&by_label)) / 2.0;
        if mean <= 0.0 {
            return 1.0;
        }
        let mut information = 0.0;
        for (path, &of_path) in by_path.iter().enumerate() {
            for (&count, &of_label) in self.row(path).iter().zip(&by_label) {
                if count > 0 {
                    let joint = count as f64 / total;
                    information += joint * (joint * total * total / (of_path as f64 * of_label as f64)).ln();
                }
            }
        }
        (information / mean).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(paths: &[usize], labels: &[usize]) -> Contingency {
        let mut table = Contingency::new(5, 4);
        paths.iter().zip(labels).for_each(|(&path, &label)| table.add(path, label).unwrap());
        table
    }

    /// Values of scikit-learn 1.9: `normalized_mutual_info_score`, and purity from its `contingency_matrix`.
    #[test]
    fn purity_and_nmi_are_those_of_scikit_learn() {
        let cases: [(&[usize], &[usize], f64, f64); 4] = [
            (&[0, 0, 1, 1, 2, 2, 3, 3], &[0, 1, 0, 1, 2, 2, 3, 3], 0.75, 0.75),
            (&[0, 0, 0, 1, 1, 1, 2, 2, 2, 4], &[0, 0, 1, 1, 1, 2, 2, 0, 2, 3], 0.7, 0.5639763189318379),
            (&[0, 1, 2, 3, 4, 0, 1, 2, 3, 4], &[0, 0, 0, 0, 0, 1, 1, 1, 1, 1], 0.5, 0.0),
            (&[3, 3, 3, 3, 1], &[2, 2, 2, 0, 0], 0.8, 0.38033214891787165),
        ];
        for (paths, labels, purity, nmi) in cases {
            let table = of(paths, labels);
            assert!((table.purity() - purity).abs() < 1e-12, "{} for {purity}", table.purity());
            assert!((table.nmi() - nmi).abs() < 1e-12, "{} for {nmi}", table.nmi());
        }
    }

    #[test]
    fn names_do_not_matter_and_the_ends_are_reached() {
        let (paths, labels) = ([0, 0, 1, 1, 2, 2], [3, 3, 0, 0, 1, 1]);
        let table = of(&paths, &labels);
        assert_eq!((table.purity(), table.nmi()), (1.0, 1.0));
        assert_eq!(table.row(1), [2, 0, 0, 0]);
        assert_eq!(of(&[2; 4], &[1; 4]).nmi(), 1.0);
        assert_eq!(of(&[0; 4], &[0, 1, 2, 3]).nmi(), 0.0);
        assert_eq!((of(&[], &[]).purity(), of(&[], &[]).nmi()), (0.0, 0.0));
    }

    #[test]
    fn paths_and_labels_that_are_not_there_are_refused() {
        let mut table = Contingency::new(2, 3);
        assert!(table.add(2, 0).is_err());
        let message = table.add(0, 3).unwrap_err().to_string();
        assert!(message.contains("label") && message.contains("below 3"), "{message}");
        assert_eq!((table.documents(), table.row(7).len()), (0, 0));
    }
}
