//! Sampling parameters of requests that do not set them.

use serde_json::{Map, Value};

/// Sampling parameters of requests that do not set them, from the generation settings of a pretrained model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Fields of a request.
    pub(crate) fields: Map<String, Value>,
}
