//! The statistic that merges the contributions to an outer step.

use serde::{Deserialize, Serialize};

/// Key `outer.merge`: how the contributions to an outer step become one outer gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Merge {
    /// The weighted mean. One contribution can move it anywhere within `outer.guard`.
    #[default]
    Mean,
    /// Centred clipping (arXiv:2012.10333), see [`Clipping`](crate::Clipping).
    Clipped,
    /// The coordinate-wise trimmed mean (arXiv:1803.01498), see [`TrimmedMean`](crate::TrimmedMean).
    Trimmed,
}

impl Merge {
    /// True if the rule compares the contributions with each other, so that it needs all of them at once.
    #[must_use]
    pub fn compares(self) -> bool {
        self != Self::Mean
    }
}
