//! The sampling parameters of a request.

use std::collections::BTreeMap;

use dipaco_infer::SamplingParams;
use serde_json::{Map, Value};

use super::MAX_TOKEN_RULES;
use crate::error::ApiError;
use crate::fields::{Fields, whole, wrong};
use crate::{SamplingDefaults, ServerError};

/// The parameters that a model's generation settings give: those that vLLM takes from them too.
const DEFAULTS: [&str; 5] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];

impl SamplingDefaults {
    /// The sampling parameters among the keys of a `generation_config.json`. Other keys and those with the value `null` are
    /// passed over.
    ///
    /// # Errors
    /// [`ServerError::Sampling`] when a request could not have one of the values.
    pub fn new(settings: &Map<String, Value>) -> Result<Self, ServerError> {
        let own = |name: &str| Some((name.to_owned(), settings.get(name)?.clone()));
        let fields: Map<String, Value> =
            DEFAULTS.into_iter().filter_map(own).filter(|(_, value)| !value.is_null()).collect();
        let checked = Fields::new("the settings", Value::Object(fields.clone()));
        let checked = checked.and_then(|mut fields| AskedSampling::read(&mut fields));
        checked.map_err(|error| ServerError::Sampling { problem: error.message })?;
        Ok(Self { fields })
    }

    /// Sets the fields that a request leaves out.
    pub(crate) fn fill(&self, fields: &mut Fields) {
        self.fields.iter().for_each(|(name, value)| fields.put_default(name, value));
    }
}

/// The sampling parameters of the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AskedSampling {
    pub(crate) seed: Option<u64>,
    rest: SamplingParams,
}

impl AskedSampling {
    /// The sampling of one choice: choices with the same seed draw from different streams.
    pub(crate) fn for_choice(&self, seed: u64, choice: usize) -> SamplingParams {
        SamplingParams { seed, choice: choice as u64, ..self.rest.clone() }
    }

    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut logit_bias = BTreeMap::new();
        match fields.take("logit_bias") {
            None => {}
            Some(Value::Object(entries)) if entries.len() <= MAX_TOKEN_RULES => {
                for (id, bias) in entries {
                    let id: u32 = id
                        .parse()
                        .map_err(|_| wrong("logit_bias", &Value::from(id), "keyed by token ids"))?;
                    let number = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
                    let number =
                        number.ok_or_else(|| wrong("logit_bias", &bias, "a number from -100 to 100"))?;
                    logit_bias.insert(id, number as f32);
                }
            }
            Some(other) => {
                let expected = format!("an object of at most {MAX_TOKEN_RULES} token ids and their biases");
                return Err(wrong("logit_bias", &other, &expected));
            }
        }
        // vLLM turns `top_k` off with -1.
        let top_k = fields.integer("top_k", -1, i64::from(u32::MAX))?.unwrap_or(0);
        // A seed may be any 64-bit integer. Of the negative seeds -1 asks for a random one, as in other servers.
        let seed = match fields.take("seed") {
            None => None,
            Some(value) => match whole(&value) {
                Some(-1) => None,
                small => {
                    let seed = value.as_u64().or(small.map(|seed| seed as u64));
                    Some(seed.ok_or_else(|| wrong("seed", &value, "an integer of 64 bits"))?)
                }
            },
        };
        let defaults = SamplingParams::default();
        let rest = SamplingParams {
            temperature: fields.float("temperature", 0.0, 2.0, 1.0)?,
            top_p: fields.float("top_p", 0.0, 1.0, 1.0)?.max(f32::MIN_POSITIVE),
            top_k: usize::try_from(top_k).unwrap_or(0),
            min_p: fields.float("min_p", 0.0, 1.0, 0.0)?,
            presence_penalty: fields.float("presence_penalty", -2.0, 2.0, 0.0)?,
            frequency_penalty: fields.float("frequency_penalty", -2.0, 2.0, 0.0)?,
            repetition_penalty: fields.float("repetition_penalty", 0.01, 100.0, 1.0)?,
            logit_bias: logit_bias.into(),
            ..defaults
        };
        Ok(Self { seed, rest })
    }
}
