//! Data and settings of a router's fit.

use serde::{Deserialize, Serialize};

use crate::RouterConfig;

/// Data and settings of a router's fit, enough to tell if the router belongs to a model and to a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedOn {
    /// Content hash of the token file.
    pub tokens_hash: String,
    /// Hash of the tokenizer that made the token file.
    pub tokenizer_hash: String,
    /// Hash of the seed model's weights, in the caller's form.
    pub seed_hash: String,
    /// Hash of the label file of a router of labels, in the caller's form; none for other routers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_hash: Option<String>,
    /// Devices that computed the features of the seed, in the order of their names. Other devices round differently. None if
    /// the features are the same on every device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Number of documents of the fit.
    pub documents: u64,
    /// Loss of the fit: the mean squared distance of the documents to their centroids, or for a discriminative router the
    /// mean of -ln of the probability of their targets before the calibration of the biases.
    pub loss: f64,
    /// Origin of the targets of a discriminative router; none for other routers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetsFrom>,
    /// The settings.
    pub config: RouterConfig,
}

/// Origin of the targets of a discriminative router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetsFrom {
    /// Hash of the router whose shards the paths were trained on.
    pub router_hash: String,
    /// Hash of the paths' scores of the documents, in the caller's form.
    pub scores_hash: String,
}
