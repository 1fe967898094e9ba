//! The section `[routing]` of a run's configuration.

mod classifier;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::classifier::ClassifierConfig;
use crate::RoutingError;
use crate::phase::{self, PhaseConfig};

/// The rule that turns a document's features into a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RouterKind {
    /// The nearest of P centroids (generative routing, arXiv:2403.10616 §2.4.1). Written `"kmeans"`.
    #[default]
    #[serde(rename = "kmeans")]
    KMeans,
    /// The feature is cut into one part per level of modules, each with its own centroids; the nearest centroids of all
    /// parts together name the path (arXiv:2403.10616 §7.3). Written `"product-kmeans"`.
    #[serde(rename = "product-kmeans")]
    ProductKMeans,
    /// A hash of the document's first tokens, so every path gets about an equal share of every kind of text. It is the
    /// control for all other rules. Written `"random"`.
    Random,
    /// The document's label: every path gets the documents of a label, or of several. A control that shows the gain of
    /// routing by the true kinds of text; it can't route a prompt. Written `"labels"`.
    Labels,
    /// A linear classifier of the path that scores a document best (arXiv:2403.10616 §2.4.2). It needs trained paths, so no
    /// run starts with it. Written `"discriminative"`.
    Discriminative,
}

/// The source of a document's features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeatureKind {
    /// Token vectors by latent semantic analysis of the training text ([`crate::TokenVectors`]). They cost no pass of a
    /// model. Written `"lsa"`.
    #[default]
    Lsa,
    /// The mean output of blocks of the seed (arXiv:2403.10616 §2.4.1). Written `"seed"`.
    Seed,
}

/// Section `[routing]`: the assignment of documents to paths. The topology sets the number of paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterConfig {
    /// The rule at the start of a run: `"kmeans"`, the default, `"product-kmeans"`, `"random"` or `"labels"`.
    pub kind: RouterKind,
    /// Tokens at the start of a document that the router reads; default 32, as in the paper. A shorter document is routed
    /// by all its tokens. A longer prefix is slower and must be known before the first token can be generated; a very
    /// short prefix tells little about the document. At most the model's context.
    pub prefix_tokens: usize,
    /// Label file for [`RouterKind::Labels`].
    pub labels: Option<PathBuf>,
    /// The source of a document's features for all kinds but `"random"` and `"labels"`; default `"lsa"`.
    pub features: FeatureKind,
    /// Components of an LSA feature; default 64, at most 1,024. A few times the number of clusters of the text suffice.
    pub lsa_components: usize,
    /// Blocks of the seed that features `"seed"` come from; `None` for all. Fewer blocks are cheaper. With 0 a feature is
    /// the mean of the token embeddings.
    pub feature_blocks: Option<usize>,
    /// True divides each component of a feature by its standard deviation over the documents of the fit, for k-means and
    /// product k-means; default false. Otherwise the components with the largest variance decide.
    pub standardise: bool,
    /// True turns features into components of variance 1 that are not correlated over the documents of the fit, for k-means
    /// and product k-means; default false. It standardises too.
    pub whiten: bool,
    /// Documents to fit the router on, drawn evenly from the training text; default 100,000. Memory while fitting is this
    /// times the model's width times 4 bytes. All documents are used if there are fewer.
    pub sample_documents: usize,
    /// Independent starts of k-means; of those with an inertia near the lowest the one with the most even clusters wins. Default
    /// 8. Fewer are faster and may end in a worse clustering.
    pub restarts: usize,
    /// Largest number of iterations of a start; default 100. Too few leave the clusters unsettled.
    pub iterations: usize,
    /// A start ends when an iteration lowers its inertia by less than this share; default 0.0001. 0 runs until nothing
    /// changes.
    pub tolerance: f64,
    /// Seed of the sample and of k-means; default 0. Another seed gives other, equally valid shards.
    pub seed: u64,
    /// Documents whose features are computed at once; default 64. Costs memory, changes no result beyond rounding.
    pub batch_documents: usize,
    /// Number of shards of a training document: the shards of its best paths ([`crate::Router::ranked`]); default 1. A
    /// larger number makes shards larger, which keeps many small paths from overfitting, and paths less specialised (top-n
    /// sharding, arXiv:2403.10616 §2.4.4; the paper takes 2 for 256 paths). Validation documents always go to one shard.
    pub overlap: usize,
    /// Share of the training documents that is reserved for the router: no path trains on them, and all paths score them
    /// to fit a discriminative router ([`crate::is_router_document`]); default 0, below 1. The paper takes 0.005 (arXiv:2403.10616 §2.4.2).
    pub router_share: f64,
    /// Least share of the documents that the calibrated router gives each path, as a part of an equal share; default 0.1.
    /// The other paths divide the rest by their sizes. With 1 all paths get equally much.
    /// Without it some paths may get no text to train on: with product k-means the nearest centroids of a path may never
    /// occur together, and with a discriminative router a path may be best for no reserved document. 0 permits empty paths,
    /// and 1 is the maximum.
    pub least_share: f64,
    /// True, the default, gives k-means clusters near each other to paths that share a module. Otherwise the numbers of the
    /// clusters, which mean nothing, decide which paths share modules.
    pub arrange: bool,
    /// Settings for fitting a discriminative router.
    pub classifier: ClassifierConfig,
    /// Rounds after which the text is divided anew, each with its router; none by default. A phase changes only the shards
    /// of the rounds after it.
    pub phases: Vec<PhaseConfig>,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            kind: RouterKind::KMeans,
            prefix_tokens: 32,
            labels: None,
            features: FeatureKind::Lsa,
            lsa_components: 64,
            feature_blocks: None,
            standardise: false,
            whiten: false,
            sample_documents: 100_000,
            restarts: 8,
            iterations: 100,
            tolerance: 1e-4,
            seed: 0,
            batch_documents: 64,
            overlap: 1,
            router_share: 0.0,
            least_share: 0.1,
            arrange: true,
            classifier: ClassifierConfig::default(),
            phases: Vec::new(),
        }
    }
}

/// True if a router of this kind reads features of a document's text.
fn reads_features(kind: RouterKind) -> bool {
    !matches!(kind, RouterKind::Random | RouterKind::Labels)
}

impl RouterConfig {
    /// The settings that a router depends on: phases and overlap, which concern the use of routers, have their defaults, and
    /// the place of the label file, whose content has a hash of its own.
    #[must_use]
    pub fn of_router(&self) -> Self {
        let Self { phases, overlap, labels, .. } = Self::default();
        Self { phases, overlap, labels, ..self.clone() }
    }

    /// True if a router of this kind reads features of token vectors ([`crate::TokenVectors`]).
    #[must_use]
    pub fn needs_token_vectors(&self, kind: RouterKind) -> bool {
        self.features == FeatureKind::Lsa && reads_features(kind)
    }

    /// True if a router of this kind reads features of the seed: of its blocks, or of its token embedding alone.
    #[must_use]
    pub fn reads_seed(&self, kind: RouterKind) -> bool {
        self.features == FeatureKind::Seed && reads_features(kind)
    }

    /// True if a router of this kind reads features for which blocks of the seed compute, document by document.
    #[must_use]
    pub fn needs_seed(&self, kind: RouterKind) -> bool {
        self.reads_seed(kind) && self.feature_blocks != Some(0)
    }

    /// Checks that a run can start with the rule.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Config`] for a discriminative router, which needs trained paths.
    pub fn check_start(&self) -> Result<(), RoutingError> {
        if self.kind == RouterKind::Discriminative {
            return Err(RoutingError::Config {
                key: "kind",
                value: "\"discriminative\"".into(),
                problem: "no run can start with it, because it needs the scores of trained paths: start \
                          with \"kmeans\" or \"product-kmeans\", and re-route later",
            });
        }
        Ok(())
    }

    /// Checks each value by itself. The prefix is checked against the model's context where both are known.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Config`] for the first unusable value.
    pub fn check(&self) -> Result<(), RoutingError> {
        let counts = [
            ("prefix_tokens", self.prefix_tokens, 1 << 16),
            ("lsa_components", self.lsa_components, 1 << 10),
            ("sample_documents", self.sample_documents, 1 << 30),
            ("restarts", self.restarts, 1 << 16),
            ("iterations", self.iterations, 1 << 20),
            ("batch_documents", self.batch_documents, 1 << 16),
            ("overlap", self.overlap, 1 << 16),
        ];
        for (key, value, most) in counts {
            if value == 0 {
                return Err(RoutingError::Config {
                    key,
                    value: value.to_string(),
                    problem: "must be at least 1",
                });
            }
            if value > most {
                return Err(RoutingError::Config {
                    key,
                    value: value.to_string(),
                    problem: "is far too large",
                });
            }
        }
        if self.whiten && self.standardise {
            let problem = "whitening standardises already: leave routing.standardise out";
            return Err(RoutingError::Config { key: "whiten", value: "true".into(), problem });
        }
        if !(0.0..1.0).contains(&self.tolerance) {
            let value = self.tolerance.to_string();
            return Err(RoutingError::Config {
                key: "tolerance",
                value,
                problem: "must be at least 0 and below 1",
            });
        }
        if !(0.0..1.0).contains(&self.router_share) {
            return Err(RoutingError::Config {
                key: "router_share",
                value: self.router_share.to_string(),
                problem: "must be at least 0 and below 1: it is taken from the training text",
            });
        }
        if !(0.0..=1.0).contains(&self.least_share) {
            return Err(RoutingError::Config {
                key: "least_share",
                value: self.least_share.to_string(),
                problem: "must be at least 0 and at most 1",
            });
        }
        self.classifier.check()?;
        phase::check(&self.phases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass() {
        RouterConfig::default().check().unwrap();
    }

    fn phases(rounds: &[u32]) -> Vec<PhaseConfig> {
        rounds.iter().map(|&round| PhaseConfig { round, ..PhaseConfig::default() }).collect()
    }

    #[test]
    fn no_run_starts_with_a_rule_that_needs_trained_paths() {
        RouterConfig { kind: RouterKind::ProductKMeans, ..RouterConfig::default() }.check_start().unwrap();
        let config = RouterConfig { kind: RouterKind::Discriminative, ..RouterConfig::default() };
        let message = config.check_start().unwrap_err().to_string();
        assert!(message.contains("routing.kind") && message.contains("product-kmeans"), "{message}");
    }

    #[test]
    fn each_bad_value_is_named() {
        let default = RouterConfig::default;
        let bad = [
            (RouterConfig { prefix_tokens: 0, ..default() }, "routing.prefix_tokens = 0"),
            (RouterConfig { lsa_components: 0, ..default() }, "routing.lsa_components = 0"),
            (RouterConfig { lsa_components: 2000, ..default() }, "routing.lsa_components = 2000"),
            (RouterConfig { sample_documents: 0, ..default() }, "routing.sample_documents = 0"),
            (RouterConfig { restarts: 0, ..default() }, "routing.restarts = 0"),
            (RouterConfig { iterations: 0, ..default() }, "routing.iterations = 0"),
            (RouterConfig { batch_documents: 0, ..default() }, "routing.batch_documents = 0"),
            (RouterConfig { batch_documents: usize::MAX, ..default() }, "routing.batch_documents"),
            (RouterConfig { overlap: 0, ..default() }, "routing.overlap = 0"),
            (RouterConfig { router_share: -0.1, ..default() }, "routing.router_share = -0.1"),
            (RouterConfig { router_share: 1.0, ..default() }, "routing.router_share = 1"),
            (RouterConfig { router_share: f64::NAN, ..default() }, "routing.router_share = NaN"),
            (RouterConfig { least_share: 1.5, ..default() }, "routing.least_share = 1.5"),
            (RouterConfig { whiten: true, standardise: true, ..default() }, "routing.whiten = true"),
            (RouterConfig { tolerance: f64::NAN, ..default() }, "routing.tolerance = NaN"),
            (RouterConfig { tolerance: 1.0, ..default() }, "routing.tolerance = 1"),
            (RouterConfig { phases: phases(&[0]), ..default() }, "routing.phases[].round = 0"),
            (RouterConfig { phases: phases(&[2, 2]), ..default() }, "routing.phases[].round = 2"),
        ];
        for (config, named) in bad {
            let message = config.check().unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }

    #[test]
    fn the_rule_has_its_usual_name() {
        let config: RouterConfig = serde_json::from_str(r#"{"kind":"kmeans"}"#).unwrap();
        assert_eq!(config, RouterConfig::default());
        for (name, kind) in [
            ("kmeans", RouterKind::KMeans),
            ("product-kmeans", RouterKind::ProductKMeans),
            ("random", RouterKind::Random),
            ("labels", RouterKind::Labels),
            ("discriminative", RouterKind::Discriminative),
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
        assert!(serde_json::from_str::<RouterConfig>(r#"{"kind":"k-means"}"#).is_err());
        assert!(serde_json::from_str::<RouterConfig>(r#"{"cluster":3}"#).is_err());
    }
}
