//! The body of a completion request.

use std::collections::BTreeMap;

use dipaco_infer::{SamplingParams, TextCodec};
use dipaco_topology::PathId;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, token, tokens, wrong};
use crate::request_id::usable_id;

/// Most choices of one prompt, as in OpenAI's API.
const MAX_N: u32 = 128;
/// Most log-probabilities of a token. OpenAI allows 5, vLLM 20.
const MAX_LOG_PROBS: u32 = 20;
/// Most stop texts, and most bytes of a stop text. Every token is compared with all stop texts.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
/// Most entries of `logit_bias` and of `stop_token_ids`.
const MAX_TOKEN_RULES: usize = 1024;

/// Tokens generated without `max_tokens`, as in OpenAI's completions.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 16;

/// Fields of other servers that change the text and are not supported here. They are refused, because ignoring them would
/// silently give wrong results. `false` and the empty text turn a field off, so they are accepted.
const UNSUPPORTED: [&str; 3] = ["suffix", "use_beam_search", "prompt_logprobs"];

/// Fields of other servers that change nothing here: no token is ever added to a prompt, and the text of special tokens
/// is never shown.
const WITHOUT_EFFECT: [&str; 2] = ["add_special_tokens", "skip_special_tokens"];

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// The token ids of the prompt. Tokenizing occupies a core.
    pub(crate) fn tokens(self, codec: &dyn TextCodec) -> Result<Vec<u32>, ApiError> {
        let failed = |error| ApiError::field("prompt", format!("prompt can't be tokenized: {error}"));
        match self {
            Self::Tokens(tokens) => Ok(tokens),
            Self::Text(text) => codec.encode(&text).map_err(failed),
        }
    }
}

/// A completion request, with the defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompts: Vec<Prompt>,
    /// Largest number of tokens of a prompt, of which the last are kept; `None` keeps all.
    pub(crate) truncate: Option<Truncation>,
    /// Id of the request, if the client names one in the body.
    pub(crate) request_id: Option<String>,
    pub(crate) path: Option<PathId>,
    /// Tokens after which the path is chosen anew; `Some(0)` keeps the first path.
    pub(crate) route_every: Option<usize>,
    pub(crate) max_tokens: Option<usize>,
    /// Largest number of tokens without `max_tokens`, as far as the context has room.
    pub(crate) default_max_tokens: usize,
    pub(crate) min_tokens: usize,
    pub(crate) n: usize,
    pub(crate) sampling: AskedSampling,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) include_stop: bool,
    pub(crate) ignore_eos: bool,
    pub(crate) log_probs: Option<usize>,
    pub(crate) echo: bool,
    pub(crate) stream: bool,
    pub(crate) usage: StreamUsage,
    pub(crate) return_route: bool,
    pub(crate) token_ids_as_text: bool,
    pub(crate) return_token_ids: bool,
}

/// The field `truncate_prompt_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// The last tokens that leave room for the continuation.
    Fit,
    /// At most this many last tokens.
    Last(usize),
}

/// Chunks of a stream that hold the usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    /// None.
    #[default]
    Nowhere,
    /// A chunk of its own at the end.
    AtTheEnd,
    /// That chunk, and each chunk before it the usage so far.
    Everywhere,
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

    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
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
            Some(value) if value.as_i64() == Some(-1) => None,
            Some(value) => {
                let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
                Some(seed.ok_or_else(|| wrong("seed", &value, "an integer of 64 bits"))?)
            }
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
            logit_bias,
            ..defaults
        };
        Ok(Self { seed, rest })
    }
}

impl CompletionRequest {
    /// Reads a request. Unknown fields are accepted, as by other servers, and logged.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let prompt = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", "prompt is missing"))?;
        Self::of_prompts(prompts(prompt)?, fields)
    }

    /// Reads a request whose prompts are known.
    pub(crate) fn of_prompts(prompts: Vec<Prompt>, fields: &mut Fields) -> Result<Self, ApiError> {
        for name in UNSUPPORTED {
            let off = |value: &Value| *value == Value::Bool(false) || value.as_str() == Some("");
            if fields.take(name).is_some_and(|value| !off(&value)) {
                let message = format!("{name} is not supported by this server: leave it out");
                return Err(ApiError { code: Some("unsupported"), ..ApiError::field(name, message) });
            }
        }
        if let Some(best_of) = fields.integer("best_of", i64::MIN, i64::MAX)?
            && best_of != 1
        {
            return Err(ApiError::field(
                "best_of",
                "best_of is not supported by this server: leave it out and use n",
            ));
        }
        let stream = fields.flag("stream")?;
        let usage = match fields.take("stream_options") {
            None => StreamUsage::Nowhere,
            Some(_) if !stream => {
                return Err(ApiError::field("stream_options", "stream_options needs stream to be true"));
            }
            Some(options) => stream_usage(options)
                .map_err(|error| ApiError { param: Some("stream_options".into()), ..error })?,
        };
        for name in WITHOUT_EFFECT {
            fields.flag(name)?;
        }
        let request_id = fields.string("request_id")?;
        if request_id.as_ref().is_some_and(|id| !usable_id(id)) {
            let message = "request_id must have 1 to 128 visible characters of ASCII";
            return Err(ApiError::field("request_id", message));
        }
        let most = u32::MAX >> 8;
        let completion = Self {
            model: fields.string("model")?,
            prompts,
            truncate: truncation(fields)?,
            request_id,
            path: fields
                .integer("path", 0, i64::from(u32::MAX))?
                .and_then(|path| u32::try_from(path).ok())
                .map(PathId),
            route_every: fields.count("route_every", 0, most)?,
            max_tokens: fields.count("max_tokens", 0, most)?,
            default_max_tokens: DEFAULT_MAX_TOKENS,
            min_tokens: fields.count("min_tokens", 0, most)?.unwrap_or(0),
            n: fields.count("n", 1, MAX_N)?.unwrap_or(1),
            sampling: AskedSampling::read(fields)?,
            stop: stops(fields.take("stop"))?,
            stop_token_ids: stop_tokens(fields.take("stop_token_ids"))?,
            include_stop: fields.flag("include_stop_str_in_output")?,
            ignore_eos: fields.flag("ignore_eos")?,
            log_probs: fields.count("logprobs", 0, MAX_LOG_PROBS)?,
            echo: fields.flag("echo")?,
            stream,
            usage,
            return_route: fields.flag("return_route")?,
            token_ids_as_text: fields.flag("return_tokens_as_token_ids")?,
            return_token_ids: fields.flag("return_token_ids")?,
        };
        let rest = fields.rest();
        if !rest.is_empty() {
            tracing::debug!(fields = ?rest, "a completion request has unknown fields, which are ignored");
        }
        Ok(completion)
    }
}

fn stream_usage(options: Value) -> Result<StreamUsage, ApiError> {
    let mut options = Fields::new(options)?;
    let (at_the_end, everywhere) = (options.flag("include_usage")?, options.flag("continuous_usage_stats")?);
    Ok(match (at_the_end, everywhere) {
        (false, _) => StreamUsage::Nowhere,
        (true, false) => StreamUsage::AtTheEnd,
        (true, true) => StreamUsage::Everywhere,
    })
}

fn truncation(fields: &mut Fields) -> Result<Option<Truncation>, ApiError> {
    let asked = fields.integer("truncate_prompt_tokens", -1, i64::from(u32::MAX))?;
    match asked {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation::Fit)),
        Some(0) => Err(ApiError::field(
            "truncate_prompt_tokens",
            "truncate_prompt_tokens is 0: give at least 1, or -1",
        )),
        Some(asked) => Ok(usize::try_from(asked).ok().map(Truncation::Last)),
    }
}

/// Reads a prompt in any of its four forms: a text, texts, token ids, lists of token ids.
fn prompts(value: Value) -> Result<Vec<Prompt>, ApiError> {
    const FORMS: &str = "a text, a list of texts, a list of token ids or a list of such lists";
    let list = match value {
        Value::String(text) => vec![Value::String(text)],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => vec![Value::Array(list)],
        Value::Array(list) => list,
        other => return Err(wrong("prompt", &other, FORMS)),
    };
    let prompt = |value| match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => tokens("prompt", &ids).map(Prompt::Tokens),
        other => Err(wrong("prompt", &other, FORMS)),
    };
    let prompts = list.into_iter().map(prompt).collect::<Result<Vec<_>, _>>()?;
    let empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Tokens(tokens) => tokens.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(empty) {
        let message = "the prompt is empty: give at least one token";
        return Err(ApiError { code: Some("empty_prompt"), ..ApiError::field("prompt", message) });
    }
    Ok(prompts)
}

fn stops(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let list = match value {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![Value::String(stop)],
        Some(Value::Array(list)) if list.len() <= MAX_STOPS => list,
        Some(other) => {
            return Err(wrong("stop", &other, &format!("a text or a list of at most {MAX_STOPS} texts")));
        }
    };
    let stop = |value| match value {
        Value::String(stop) if stop.len() <= MAX_STOP_BYTES => Ok(stop),
        other => Err(wrong("stop", &other, &format!("a text of at most {MAX_STOP_BYTES} bytes"))),
    };
    list.into_iter().map(stop).collect()
}

fn stop_tokens(value: Option<Value>) -> Result<Vec<u32>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MAX_TOKEN_RULES => {
            list.iter().map(|value| token("stop_token_ids", value)).collect()
        }
        Some(other) => {
            Err(wrong("stop_token_ids", &other, &format!("a list of at most {MAX_TOKEN_RULES} token ids")))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<CompletionRequest, ApiError> {
        CompletionRequest::read(&mut Fields::new(body)?)
    }

    #[test]
    fn all_forms_of_prompts_are_read() {
        let prompts = |prompt: Value| read(json!({"prompt": prompt})).map(|c| c.prompts);
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(prompts(json!("a")).unwrap(), [text("a")]);
        assert_eq!(prompts(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(prompts(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(
            prompts(json!([[1], [2, 3]])).unwrap(),
            [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]
        );
        for empty in [json!(""), json!([]), json!([[]]), json!(["a", ""])] {
            assert_eq!(prompts(empty).unwrap_err().code, Some("empty_prompt"));
        }
        for bad in [json!({}), json!(true), json!([1, "a"]), json!([-1]), json!([1.5]), json!([5e9])] {
            assert_eq!(prompts(bad).unwrap_err().param.as_deref(), Some("prompt"));
        }
    }

    #[test]
    fn wrong_fields_are_named_and_unknown_fields_accepted() {
        for (field, value) in [
            ("temperature", json!(2.5)),
            ("temperature", json!("hot")),
            ("top_p", json!(-0.1)),
            ("n", json!(0)),
            ("n", json!(129)),
            ("max_tokens", json!(-1)),
            ("max_tokens", json!(1.5)),
            ("logprobs", json!(true)),
            ("echo", json!(1)),
            ("stop", json!([1])),
            ("logit_bias", json!({"a": 1})),
            ("seed", json!(1.5)),
            ("stream_options", json!({"include_usage": true})),
            ("best_of", json!(4)),
            ("suffix", json!("end")),
            ("path", json!(-1)),
            ("truncate_prompt_tokens", json!(0)),
            ("truncate_prompt_tokens", json!(-2)),
            ("request_id", json!("a b")),
            ("return_token_ids", json!("yes")),
            ("add_special_tokens", json!(0)),
        ] {
            let error = read(json!({"prompt": "a", field: value})).unwrap_err();
            assert_eq!(
                (error.param.as_deref(), error.status.as_u16()),
                (Some(field), 400),
                "{}",
                error.message
            );
            assert!(error.message.starts_with(field), "{}", error.message);
        }
        let plain = read(json!({"prompt": "a"})).unwrap();
        let body = json!({"prompt": "a", "do_sample": false, "user": "u", "suffix": "", "max_tokens": null, "best_of": 1});
        assert_eq!(read(body).unwrap(), plain);
        assert_eq!(read(json!({"prompt": "a", "max_tokens": 5.0})).unwrap().max_tokens, Some(5));
        let seed = |seed: i64| read(json!({"prompt": "a", "seed": seed})).unwrap().sampling.seed;
        assert_eq!((seed(-1), seed(0), seed(-2)), (None, Some(0), Some(-2i64 as u64)));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_read_or_refused_with_400(values in proptest::collection::vec(any_json(), 22)) {
            const NAMES: [&str; 22] = [
                "prompt", "model", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "logprobs",
                "echo", "stop", "seed", "logit_bias", "path", "top_k", "stop_token_ids", "suffix", "best_of",
                "min_tokens", "presence_penalty", "ignore_eos", "other",
            ];
            for (name, value) in NAMES.iter().zip(&values) {
                let mut body = json!({"prompt": "a"});
                body[*name] = value.clone();
                if let Err(error) = read(body) {
                    prop_assert_eq!(error.status.as_u16(), 400);
                    prop_assert!(error.message.len() < 400);
                }
            }
            let _ = read(NAMES.iter().map(ToString::to_string).zip(values.clone()).collect());
            let _ = read(values[0].clone());
        }
    }
}
