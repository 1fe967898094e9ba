//! The source of the features that a router reads.

use std::sync::Arc;

use dipaco_model::ModelConfig;
use dipaco_shards::{TokenRows, document_number};

use crate::{
    BoxError, FeatureExtractor, PrefixLabels, Router, RouterConfig, RouterKind, RoutingError, SeedFeatures,
    TokenVectors,
};

/// Key context that separates this use of BLAKE3 from all others.
const RANDOM: &str = "dipaco 2026 random paths of documents";

/// Features for a kind of router: LSA of the tokens, the mean output of blocks of the seed, or for random routing a number
/// from 0 to below 1 that is a hash of the tokens or follows from a label.
#[derive(Clone, Debug)]
pub struct RouterFeatures {
    /// Largest number of tokens of a sequence.
    context: usize,
    source: Feature,
}

#[derive(Clone, Debug)]
enum Feature {
    /// Sums of token vectors.
    Lsa(TokenVectors),
    /// Output of this number of blocks of the seed.
    Blocks(Arc<dyn SeedFeatures>, usize),
    /// Hash with this seed.
    Hash(u64),
    /// Labels, for this number of paths.
    Label(Arc<PrefixLabels>, u32),
}

impl RouterFeatures {
    /// The features that a fitted router reads, for a path with the dimensions `model`. `seed` is called if they come from
    /// the seed.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn of_router<E: From<RoutingError>, S: SeedFeatures + 'static>(
        router: &Router,
        model: &ModelConfig,
        seed: impl FnOnce() -> Result<S, E>,
    ) -> Result<Self, E> {
        Self::new(router.kind(), &router.fitted_on().config, router.token_vectors(), model, seed)
    }

    /// The features for a router of this kind and these settings, for a path with the dimensions `model`. Features `"lsa"`
    /// need the token `vectors` of the text. `seed` is called if the features come from the seed.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Config`] if the vectors are missing, the seed has fewer blocks, or the router needs labels
    /// ([`Self::labelled`]), and the errors of `seed`.
    pub fn new<E: From<RoutingError>, S: SeedFeatures + 'static>(
        kind: RouterKind,
        config: &RouterConfig,
        vectors: Option<TokenVectors>,
        model: &ModelConfig,
        seed: impl FnOnce() -> Result<S, E>,
    ) -> Result<Self, E> {
        let (blocks, context) = (model.blocks, model.context);
        if config.needs_token_vectors(kind) {
            let Some(vectors) = vectors else {
                return Err(E::from(RoutingError::Config {
                    key: "features",
                    value: "\"lsa\"".into(),
                    problem: "needs token vectors, and this router has none: run route fit again",
                }));
            };
            return Ok(Self { context, source: Feature::Lsa(vectors) });
        }
        let source = match (kind, config.feature_blocks) {
            (RouterKind::Random, _) => Feature::Hash(config.seed),
            (RouterKind::Labels, _) => {
                return Err(E::from(RoutingError::Config {
                    key: "kind",
                    value: "\"labels\"".into(),
                    problem: "routes only the run's own text: serve, evaluation.route = \"window\" and reroute_by = \"features\" \
                              need another kind",
                }));
            }
            (_, None) => Feature::Blocks(Arc::new(seed()?), blocks),
            (_, Some(read)) if read <= blocks => Feature::Blocks(Arc::new(seed()?), read),
            (_, Some(read)) => {
                return Err(E::from(RoutingError::Config {
                    key: "feature_blocks",
                    value: read.to_string(),
                    problem: "must be at most model.blocks",
                }));
            }
        };
        Ok(Self { context, source })
    }

    /// The features for a router of labels with this number of paths. Label i goes to path i modulo P.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Config`] if there are fewer labels than paths.
    pub fn labelled(model: &ModelConfig, labels: PrefixLabels, paths: u32) -> Result<Self, RoutingError> {
        if labels.names() < paths as usize {
            return Err(RoutingError::Config {
                key: "labels",
                value: format!("{} labels", labels.names()),
                problem: "must be at least as many as paths: some paths would get no document",
            });
        }
        Ok(Self { context: model.context, source: Feature::Label(Arc::new(labels), paths) })
    }
}

impl FeatureExtractor for RouterFeatures {
    fn dimension(&self) -> usize {
        match &self.source {
            Feature::Lsa(vectors) => vectors.components(),
            Feature::Blocks(seed, _) => seed.hidden_size(),
            Feature::Hash(_) | Feature::Label(..) => 1,
        }
    }

    fn context(&self) -> usize {
        self.context
    }

    fn features(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, BoxError> {
        let rows = || {
            let rows = tokens.ids().chunks_exact(tokens.time());
            rows.zip(lengths).map(|(row, &length)| row.get(..length).unwrap_or(row))
        };
        match &self.source {
            Feature::Lsa(vectors) => Ok(rows().flat_map(|row| vectors.feature(row)).collect()),
            Feature::Blocks(seed, blocks) => seed.early_features(*blocks, tokens, lengths),
            Feature::Hash(seed) => Ok(rows().map(|row| document_number(RANDOM, *seed, row) as f32).collect()),
            Feature::Label(labels, paths) => {
                let path = |row| labels.number(row).map(|number| f64::from(number % paths));
                let centre = |path: f64| ((path + 0.5) / f64::from(*paths)) as f32;
                let unlabelled = || "a document has no label: label all text of the run".into();
                rows().map(|row| path(row).map(centre).ok_or_else(unlabelled)).collect()
            }
        }
    }

    fn device(&self) -> Option<String> {
        match &self.source {
            Feature::Blocks(seed, _) => Some(seed.device()),
            Feature::Lsa(_) | Feature::Hash(_) | Feature::Label(..) => None,
        }
    }
}
