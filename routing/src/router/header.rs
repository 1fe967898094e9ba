//! Header of a router's encoding.

use serde::{Deserialize, Serialize};

use super::fitted_on::FittedOn;
use super::rule::Shape;
use crate::RouterKind;
use crate::feature_map::FeatureMap;

/// Header of the encoding: everything but the numbers of the rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouterHeader {
    pub(super) kind: RouterKind,
    /// P.
    pub(super) paths: u32,
    /// Number of choices for each part of the feature.
    pub(super) clusters: Vec<u32>,
    /// D.
    pub(super) dimension: u32,
    /// True if features are multiplied by factors (D) before the rule sees them.
    pub(super) scaled: bool,
    /// True if features are whitened before the rule sees them. Headers of older programs have no such field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) whitened: bool,
    /// V, the number of token vectors that give the features; 0 if features come from elsewhere.
    pub(super) token_vectors: u32,
    pub(super) prefix_tokens: u32,
    pub(super) fitted_on: FittedOn,
}

impl RouterHeader {
    pub(super) fn shape(&self) -> Shape<'_> {
        Shape { kind: self.kind, clusters: &self.clusters, dimension: self.dimension as usize }
    }

    /// The map of the features; `None` for a header that no router has.
    pub(super) fn map(&self) -> Option<FeatureMap> {
        match (self.scaled, self.whitened) {
            (false, false) => Some(FeatureMap::None),
            (true, false) => Some(FeatureMap::Factors),
            (false, true) => Some(FeatureMap::Triangle),
            (true, true) => None,
        }
    }

    pub(super) fn with_map(self, map: FeatureMap) -> Self {
        Self { scaled: map == FeatureMap::Factors, whitened: map == FeatureMap::Triangle, ..self }
    }

    /// Number of values in the file: those of the rule, of the map of the features, and the token vectors.
    pub(super) fn values(&self) -> Option<usize> {
        let vectors = (self.token_vectors as usize).checked_mul(self.dimension as usize)?;
        self.rule_and_map()?.checked_add(vectors)
    }

    /// Number of values before the token vectors.
    pub(super) fn rule_and_map(&self) -> Option<usize> {
        self.shape().values()?.checked_add(self.map()?.numbers(self.dimension as usize)?)
    }
}
